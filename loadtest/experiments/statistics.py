"""Means over seeds, and how sure they are.

Rule of this room: the unit is a run with one seed, never a turn (turns of a run are not independent). Two policies are
compared seed by seed, since they met the same traffic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lut.repeats import half_width

FEWEST = 3
"""Runs. With two, Student's t is above 12, and the interval says nothing."""


class Interval(NamedTuple):
    """half: of the 95 % confidence interval; NaN for fewer than two runs."""

    mean: float
    half: float
    runs: int

    @property
    def bar(self) -> float:
        """For plots and tables: 0 where there are too few runs for an interval that says something."""
        return self.half if self.runs >= FEWEST else 0.0

    @property
    def sure(self) -> bool:
        """Whether 0 lies outside."""
        return self.runs >= FEWEST and abs(self.mean) > self.half

    def __str__(self) -> str:
        return f"{self.mean:.3g} ± {self.bar:.2g}" if self.bar else f"{self.mean:.3g}"


NOTHING = Interval(math.nan, math.nan, 0)


def interval(values: Sequence[float | None]) -> Interval:
    """Of one value per seed; NOTHING when any is missing, which is a percentile that is endless."""
    known = [value for value in values if value is not None and not math.isnan(value)]
    if len(known) < len(values) or not known:
        return NOTHING
    half = half_width(known)
    return Interval(math.fsum(known) / len(known), half if half >= 0 else math.nan, len(known))


def paired(ours: Mapping[str, float | None], theirs: Mapping[str, float | None], *, relative: bool) -> Interval:
    """ours - theirs over the seeds that both have; relative: as a share of theirs."""
    differences: list[float | None] = []
    for seed in sorted(ours.keys() & theirs.keys()):
        one, other = ours[seed], theirs[seed]
        if one is None or other is None or (relative and other == 0):
            differences.append(None)
        else:
            differences.append((one - other) / other if relative else one - other)
    return interval(differences) if differences else NOTHING
