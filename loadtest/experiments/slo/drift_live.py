"""Prefill pods that become twice as slow, on HTTP in real time beside virtual time.

Rule of this room: the gateway is served as an operator would configure it; only the pods are stretched, in virtual time
as well, and the table is measured on stretched pods. It takes minutes of real time, so it runs when it is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from loadtest.experiments import assignments
from loadtest.experiments.scenario import Slow
from loadtest.experiments.slo.best import stretch
from loadtest.experiments.slo.drift_runs import RULES
from loadtest.experiments.slo.live import side_by_side
from loadtest.experiments.slo.oracle import Regime, table_for
from loadtest.experiments.slo.play import Case, Played
from loadtest.experiments.slo.section import Effort, Finding, Section, Told
from loadtest.experiments.slo.shifts import PLAN, SLOWNESS, changes
from loadtest.experiments.tables import Plan

STRETCH = 2.0
"""Pods take so many times as long from the beginning, and everything comes so many times as rarely."""

_CLOSE = 0.25


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds. change_s: when the prefill pods become slow; pieces: what is looked at, from then on."""

    change_s: float = 160.0
    pieces: tuple[float, ...] = (0.0, 40.0, 80.0, 120.0, 160.0)
    settled_s: float = 40.0

    @property
    def end_s(self) -> float:
        return self.change_s + self.pieces[-1]


def cases(times: Times, plan: Plan = PLAN, jobs: int | None = None) -> list[Case]:
    """With the old table alone, and with the correction. Raises TableError."""
    change = changes()[0]
    slow = tuple((pod.url, STRETCH) for pod in assignments.parse(change.assignment).pods())
    rarer = replace(plan, rates=tuple(rate / STRETCH for rate in plan.rates))
    tables = table_for(change.assignment, change.hardware, Regime(slow=slow), plan=rarer, jobs=jobs)
    streams = tuple(
        replace(stream, rate=stream.rate / STRETCH, think_s=STRETCH * 3.0)
        for stream in change.streams[:1]
        if stream.rate
    )
    events = tuple(
        Slow(times.change_s, event.pod, STRETCH * SLOWNESS) for event in change.events if isinstance(event, Slow)
    )
    spec = replace(
        change.spec("drift/live", times.end_s, at_s=None, tables=tables), streams=streams, events=events, drift=None
    )
    return [Case("old table", spec), Case("corrected", replace(spec, drift=RULES))]


def run(effort: Effort) -> Told:
    """The section of the report."""
    times = Times()
    return told(side_by_side(cases(times, jobs=effort.jobs), STRETCH), times)


def told(pairs: Sequence[tuple[Played, Played]], times: Times) -> Told:
    """What the runs say: of each case the virtual one and the one on HTTP."""
    late = [[_ttft_ms(each, times.change_s + times.pieces[-2], times.end_s) for each in pair] for pair in pairs]
    (old_virtual, old_http), (virtual, http) = late
    falls = [1 - virtual / old_virtual, 1 - http / old_http]
    finding = Finding(
        f"on HTTP in real time: the correction shortens later turns' TTFT as in virtual time, to within {_CLOSE:.0%}",
        f"{old_http:,.0f} → {http:,.0f} ms on HTTP ({-falls[1]:+.0%}), {old_virtual:,.0f} → {virtual:,.0f} ms in "
        f"virtual time ({-falls[0]:+.0%})",
        abs(falls[1] - falls[0]) <= _CLOSE and falls[1] > 0,
    )
    head = "| | " + " | ".join(f"{played.case.name}: virtual | HTTP" for played, _ in pairs) + " |"
    lines = [
        f"The first change of the section before, on pods that take {STRETCH:g} times as long, with that much less "
        f"traffic and more time to think; the prefill pods become slow after {times.change_s:g} s. One run each: "
        "`python -m loadtest.experiments.slo -o docs/slo --only drift_live`.",
        "",
        "Later turns' mean TTFT, ms:",
        "",
        head,
        "|---|" + "---:|" * (2 * len(pairs)),
    ]
    pieces = [("before", times.settled_s, times.change_s)]
    pieces += [
        (f"{begin:g} to {end:g} s after", times.change_s + begin, times.change_s + end)
        for begin, end in pairwise(times.pieces)
    ]
    for name, begin_s, end_s in pieces:
        shown = " | ".join(f"{_ttft_ms(each, begin_s, end_s):,.0f}" for pair in pairs for each in pair)
        lines.append(f"| {name} | {shown} |")
    alarms = [_alarm(each, times) for each in pairs[-1]]
    return Told([finding], [*lines, "", f"First alarm: virtual {alarms[0]}, HTTP {alarms[1]}."])


def _ttft_ms(played: Played, begin_s: float, end_s: float) -> float:
    return 1000 * stretch(played.turns, begin_s, end_s).ttft_s


def _alarm(played: Played, times: Times) -> str:
    after = min((alarm - times.change_s for alarm in played.alarms if alarm >= times.change_s), default=math.nan)
    return "never" if math.isnan(after) else f"after {after:.0f} s"


SECTION = Section("drift_live", "The same on HTTP", run)
