"""The wire between two pods.

Rule of this room: one link per pair of pods, first come first served, the whole bandwidth to one transfer at a time.
"""

from loadtest.engine.profile import TransferCosts


class Link:
    """A FIFO link. `send` tells when the bytes will be there."""

    def __init__(self, costs: TransferCosts) -> None:
        self._costs = costs
        self._free_at_s = 0.0

    def send(self, now: float, num_bytes: int) -> float:
        """Put `num_bytes` on the link at `now`; returns the time of arrival (queueing, bytes, latency, hand-over)."""
        start = max(now, self._free_at_s)
        self._free_at_s = start + num_bytes / self._costs.bandwidth_bytes_per_s
        return self._free_at_s + self._costs.latency_s + self._costs.handover_s


class Links:
    """The links of one reading pod, by the engine id it reads from."""

    def __init__(self, costs: TransferCosts) -> None:
        self._costs = costs
        self._links: dict[str, Link] = {}

    def to(self, engine_id: str) -> Link:
        return self._links.setdefault(engine_id, Link(self._costs))
