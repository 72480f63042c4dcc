"""A table that is no longer right: prefill hardware twice as slow, and traffic that has shifted.

Rule of this room: regret is against the policy with the oracle's table in the same traffic (common random numbers), in
the same minutes; what both pay cancels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from gateway.core.drift.monitor import DriftRules
from gateway.core.policies import MeasuredTable
from gateway.core.weights import Weights
from loadtest.experiments.gate import Knobs
from loadtest.experiments.outcomes import Fate, TurnRecord
from loadtest.experiments.run import Hardware, Spec, play, set_up
from loadtest.experiments.scenario import ChangeRate, Event, Slow
from loadtest.experiments.slo.oracle import PLAN, Regime, table_for
from loadtest.experiments.slo.section import Effort, Finding, Section, Told
from loadtest.experiments.statistics import Interval, interval
from loadtest.experiments.sweep import run_many
from loadtest.experiments.tables import Plan
from loadtest.experiments.traffic import Extent, Stream
from loadtest.experiments.workloads import LongTurns

ASSIGNMENT = "1P_3D"
BRIEFS = LongTurns("briefs", 1, 6000, 1, 64, spread=0.2)
RULES = DriftRules(correct=True, explore=0.01, false_alarms=0.1)
DOCUMENTS = LongTurns("documents", 5, 1024, 768, 128, think_s=3.0, spread=0.4)
ALLOWED_S = 300.0
FALLS_BY = 0.8
COSTS_AT_MOST = 0.01
TO_REGRET = 0.1
"""An oracle's table is a yardstick where the old one is this much worse at least, and nothing this much better."""
_TALKS, _BRIEFS = "talks", "briefs"
_GIVEN_UP_S = 30.0


@dataclass(frozen=True, slots=True)
class Change:
    """before, after: what the tables are measured in. talks: the conversations that count, `rate` begin per second."""

    name: str
    what: str
    before: Regime
    after: Regime
    talks: LongTurns
    rate: float
    weights: Weights
    plan: Plan
    events: tuple[Event, ...] = ()


@dataclass(frozen=True, slots=True)
class Times:
    """change_s: when it happens. watched_s: for how long the time after ALLOWED_S is looked at."""

    change_s: float = 240.0
    watched_s: float = 180.0

    @property
    def end_s(self) -> float:
        return self.change_s + ALLOWED_S + self.watched_s


def changes(times: Times) -> tuple[Change, ...]:
    at_s = times.change_s
    busy = Regime(beside=BRIEFS, rate=2.0)
    return (
        Change(
            "hardware",
            "the prefill pod becomes twice as slow",
            Regime(),
            Regime(slow=(("p0", 2.0),)),
            talks=DOCUMENTS,
            rate=2.0,
            weights=Weights(1.0, 2.0),
            plan=PLAN,
            events=(Slow(at_s, "p0", 2.0),),
        ),
        Change(
            "traffic",
            f"one-turn conversations of {BRIEFS.first_tokens:,} tokens come as well, {busy.rate:g} a second",
            Regime(),
            busy,
            talks=DOCUMENTS,
            rate=2.0,
            weights=Weights(1.0, 2.0),
            plan=PLAN,
            events=(ChangeRate(at_s, busy.rate, _BRIEFS),),
        ),
    )


class Stretch(NamedTuple):
    """Later turns of some minutes: mean seconds, failed turns with what the client gave them."""

    ttft_s: float
    tpot_s: float
    turns: int
    local: float


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
    explored: int = 0


@dataclass(frozen=True, slots=True)
class Arm:
    """tables: of policy ppd. changed: whether the change happens."""

    change: Change
    times: Times
    tables: Path
    drift: DriftRules | None
    changed: bool
    seed: str
    hardware: Hardware = field(default_factory=Hardware)


def spec_of(arm: Arm) -> Spec:
    """The experiment of an arm."""
    streams = (Stream(arm.change.talks, arm.change.rate, tenant=_TALKS), Stream(BRIEFS, 0.0, tenant=_BRIEFS))
    return Spec(
        assignment=ASSIGNMENT,
        policy="ppd",
        streams=streams,
        extent=Extent(until_s=arm.times.end_s),
        seed=f"drift/{arm.seed}",
        hardware=arm.hardware,
        knobs=Knobs(weights=arm.change.weights),
        events=arm.change.events if arm.changed else (),
        tables=arm.tables,
        drift=arm.drift,
    )


def played(arm: Arm) -> Played:
    """Run one."""
    stage = set_up(spec_of(arm))
    turns = [turn for turn in play(stage).turns if turn.turn > 1 and turn.tenant == _TALKS]
    times, at_s = arm.times, arm.times.change_s
    starts = [at_s + 60.0 * minute for minute in range(math.ceil((times.end_s - at_s) / 60.0))]
    policy = stage.gate.policy
    drift = policy.drift if isinstance(policy, MeasuredTable) else None
    alarms = [] if drift is None else [change.at_s - at_s for change in drift.changes if change.drifting]
    return Played(
        arm.seed,
        (_stretch(turns, 60.0, at_s), *(_stretch(turns, start, start + 60.0) for start in starts)),
        _stretch(turns, at_s + ALLOWED_S, times.end_s),
        _stretch(turns, 60.0, times.end_s),
        min((alarm for alarm in alarms if alarm >= 0), default=None),
        sum(alarm < 0 for alarm in alarms),
        0 if drift is None else drift.explorer.explored,
    )


def _stretch(turns: Sequence[TurnRecord], begin_s: float, end_s: float) -> Stretch:
    found = [turn for turn in turns if begin_s <= turn.at_s < end_s]
    good = [turn for turn in found if turn.fate is Fate.GOOD]
    ttft = [turn.ttft_s if turn.fate is Fate.GOOD else _GIVEN_UP_S for turn in found]
    tpot = [turn.tpot_s for turn in good if not math.isnan(turn.tpot_s)]
    local = sum(turn.route == "local" for turn in found) / max(1, len(found))
    return Stretch(math.fsum(ttft) / max(1, len(ttft)), math.fsum(tpot) / max(1, len(tpot)), len(found), local)


def cost(stretch: Stretch, against: Stretch, weights: Weights) -> float:
    """How much worse than `against`, as a share: the two means, weighted as the policy weighs them."""
    ttft, tpot = stretch.ttft_s / against.ttft_s - 1, stretch.tpot_s / against.tpot_s - 1
    return (weights.w_ttft * ttft + weights.w_tpot * tpot) / (weights.w_ttft + weights.w_tpot)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Runs of one change by seed. without: nothing is done about drift; quiet, quiet_without: no change happens."""

    change: Change
    without: list[Played]
    corrected: list[Played]
    oracle: list[Played]
    quiet: list[Played]
    quiet_without: list[Played]

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

    @property
    def quiet_cost(self) -> Interval:
        """What it costs while nothing has changed."""
        pairs = zip(self.quiet, self.quiet_without, strict=True)
        return interval([cost(run.all, plain.all, self.change.weights) for run, plain in pairs])


def outcomes(effort: Effort, times: Times | None = None) -> list[Outcome]:
    """Run everything. Raises ExperimentError, TableError."""
    times = times or (Times(watched_s=120.0) if effort.short else Times())
    seeds = [str(seed) for seed in range(1 if effort.short else effort.seeds)]
    arms: list[Arm] = []
    known = changes(times)
    for change in known:
        before, after = (
            table_for(ASSIGNMENT, Hardware(), regime, plan=change.plan, jobs=effort.jobs)
            for regime in (change.before, change.after)
        )
        for seed in seeds:
            base = Arm(change, times, before, None, True, seed)
            arms += [base, replace(base, drift=RULES), replace(base, tables=after)]
            arms += [replace(base, drift=RULES, changed=False), replace(base, changed=False)]
    runs = run_many(played, arms, effort.jobs)
    found = []
    for index, change in enumerate(known):
        ours = runs[index * 5 * len(seeds) : (index + 1) * 5 * len(seeds)]
        without, corrected, oracle, quiet, plain = (ours[kind::5] for kind in range(5))
        found.append(Outcome(change, without, corrected, oracle, quiet, plain))
    return found


def run(effort: Effort) -> Told:
    """The section of the report."""
    findings, text = [], [_ABOUT]
    for outcome in outcomes(effort):
        without, corrected = outcome.regrets
        falls, quiet = outcome.falls_by, outcome.quiet_cost
        measured = f"from {without.mean:.1%} to {corrected.mean:.1%}: "
        measured += f"by {falls:.0%}" if corrected.mean > 0 else "all of it, and further"
        yardstick = without.mean >= TO_REGRET and corrected.mean >= -TO_REGRET
        name = outcome.change.name
        findings.append(
            Finding(
                f"{outcome.change.what}: regret falls by {FALLS_BY:.0%} or more within {ALLOWED_S / 60:g} minutes",
                measured if yardstick else f"{measured}; too near to the oracle's table, or better: it shows nothing",
                yardstick and falls >= FALLS_BY,
            )
        )
        findings.append(
            Finding(
                f"{name}, nothing changes: it costs {COSTS_AT_MOST:.0%} at most",
                f"{quiet.mean:+.2%}" + ("" if math.isnan(quiet.half) else f" ± {quiet.half:.2%}"),
                quiet.mean <= COSTS_AT_MOST,
            )
        )
        text += ["", _table(outcome)]
    return Told(findings, text)


_ABOUT = (
    f"`{ASSIGNMENT}`, policy `ppd` with the table measured before the change, with and without `drift.mode = correct` "
    f"(exploring up to {RULES.explore:.0%}, {RULES.false_alarms:g} false alarms a day), and with an oracle's table, "
    "measured after the change. Regret: how much the later turns' means of TTFT and TPOT, weighted, are above those "
    "with the oracle's table in the same traffic; below 0 it is better than with that table, which was measured with "
    "all turns on one route. Minutes after the change."
)


def _table(outcome: Outcome) -> str:
    """Minute by minute, means over the seeds."""
    change = outcome.change
    lines = [f"**{change.what[0].upper()}{change.what[1:]}.**", ""]
    lines.append(
        f"Conversations: {change.talks.origin}; {change.rate:g} begin per second; weights "
        f"ttft={change.weights.w_ttft:g},tpot={change.weights.w_tpot:g}."
    )
    alarms = [run.alarm_s for run in outcome.corrected]
    heard = [alarm for alarm in alarms if alarm is not None]
    said = f"after {sum(heard) / len(heard):.0f} s on average" if heard else "never"
    early = sum(run.early for run in outcome.corrected) + sum(run.early for run in outcome.quiet)
    lines.append("")
    lines.append(f"First alarm {said} ({len(heard)} of {len(alarms)} runs); {early} alarms before the change.")
    lines += [
        "",
        "| minute | TTFT ms: old table | corrected | oracle "
        "| local: old table | corrected | oracle | regret: old table | corrected |",
    ]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    weights = outcome.change.weights
    kinds = (outcome.without, outcome.corrected, outcome.oracle)
    for index in range(len(outcome.oracle[0].stretches)):
        ttft = [_mean([1000 * run.stretches[index].ttft_s for run in kind]) for kind in kinds]
        local = [_mean([run.stretches[index].local for run in kind]) for kind in kinds]
        regret = [
            _mean(
                [
                    cost(a.stretches[index], b.stretches[index], weights)
                    for a, b in zip(kind, outcome.oracle, strict=True)
                ]
            )
            for kind in kinds[:2]
        ]
        cells = [f"{value:.0f}" for value in ttft] + [f"{value:.0%}" for value in [*local, *regret]]
        lines.append(f"| {'before' if index == 0 else index} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


SECTION = Section("drift", "A table that is no longer right", run)
