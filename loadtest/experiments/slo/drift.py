"""A table that is no longer right: slower hardware, other traffic, both; with and without the correction.

Rule of this room: every number in the text is from the runs; what was tried is shown whatever came of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from loadtest.experiments.run import Hardware
from loadtest.experiments.slo.best import Search
from loadtest.experiments.slo.drift_runs import ALLOWED_S, RULES, Outcome, Played, Quiet, Times, cost, outcomes, quiet
from loadtest.experiments.slo.oracle import Regime, table_for
from loadtest.experiments.slo.section import Effort, Finding, Section, Told
from loadtest.experiments.slo.shifts import ASSIGNMENT, BUSY, PLAN, changes, others

SEARCH = Search()
QUICK = Search(rounds=2, seeds=1, policies=("local",))
"""For what was only tried."""

FALLS_BY = 0.8
COSTS_AT_MOST = 0.01
TO_REGRET = 0.15
"""The best table found is a yardstick where the old one is this much worse at least."""


def run(effort: Effort) -> Told:
    """The section of the report. Raises ExperimentError, TableError."""
    times = Times(watched_s=120.0) if effort.short else Times()
    seeds = [str(seed) for seed in range(1 if effort.short else effort.seeds)]
    known, search = changes(), QUICK if effort.short else SEARCH
    main = outcomes(known, search, times, seeds, effort.jobs)
    tried = [] if effort.short else outcomes(others(), QUICK, times, seeds[:1], effort.jobs)
    before = table_for(ASSIGNMENT, Hardware(), Regime(), plan=PLAN)
    nothing = quiet(known[0], times, seeds, effort.jobs, before)
    return told(main, tried, nothing)


def told(main: Sequence[Outcome], tried: Sequence[Outcome], nothing: Quiet) -> Told:
    """What the runs say."""
    at_rest = nothing.cost
    findings = [_finding(outcome) for outcome in main]
    findings.append(
        Finding(
            f"nothing changes: the correction costs {COSTS_AT_MOST:.0%} at most",
            f"{at_rest.mean:+.2%}" + ("" if math.isnan(at_rest.half) else f" ± {at_rest.half:.2%}"),
            at_rest.mean <= COSTS_AT_MOST,
        )
    )
    early = sum(run.early for run in nothing.corrected)
    text = [*_ABOUT, f"Nothing changes: {early} alarms in {len(nothing.corrected)} runs."]
    for outcome in main:
        text += ["", *_section(outcome)]
    if tried:
        text += ["", *_tried([*main, *tried])]
    return Told(findings, text)


def _finding(outcome: Outcome) -> Finding:
    without, corrected = outcome.regrets
    falls = outcome.falls_by
    measured = f"from {without.mean:.1%} to {corrected.mean:.1%}: "
    measured += f"by {falls:.0%}" if corrected.mean > 0 else "all of it"
    if without.mean < TO_REGRET:
        measured += "; the old table is too near to the best one found: it shows nothing"
    return Finding(
        f"{outcome.change.what}: regret falls by {FALLS_BY:.0%} or more within {ALLOWED_S / 60:g} minutes",
        measured,
        without.mean >= TO_REGRET and falls >= FALLS_BY,
    )


_ABOUT = (
    f"`{ASSIGNMENT}`, policy `ppd` with the table measured before the change, with and without `drift.mode = correct` "
    f"(exploring up to {RULES.explore:.0%}, {RULES.false_alarms:g} false alarms a day). Regret: how much the later "
    "turns' means of TTFT and TPOT, weighted, are above those with the best fixed table in the same traffic; below 0 "
    "it is better than that table. The line `before` is against that table too, in the world as it was; it need not be "
    "0, because regret is relative to the best table's latencies and S to those through P.",
    "",
    "The best fixed table is looked for in the world after the change, on seeds of its own: the old table; the table "
    "that profiling again gives, with all turns on one route; tables learnt one from the other, by deciding with one "
    f"while {SEARCH.share:.0%} of the turns take the other route and writing down what both took; the last of them "
    f"with the way through P made {SEARCH.toll:g} times as long; and one route for all. The one with the least mean "
    "logarithm of both latencies, weighted, is the yardstick.",
    "",
    f"The traffic is chosen by what it takes of the prefill pods' time, which no axis of a table shows: {BUSY:.0%}, as "
    f"if they had become half as fast. The weights are such that the old table's S leans to P in the cells of this "
    "traffic, and that of the slower pods to D; a tie keeps a conversation's last route, and turn 1 goes to P. Other "
    "traffic that was tried stands at the end.",
    "",
)


def _section(outcome: Outcome) -> list[str]:
    change = outcome.change
    alarms = [run.alarm_s for run in outcome.corrected]
    heard = [alarm for alarm in alarms if alarm is not None]
    said = f"after {_mean(heard):.0f} s on average" if heard else "never"
    early = sum(run.early for run in outcome.corrected)
    return [
        f"**{change.what[0].upper()}{change.what[1:]}.**",
        "",
        f"Conversations: {change.talks.workload.origin}; {change.talks.rate:g} begin per second; weights "
        f"ttft={change.weights.w_ttft:g},tpot={change.weights.w_tpot:g}.",
        "",
        *_candidates(outcome),
        "",
        f"First alarm {said} ({len(heard)} of {len(alarms)} runs); {early} alarms before the change.",
        "",
        *_minutes(outcome),
    ]


def _candidates(outcome: Outcome) -> list[str]:
    """The fixed tables, in the world after the change."""
    best = outcome.found[0]
    lines = ["| fixed table | TTFT ms | TPOT ms | local | above the best, mean logarithm |", "|---|---|---|---|---|"]
    for one in outcome.found:
        times = f"{1000 * one.ttft_s:.0f} | {1000 * one.tpot_s:.2f}"
        lines.append(f"| {one.name} | {times} | {one.local:.0%} | {one.score - best.score:.3f} |")
    return lines


def _minutes(outcome: Outcome) -> list[str]:
    """Minute by minute after the change, means over the seeds."""
    lines = [
        "| minute | TTFT ms: old table | corrected | best | TPOT ms: old table | corrected | best "
        "| local: old table | corrected | best | regret: old table | corrected |",
        "|" + "---|" * 12,
    ]
    weights, kinds = outcome.change.weights, (outcome.without, outcome.corrected, outcome.oracle)
    for index in range(len(outcome.oracle[0].stretches)):
        ttft = [_mean([1000 * run.stretches[index].ttft_s for run in kind]) for kind in kinds]
        tpot = [_mean([1000 * run.stretches[index].tpot_s for run in kind]) for kind in kinds]
        local = [_mean([run.stretches[index].local for run in kind]) for kind in kinds]
        regret = [
            _mean(
                [
                    cost(one.stretches[index], best.stretches[index], weights)
                    for one, best in zip(kind, outcome.oracle, strict=True)
                ]
            )
            for kind in kinds[:2]
        ]
        cells = [f"{value:.0f}" for value in ttft] + [f"{value:.2f}" for value in tpot]
        cells += [f"{value:.0%}" for value in [*local, *regret]]
        lines.append(f"| {'before' if index == 0 else index} | " + " | ".join(cells) + " |")
    return lines


def _tried(all_of_them: Sequence[Outcome]) -> list[str]:
    """Every change, in one line."""
    lines = [
        f"**All that was tried.** Regret after {ALLOWED_S / 60:g} minutes; those below the third with one seed and a "
        "shorter search. Without an alarm nothing is corrected: what a change does must be more than the tolerance of "
        f"{RULES.tolerance:.0%}.",
        "",
        "| change | best fixed table | first alarm | regret: before it | after, old table | corrected | falls by |",
        "|---|---|---|---|---|---|---|",
    ]
    for outcome in all_of_them:
        without, corrected = outcome.regrets
        falls = f"{outcome.falls_by:.0%}" if without.mean >= TO_REGRET else ""
        heard = [run.alarm_s for run in outcome.corrected if run.alarm_s is not None]
        alarm = f"after {_mean(heard):.0f} s" if heard else "none"
        before = _mean([cost(a.stretches[0], b.stretches[0], outcome.change.weights) for a, b in _pairs(outcome)])
        lines.append(
            f"| {outcome.change.what} | {outcome.found[0].name} | {alarm} | {before:.1%} | {without.mean:.1%} "
            f"| {corrected.mean:.1%} | {falls} |"
        )
    return lines


def _pairs(outcome: Outcome) -> Iterator[tuple[Played, Played]]:
    """With the old table alone, and with the best."""
    return zip(outcome.without, outcome.oracle, strict=True)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


SECTION = Section("drift", "A table that is no longer right", run)
