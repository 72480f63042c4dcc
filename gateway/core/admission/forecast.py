"""How long a first token will take, from what was seen of late.

Rule of this room: two things are measured: what a request takes once it is let in, by the size of what must be
computed, and how many tokens are let through per second. Everything else is arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass, field

FRESH_S = 10.0
"""What was seen longer ago than this says nothing of now."""
_WEIGHT_OF_NEWS = 0.1
_SLICES = 10
_MAX_BUCKETS = 32


@dataclass(slots=True)
class _Seen:
    mean_s: float
    at_s: float


@dataclass(slots=True)
class FirstTokens:
    """Exponential means of the time to the first token after a request was let in, by powers of two of new tokens."""

    _by_size: dict[int, _Seen] = field(default_factory=dict)

    def learn(self, new_tokens: int, ttft_s: float, now_s: float) -> None:
        size = min(_MAX_BUCKETS, max(0, new_tokens).bit_length())
        seen = self._by_size.get(size)
        if seen is None or now_s - seen.at_s > FRESH_S:
            self._by_size[size] = _Seen(ttft_s, now_s)
        else:
            seen.mean_s += _WEIGHT_OF_NEWS * (ttft_s - seen.mean_s)
            seen.at_s = now_s

    def expect(self, new_tokens: int, now_s: float) -> float | None:
        """Seconds; None when nothing of about that size was seen of late."""
        size = min(_MAX_BUCKETS, max(0, new_tokens).bit_length())
        for near in (size, size - 1, size + 1):
            seen = self._by_size.get(near)
            if seen is not None and now_s - seen.at_s <= FRESH_S:
                return seen.mean_s
        return None


@dataclass(slots=True)
class Throughput:
    """Tokens of the requests that ended, per second, over a sliding window."""

    window_s: float = 10.0
    _counts: list[float] = field(default_factory=lambda: [0.0] * _SLICES)
    _slot: int = -1
    _began: int = -1

    def count(self, tokens: float, now_s: float) -> None:
        self._advance(now_s)
        self._counts[self._slot % _SLICES] += tokens

    def per_s(self, now_s: float) -> float:
        """0 when nothing ended in the window. In the first seconds the window is as long as something was seen."""
        if self._slot < 0:
            return 0.0
        self._advance(now_s)
        seen = min(_SLICES, self._slot - self._began + 1)
        return sum(self._counts) / (seen * self.window_s / _SLICES)

    def _advance(self, now_s: float) -> None:
        slot = int(now_s / (self.window_s / _SLICES))
        if self._slot < 0:
            self._slot = self._began = slot
        for passed in range(self._slot + 1, min(slot, self._slot + _SLICES) + 1):
            self._counts[passed % _SLICES] = 0.0
        self._slot = max(self._slot, slot)
