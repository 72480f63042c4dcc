"""The wire between two pods.

Rule of this room: one link per pair of pods, first come first served, the whole bandwidth to one transfer at a time.
Where links share a pod's network card, that card too serves one transfer after the other, at its own rate.
"""

from collections.abc import Iterator, Sequence

from loadtest.engine.profile import TransferCosts


class Card:
    """A pod's network card, shared by all its links."""

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self.free_at_s = 0.0


class Link:
    """A FIFO link. `send` tells when the bytes will be there. `cards`: those at its ends, where they limit it."""

    def __init__(self, costs: TransferCosts, cards: Sequence[Card] = ()) -> None:
        self._costs = costs
        self._cards = cards
        self._rate = min([costs.bandwidth_bytes_per_s, *(card.bytes_per_s for card in cards)])
        self._free_at_s = 0.0
        self.num_bytes = 0
        self.num_transfers = 0
        self.busy_s = 0.0

    def send(self, now: float, num_bytes: int) -> float:
        """Put `num_bytes` on the link at `now`; returns the time of arrival (queueing, bytes, latency, hand-over)."""
        start = max(now, self._free_at_s)
        for card in self._cards:
            start = max(start, card.free_at_s)
        took = num_bytes / self._rate
        self._free_at_s = start + took
        for card in self._cards:
            card.free_at_s = start + num_bytes / card.bytes_per_s
        self.num_bytes += num_bytes
        self.num_transfers += 1
        self.busy_s += took
        return self._free_at_s + self._costs.latency_s + self._costs.handover_s


class Links:
    """The links of one reading pod, by the engine id it reads from."""

    def __init__(self, costs: TransferCosts) -> None:
        self._costs = costs
        self._links: dict[str, Link] = {}

    def to(self, engine_id: str, cards: Sequence[Card] = ()) -> Link:
        """The link to a pod; `cards` count when it is used for the first time."""
        link = self._links.get(engine_id)
        if link is None:
            link = self._links[engine_id] = Link(self._costs, cards)
        return link

    def __iter__(self) -> Iterator[tuple[str, Link]]:
        return iter(self._links.items())
