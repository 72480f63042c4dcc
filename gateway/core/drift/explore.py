"""Which turns take another route than the better one, so that it stays measured.

Rule of this room: a budget that is never exceeded, a hash in place of dice (two gateways and a replay agree), close
calls before clear ones, and nothing when that route was measured enough of late.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import xxhash

ENOUGH = 30.0
"""Turns of late by a route that need no exploring."""

_CLOSE = 0.3
_MOST_SAVED = 3.0
_CLOSE_CALLS = 4.0


@dataclass(slots=True)
class Explorer:
    """share: of the turns that the policy decides, at most."""

    share: float
    explored: int = 0
    _saved: float = 0.0

    def wants(self, key: bytes, turn: int, score: float, measured: float) -> bool:
        """Whether this turn is to take the other route. Counts it as one that was decided.

        key: its conversation's. score: S. measured: turns of late by the other route.
        """
        if self.share <= 0:
            return False
        self._saved = min(_MOST_SAVED, self._saved + self.share)
        if self._saved < 1 or measured >= ENOUGH:
            return False
        chance = self.share * (1 + _CLOSE_CALLS * math.exp(-abs(score) / _CLOSE)) * _MOST_SAVED
        drawn = xxhash.xxh3_64_intdigest(key + turn.to_bytes(8, "big") + b"explore") / 2**64
        if drawn >= chance:
            return False
        self._saved -= 1
        self.explored += 1
        return True
