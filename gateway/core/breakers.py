"""When a pod has failed too often in a row to be given more.

Rule of this room: the time and the chance come in as arguments. Only what a pod did counts; what a client caused, or
the gateway itself, never gets here.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass

LONGEST_DOUBLING = 3
"""The cool-down doubles each time the one request after it fails, so often."""

JITTER = 0.5
"""A cool-down is up to this share longer, so that gateways do not come back together."""


class BreakerState(enum.StrEnum):
    """CLOSED: gets traffic. OPEN: gets none, unless no other pod could answer. HALF_OPEN: one request may try."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


_CLOSED, _OPEN, _HALF_OPEN = BreakerState
"""Every request asks, and Python 3.11 takes ten times as long for a member of an enum as for a global."""


@dataclass(frozen=True, slots=True)
class BreakerRules:
    """failures in a row within window_s open a breaker for open_s; failures 0 turns breakers off."""

    failures: int = 5
    window_s: float = 30.0
    open_s: float = 5.0


class PodBreaker:
    """One pod's. Methods that may change the state say whether they did.

    trial: the one request of a half-open breaker is under way.
    """

    __slots__ = ("_failed_at", "_openings", "_until", "state", "trial")

    def __init__(self) -> None:
        self.state = _CLOSED
        self.trial = False
        self._failed_at: deque[float] = deque()
        self._openings = 0
        self._until = 0.0

    @property
    def admits(self) -> bool:
        """Whether a new request may go to the pod."""
        return self.state is _CLOSED or (self.state is _HALF_OPEN and not self.trial)

    @property
    def failures(self) -> int:
        """Failures in a row so far."""
        return len(self._failed_at)

    def failed(self, rules: BreakerRules, now_s: float, chance: float) -> bool:
        """The pod failed a request. chance: 0..1, for the jitter."""
        if rules.failures == 0 or self.state is _OPEN:
            return False
        self._failed_at.append(now_s)
        while self._failed_at[0] < now_s - rules.window_s:
            self._failed_at.popleft()
        if self.state is _CLOSED and len(self._failed_at) < rules.failures:
            return False
        cool_down_s = rules.open_s * 2 ** min(self._openings, LONGEST_DOUBLING)
        self.state, self.trial = _OPEN, False
        self._until = now_s + cool_down_s * (1 + JITTER * chance)
        self._openings += 1
        return True

    def succeeded(self) -> bool:
        """The pod answered a request."""
        if not self._failed_at and self.state is _CLOSED:
            return False
        return self.reset()

    def reset(self) -> bool:
        """The pod starts afresh, say as a new process."""
        changed = self.state is not _CLOSED
        self.state, self.trial, self._openings = _CLOSED, False, 0
        self._failed_at.clear()
        return changed

    def due(self, now_s: float) -> bool:
        """Let one request try once the cool-down is over."""
        if self.state is not _OPEN or now_s < self._until:
            return False
        self.state, self.trial = _HALF_OPEN, False
        return True

    def begin(self) -> bool:
        """A request goes to the pod; True when it is the one that tries."""
        if self.state is not _HALF_OPEN or self.trial:
            return False
        self.trial = True
        return True

    def over(self) -> None:
        """The request that tried has ended; where it proved nothing (its client left), the next may try."""
        self.trial = False
