"""What a policy asks before a decision and tells after it.

Rule of this room: nothing is changed while no alarm is on, so that a table that is right costs nothing; a few
microseconds per turn that is told.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.core.drift.detect import Series, threshold
from gateway.core.drift.explore import Explorer
from gateway.core.drift.regions import Corrections, Metric, Place
from lut.table import ARMS, Arm, Cell, Table

METRICS: tuple[Metric, ...] = ("ttft", "tpot")
MAX_CHANGES = 50
WARM_UP = 300


@dataclass(frozen=True, slots=True)
class DriftRules:
    """correct: decisions use what was seen, while an alarm is on; else it is only told.

    half_life_s: of what was seen. tolerance: a quarter (0.25) slower or faster than the table is no drift.
    false_alarms: per day, over all series. explore: share of the turns, at most.
    """

    correct: bool = False
    half_life_s: float = 120.0
    tolerance: float = 0.25
    false_alarms: float = 0.01
    explore: float = 0.0


class Change(NamedTuple):
    """An alarm that went on or off. ratio: observed ÷ predicted, of late."""

    arm: str
    metric: Metric
    drifting: bool
    ratio: float
    at_s: float

    def __str__(self) -> str:
        what = "first tokens" if self.metric == "ttft" else "times per token"
        if self.drifting:
            return (
                f"the table no longer describes this cluster: {what} on {self.arm} are {self.ratio:.2f} times its word"
            )
        return f"{what} on {self.arm} are as the table says again"


@dataclass
class Drift:
    """All that is known of how far the table is off."""

    rules: DriftRules = field(default_factory=DriftRules)
    changes: list[Change] = field(default_factory=list)
    observed: int = 0

    def __post_init__(self) -> None:
        self.corrections = Corrections(self.rules.half_life_s)
        self.explorer = Explorer(self.rules.explore if self.rules.correct else 0.0)
        self.series: dict[tuple[str, Metric], Series] = {
            (arm, metric): self._new_series() for arm in ARMS for metric in METRICS
        }
        self.drifting = False

    @property
    def correcting(self) -> bool:
        """Whether decisions differ from the table's now."""
        return self.drifting and self.rules.correct

    @property
    def exploring(self) -> bool:
        """Whether a turn may be sent the other way. Not at first, when every route looks as if it were never taken."""
        return self.explorer.share > 0 and self.observed >= WARM_UP

    def reconfigure(self, rules: DriftRules) -> None:
        """Other rules; what was seen stays."""
        self.rules = rules
        self.corrections.half_life_s = rules.half_life_s
        self.explorer.share = rules.explore if rules.correct else 0.0
        fresh = self._new_series()
        for series in self.series.values():
            series.tolerance, series.limit = fresh.tolerance, fresh.limit

    def table_changed(self) -> None:
        """Another table: what was seen is of no use against it."""
        self.__post_init__()

    def observe(
        self,
        table: Table,
        arm: str,
        predicted: Arm,
        place: Place,
        ttft_s: float | None,
        tpot_s: float | None,
        now_s: float,
    ) -> list[Change]:
        """A turn went by this arm and took so long; gives the alarms that went on or off by it."""
        self.observed += 1
        found = []
        seen: tuple[tuple[Metric, float | None, float], ...] = (
            ("ttft", ttft_s, predicted.ttft_mean),
            ("tpot", tpot_s, predicted.tpot_mean),
        )
        for metric, value, expected in seen:
            if value is None or not value > 0 or not expected > 0:
                continue
            ratio = value / expected
            self.corrections.add(metric, arm, table.assignment, place, ratio, now_s)
            series = self.series[arm, metric]
            if series.add(ratio, now_s):
                found.append(Change(arm, metric, series.drifting, math.exp(series.level), now_s))
        if found:
            self.drifting = any(series.drifting for series in self.series.values())
            self.changes = [*self.changes, *found][-MAX_CHANGES:]
        return found

    def corrected(self, cell: Cell, assignment: str, place: Place) -> Cell:
        """The table's word on a point, corrected by what was seen."""
        readback = None if cell.readback is None else self._arm(cell.readback, "readback", assignment, place)
        return cell._replace(
            pd=self._arm(cell.pd, "pd", assignment, place),
            local=self._arm(cell.local, "local", assignment, place),
            readback=readback,
        )

    def measured(self, arm: str) -> float:
        """How many turns of late went by that arm."""
        return self.corrections.weight("ttft", arm)

    def _arm(self, arm: Arm, name: str, assignment: str, place: Place) -> Arm:
        ttft = self.factor(name, "ttft", assignment, place)
        tpot = self.factor(name, "tpot", assignment, place)
        if ttft == 1.0 == tpot:
            return arm
        ttft_mean, ttft_p99, tpot_mean, tpot_p99, success, samples, ttft_ci, tpot_ci, origin = arm
        return Arm(
            ttft_mean * ttft,
            ttft_p99 * ttft,
            tpot_mean * tpot,
            tpot_p99 * tpot,
            success,
            samples,
            ttft_ci * ttft if ttft_ci > 0 else ttft_ci,
            tpot_ci * tpot if tpot_ci > 0 else tpot_ci,
            origin,
        )

    def factor(self, arm: str, metric: Metric, assignment: str = "", place: Place | None = None) -> float:
        """What the table's number is multiplied by, there or for the arm as a whole; 1 where nothing has changed."""
        series = self.series[arm, metric]
        if not series.drifting:
            return 1.0
        return self.corrections.factor(metric, arm, assignment, place, math.exp(series.reference))

    def _new_series(self) -> Series:
        limit = threshold(self.rules.false_alarms, len(ARMS) * len(METRICS))
        return Series(math.log1p(self.rules.tolerance), limit)
