"""How many turns come in per second, now.

Rule of this room: a sliding window that forgets within seconds; not the average since start.
"""

from __future__ import annotations

WINDOW_S = 5.0
_BUCKETS = 20
_BUCKET_S = WINDOW_S / _BUCKETS
_SHORTEST_S = 1.0


class RequestRate:
    """Turns per second over the last WINDOW_S seconds, in O(1) time and space."""

    def __init__(self, now_s: float) -> None:
        self._started_s = now_s
        self._counts = [0] * _BUCKETS
        self._slot = int(now_s / _BUCKET_S)
        self._total = 0

    def count(self, now_s: float) -> None:
        """A turn came in."""
        slot = int(now_s / _BUCKET_S)
        if slot > self._slot:
            self._advance(slot)
        self._counts[self._slot % _BUCKETS] += 1
        self._total += 1

    def per_second(self, now_s: float) -> float:
        """The rate now. In the first seconds after the start the window is as long as the gateway has run."""
        slot = int(now_s / _BUCKET_S)
        if slot > self._slot:
            self._advance(slot)
        span_s = now_s - self._started_s
        return self._total / (WINDOW_S if span_s > WINDOW_S else max(_SHORTEST_S, span_s))

    def _advance(self, slot: int) -> None:
        for passed in range(self._slot + 1, min(slot, self._slot + _BUCKETS) + 1):
            self._total -= self._counts[passed % _BUCKETS]
            self._counts[passed % _BUCKETS] = 0
        self._slot = slot
