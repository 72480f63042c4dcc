"""Corrections of the table's latencies: how many times what it predicts is seen of late, region by region.

Rule of this room: little evidence changes little. A cell's mean ratio is drawn towards its neighbourhood's, that one
to its arm's, the arm's to 1 (for times per token to what both arms show together: whatever the route, the tokens are
made by decode pods). All of it fades, with a half-life, back to the table; a single turn moves nothing far, and no
correction leaves its bounds.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Literal

BOUND = 8.0
"""A correction is at most so many times, and at least one over it."""

PULL = 20.0
"""The weight, in turns, with which each level draws the one below it."""

MAX_REGIONS = 4096
_CLIP = 4.0
_SCARCE = 0.05

Metric = Literal["ttft", "tpot"]
Place = tuple[int, int, int, int]
Key = tuple[object, ...]


class Mean:
    """A mean whose parts fade."""

    __slots__ = ("at_s", "total", "weight")

    def __init__(self, weight: float = 0.0, total: float = 0.0, at_s: float = 0.0) -> None:
        self.weight = weight
        self.total = total
        self.at_s = at_s

    def fade(self, now_s: float, half_life_s: float) -> None:
        """Let what is there age until now."""
        if now_s > self.at_s:
            kept = 0.5 ** ((now_s - self.at_s) / half_life_s)
            self.weight *= kept
            self.total *= kept
            self.at_s = now_s

    def drawn(self, prior: float, now_s: float, half_life_s: float) -> float:
        """The mean, drawn to `prior` with the weight of PULL turns."""
        kept = 0.5 ** ((now_s - self.at_s) / half_life_s) if now_s > self.at_s else 1.0
        return (self.total * kept + PULL * prior) / (self.weight * kept + PULL)


@dataclass
class Corrections:
    """All of them. half_life_s: of what was seen."""

    half_life_s: float
    now_s: float = 0.0
    _means: OrderedDict[Key, Mean] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._means)

    def add(self, metric: Metric, arm: str, assignment: str, place: Place, ratio: float, now_s: float) -> None:
        """A turn took `ratio` times what the table says of its cell."""
        self.now_s = max(self.now_s, now_s)
        whole = self.factor(metric, arm)
        ratio = min(ratio, _CLIP * whole)
        for key in _keys(metric, arm, assignment, place):
            mean = self._means.get(key)
            if mean is None:
                mean = self._means[key] = Mean(at_s=now_s)
                if len(self._means) > MAX_REGIONS:
                    self._drop_one()
            elif len(key) > 2:
                self._means.move_to_end(key)
            mean.fade(now_s, self.half_life_s)
            mean.weight += 1.0
            mean.total += ratio

    def factor(
        self, metric: Metric, arm: str, assignment: str = "", place: Place | None = None, reference: float = 1.0
    ) -> float:
        """What to multiply the table's number by; of the arm as a whole where no place is given.

        reference: the ratio that was seen while nothing had changed, to which all is drawn, and which counts as 1.
        """
        found = reference
        means, now_s, half_life_s = self._means, self.now_s, self.half_life_s
        for key in _keys(metric, arm, assignment, place):
            mean = means.get(key)
            if mean is not None:
                found = mean.drawn(found, now_s, half_life_s)
        return min(BOUND, max(1 / BOUND, found / reference))

    def weight(self, metric: Metric, arm: str) -> float:
        """How many turns of late speak for an arm."""
        mean = self._means.get((metric, arm))
        if mean is None:
            return 0.0
        return float(mean.weight * 0.5 ** (max(0.0, self.now_s - mean.at_s) / self.half_life_s))

    def dump(self) -> list[list[object]]:
        """As plain values; ages instead of times."""
        return [
            [[list(part) if isinstance(part, tuple) else part for part in key], m.weight, m.total, self.now_s - m.at_s]
            for key, m in self._means.items()
            if m.weight > _SCARCE
        ]

    def load(self, rows: list[tuple[list[object], float, float, float]], now_s: float) -> None:
        """What `dump` gave. Raises ValueError for what it cannot have given."""
        self.now_s = max(self.now_s, now_s)
        for parts, weight, total, age_s in rows[:MAX_REGIONS]:
            key = tuple(tuple(part) if isinstance(part, list) else part for part in parts)
            if not (weight >= 0 and total >= 0 and age_s >= 0) or not key:
                raise ValueError("a region's numbers are not of this program")
            self._means[key] = Mean(weight, total, now_s - age_s)

    def _drop_one(self) -> None:
        """The region of a table that was not used for the longest time."""
        for key in self._means:
            if len(key) > 2:
                del self._means[key]
                return


def _keys(metric: Metric, arm: str, assignment: str, place: Place | None) -> tuple[Key, ...]:
    """From the widest region to the smallest."""
    wide: tuple[Key, ...] = ((metric,), (metric, arm)) if metric == "tpot" else ((metric, arm),)
    if place is None:
        return wide
    c, i, o, q = place
    near = (c >> 1, i >> 1, o >> 1, q >> 1)
    return (*wide, (metric, arm, assignment, "near", near), (metric, arm, assignment, place))
