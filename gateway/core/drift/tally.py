"""What was measured in production, cell by cell and arm by arm, since it was last taken.

Rule of this room: sums and coarse histograms of bounded size; nothing of a single turn stays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from gateway.core.drift.regions import Place

MAX_CELLS = 4096
_STEP = math.log(1.05)
"""Two neighbouring buckets of a histogram differ by 5 %."""

_LEAST_S = 1e-5
_MOST_BUCKETS = 400


@dataclass(slots=True)
class Times:
    """Latencies of one kind."""

    count: int = 0
    total_s: float = 0.0
    _buckets: dict[int, int] = field(default_factory=dict)

    def add(self, seconds: float) -> None:
        self.count += 1
        self.total_s += seconds
        bucket = min(_MOST_BUCKETS, int(math.log(max(seconds, _LEAST_S) / _LEAST_S) / _STEP))
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1

    @property
    def mean_s(self) -> float | None:
        return self.total_s / self.count if self.count else None

    @property
    def p99_s(self) -> float | None:
        """From above, at most 5 % too much, and never below the mean."""
        left = self.count - math.ceil(0.99 * self.count)
        for bucket in sorted(self._buckets, reverse=True):
            left -= self._buckets[bucket]
            if left < 0:
                return max(_LEAST_S * math.exp((bucket + 1) * _STEP), self.total_s / self.count)
        return None


@dataclass(slots=True)
class CellTally:
    """One arm in one cell. turns: that ended, one way or the other; good: that ended well; rate: sum of theirs."""

    turns: int = 0
    good: int = 0
    rate: float = 0.0
    ttft: Times = field(default_factory=Times)
    tpot: Times = field(default_factory=Times)


@dataclass
class Tally:
    """Cells by (node assignment, place, arm). left_out: turns of cells for which there was no room."""

    cells: dict[tuple[str, Place, str], CellTally] = field(default_factory=dict)
    left_out: int = 0

    def count(
        self,
        assignment: str,
        place: Place,
        arm: str,
        rate: float,
        *,
        good: bool,
        ttft_s: float | None = None,
        tpot_s: float | None = None,
    ) -> None:
        """A turn ended. Seconds, None where it was not measured."""
        key = (assignment, place, arm)
        cell = self.cells.get(key)
        if cell is None:
            if len(self.cells) >= MAX_CELLS:
                self.left_out += 1
                return
            cell = self.cells[key] = CellTally()
        cell.turns += 1
        cell.rate += rate
        cell.good += good
        if good and ttft_s is not None:
            cell.ttft.add(ttft_s)
        if good and tpot_s is not None:
            cell.tpot.add(tpot_s)

    def take(self) -> dict[tuple[str, Place, str], CellTally]:
        """Everything since the last time, and begin anew."""
        taken, self.cells = self.cells, {}
        return taken
