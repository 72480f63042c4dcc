"""How many requests may be tried again.

Rule of this room: a cluster in trouble gets no more than a fifth of its traffic once more; a few retries are always
allowed, or a lone request could never have one.
"""

from __future__ import annotations

from collections import deque

SHARE = 0.2
FLOOR = 10
WINDOW_S = 10.0
_SLICE_S = 1.0


class RetryBudget:
    """Counts requests and retries of the last WINDOW_S, in slices of a second.

    share: retries per request. floor: retries per window that are allowed whatever the traffic.
    allowed, denied: retries so far.
    """

    def __init__(self, share: float = SHARE, floor: int = FLOOR) -> None:
        self._share = share
        self._floor = floor
        self._slices: deque[tuple[int, list[int]]] = deque()
        self._last = -1
        self._requests = 0
        self._retries = 0
        self.allowed = 0
        self.denied = 0

    def request(self, now_s: float) -> None:
        """A request came in."""
        self._slice(now_s)[0] += 1
        self._requests += 1

    def retry(self, now_s: float) -> bool:
        """Whether one more attempt may be made now; if so it is counted."""
        counts = self._slice(now_s)
        if self._retries + 1 > max(self._floor, self._share * self._requests):
            self.denied += 1
            return False
        counts[1] += 1
        self._retries += 1
        self.allowed += 1
        return True

    def _slice(self, now_s: float) -> list[int]:
        number = int(now_s / _SLICE_S)
        if number > self._last:
            self._last = number
            self._slices.append((number, [0, 0]))
            oldest = number - int(WINDOW_S / _SLICE_S)
            while self._slices[0][0] <= oldest:
                _, (requests, retries) = self._slices.popleft()
                self._requests -= requests
                self._retries -= retries
        return self._slices[-1][1]
