"""The runs of the section on drift: the old table, the correction, the best table; and nothing happening at all.

Rule of this room: regret is against the policy with the best fixed table that was found for the world after the change,
in the same traffic (common random numbers) and the same minutes; what both pay cancels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from gateway.core.drift.monitor import DriftRules
from gateway.core.policies import MeasuredTable
from gateway.core.weights import Weights
from loadtest.experiments.run import play, set_up
from loadtest.experiments.slo.best import Fixed, Search, Stretch, find, stretch
from loadtest.experiments.slo.oracle import FOLDER, Regime, table_for
from loadtest.experiments.slo.shifts import Change
from loadtest.experiments.statistics import Interval, interval
from loadtest.experiments.sweep import run_many

RULES = DriftRules(correct=True, explore=0.01, false_alarms=0.1)
ALLOWED_S = 300.0
_SETTLED_S = 60.0


@dataclass(frozen=True, slots=True)
class Times:
    """change_s: when it happens. watched_s: for how long the time after ALLOWED_S is looked at."""

    change_s: float = 240.0
    watched_s: float = 180.0

    @property
    def end_s(self) -> float:
        return self.change_s + ALLOWED_S + self.watched_s


@dataclass(frozen=True, slots=True)
class Played:
    """One run. stretches: before the change, and each minute after it; late: after ALLOWED_S; all: the whole run.
    alarm_s: from the change to the first alarm after it, None without; early: alarms before it."""

    seed: str
    stretches: tuple[Stretch, ...]
    late: Stretch
    all: Stretch
    alarm_s: float | None = None
    early: int = 0


@dataclass(frozen=True, slots=True)
class Arm:
    """One run to be. tables: of policy ppd, None for another. changed: whether the change happens."""

    change: Change
    times: Times
    seed: str
    tables: Path | None
    policy: str = "ppd"
    drift: DriftRules | None = None
    changed: bool = True


def played(arm: Arm) -> Played:
    """Run one."""
    times, at_s = arm.times, arm.times.change_s
    spec = arm.change.spec(
        f"drift/{arm.seed}",
        times.end_s,
        at_s=at_s if arm.changed else None,
        policy=arm.policy,
        tables=arm.tables,
        drift=arm.drift,
    )
    stage = set_up(spec)
    turns = play(stage).turns
    starts = [at_s + 60.0 * minute for minute in range(math.ceil((times.end_s - at_s) / 60.0))]
    policy = stage.gate.policy
    drift = policy.drift if isinstance(policy, MeasuredTable) else None
    alarms = [] if drift is None else [change.at_s - at_s for change in drift.changes if change.drifting]
    return Played(
        arm.seed,
        (stretch(turns, _SETTLED_S, at_s), *(stretch(turns, start, start + 60.0) for start in starts)),
        stretch(turns, at_s + ALLOWED_S, times.end_s),
        stretch(turns, _SETTLED_S, times.end_s),
        min((alarm for alarm in alarms if alarm >= 0), default=None),
        sum(alarm < 0 for alarm in alarms),
    )


def cost(found: Stretch, against: Stretch, weights: Weights) -> float:
    """How much worse than `against`, as a share: the two means, weighted as the policy weighs them."""
    ttft, tpot = found.ttft_s / against.ttft_s - 1, found.tpot_s / against.tpot_s - 1
    return (weights.w_ttft * ttft + weights.w_tpot * tpot) / (weights.w_ttft + weights.w_tpot)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Runs of one change by seed. found: the fixed tables, the best first. without: nothing is done about drift."""

    change: Change
    found: list[Fixed]
    without: list[Played]
    corrected: list[Played]
    oracle: list[Played]

    @property
    def regrets(self) -> tuple[Interval, Interval]:
        """After ALLOWED_S: without correction and with it."""
        return (self._late(self.without), self._late(self.corrected))

    def _late(self, runs: list[Played]) -> Interval:
        pairs = zip(runs, self.oracle, strict=True)
        return interval([cost(run.late, best.late, self.change.weights) for run, best in pairs])

    @property
    def falls_by(self) -> float:
        """By which share of it regret has fallen after ALLOWED_S."""
        without, corrected = self.regrets
        return 1 - corrected.mean / without.mean if without.mean > 0 else math.nan


@dataclass(frozen=True, slots=True)
class Quiet:
    """Runs in which nothing changes, by seed: with the correction and without."""

    corrected: list[Played]
    without: list[Played]
    weights: Weights

    @property
    def cost(self) -> Interval:
        pairs = zip(self.corrected, self.without, strict=True)
        return interval([cost(run.all, plain.all, self.weights) for run, plain in pairs])


def arms_of(change: Change, times: Times, before: Path, best: Fixed, seed: str, folder: Path) -> tuple[Arm, Arm, Arm]:
    """With the old table alone, with the correction, with the best table."""
    base = Arm(change, times, seed, before)
    return base, replace(base, drift=RULES), replace(base, policy=best.policy, tables=best.path(folder))


def outcomes(
    known: Sequence[Change], search: Search, times: Times, seeds: Sequence[str], jobs: int | None, folder: Path = FOLDER
) -> list[Outcome]:
    """Look for the best tables and run everything. Raises ExperimentError, TableError."""
    for change in known:
        for regime in (Regime(), change.after):
            table_for(change.assignment, change.hardware, regime, folder=folder, plan=change.plan, jobs=jobs)
    fixed = run_many(partial(find, search=search, folder=folder, jobs=1), known, jobs)
    arms: list[Arm] = []
    for change, found in zip(known, fixed, strict=True):
        before = table_for(change.assignment, change.hardware, Regime(), folder=folder, plan=change.plan)
        for seed in seeds:
            arms += arms_of(change, times, before, found[0], seed, folder)
    runs, each = run_many(played, arms, jobs), 3 * len(seeds)
    ours = (runs[index * each : (index + 1) * each] for index in range(len(known)))
    return [
        Outcome(change, found, some[0::3], some[1::3], some[2::3])
        for change, found, some in zip(known, fixed, ours, strict=True)
    ]


def quiet(change: Change, times: Times, seeds: Sequence[str], jobs: int | None, before: Path) -> Quiet:
    """What the correction costs while nothing changes."""
    base = Arm(change, times, "", before, changed=False)
    arms = [replace(base, seed=seed, drift=drift) for seed in seeds for drift in (RULES, None)]
    runs = run_many(played, arms, jobs)
    return Quiet(runs[0::2], runs[1::2], change.weights)
