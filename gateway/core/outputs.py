"""How long an answer will be.

Rule of this room: what this conversation's answers were, else this tenant's, else everyone's. The client's
`max_tokens` is a ceiling, not an expectation; only with `ignore_eos` is it the length.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from dataclasses import dataclass, field

PRIOR_TOKENS = 256
"""The expectation before anything was seen."""

_CONVERSATION_TURNS = 5
_TENANT_TURNS = 64
_GLOBAL_TURNS = 512
_MAX_TENANTS = 10_000


class RunningMedian:
    """The median of the last `window` values."""

    def __init__(self, window: int) -> None:
        self._order: deque[int] = deque()
        self._sorted: list[int] = []
        self._window = window

    def add(self, value: int) -> None:
        """Take a value in, and the oldest out when the window is full."""
        order, ordered = self._order, self._sorted
        if len(order) == self._window:
            del ordered[bisect_left(ordered, order.popleft())]
        order.append(value)
        insort(ordered, value)

    @property
    def median(self) -> int | None:
        """The lower median, None before the first value."""
        return self._sorted[(len(self._sorted) - 1) // 2] if self._sorted else None


def add_recent(recent: tuple[int, ...], tokens: int) -> tuple[int, ...]:
    """A conversation's last answers with one more."""
    return (*recent, tokens)[-_CONVERSATION_TURNS:]


@dataclass
class OutputLengths:
    """Medians over tenants and over everyone; a conversation carries its own last answers."""

    _everyone: RunningMedian = field(default_factory=lambda: RunningMedian(_GLOBAL_TURNS))
    _tenants: OrderedDict[bytes, RunningMedian] = field(default_factory=OrderedDict)

    def expect(
        self,
        recent: tuple[int, ...],
        tenant: bytes,
        max_tokens: int | None,
        *,
        min_tokens: int = 0,
        exact: bool = False,
    ) -> int:
        """Expected output tokens, at least 1.

        recent: the conversation's last answers. exact: the client wants exactly `max_tokens` (`ignore_eos`).
        """
        if exact and max_tokens is not None:
            return max(1, max_tokens)
        expected = self._median(recent, tenant)
        if max_tokens is not None and max_tokens < expected:
            expected = max_tokens
        return max(1, expected, min_tokens)

    def learn(self, tenant: bytes, tokens: int) -> None:
        """An answer was so long."""
        self._everyone.add(tokens)
        median = self._tenants.get(tenant)
        if median is None:
            median = self._tenants[tenant] = RunningMedian(_TENANT_TURNS)
            if len(self._tenants) > _MAX_TENANTS:
                self._tenants.popitem(last=False)
        else:
            self._tenants.move_to_end(tenant)
        median.add(tokens)

    def _median(self, recent: tuple[int, ...], tenant: bytes) -> int:
        if recent:
            return sorted(recent)[(len(recent) - 1) // 2]
        median = self._tenants.get(tenant)
        known = (median.median if median else None) or self._everyone.median
        return PRIOR_TOKENS if known is None else known
