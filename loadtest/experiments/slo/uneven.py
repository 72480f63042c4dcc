"""Pods that are not alike: one prefill and one decode pod slower than their peers.

Rule of this room: the same traffic for every policy; even pods stand beside uneven ones, so that what looking at load
costs shows as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.core.weights import BALANCED
from loadtest.experiments.gate import Knobs
from loadtest.experiments.outcomes import Slo
from loadtest.experiments.rows import Row
from loadtest.experiments.run import Hardware, Spec
from loadtest.experiments.scenario import Event, Slow
from loadtest.experiments.slo.oracle import PLAN, Regime, table_for
from loadtest.experiments.slo.section import Effort, Finding, Section, Told
from loadtest.experiments.statistics import Interval, interval
from loadtest.experiments.sweep import run_all
from loadtest.experiments.tables import Plan
from loadtest.experiments.traffic import Extent, Stream
from loadtest.experiments.workloads import LongTurns

ASSIGNMENT = "2P_3D"
TALKS = LongTurns("talks", 5, 1500, 500, 160, think_s=3.0, spread=0.6)
SLOWNESS = 2.5
UNEVEN: tuple[Event, ...] = (Slow(0.0, "d0", SLOWNESS), Slow(0.0, "p0", SLOWNESS))
PODS: dict[str, tuple[Event, ...]] = {"even": (), "uneven": UNEVEN}
SLO = Slo(ttft_s=0.3, tpot_s=0.02)
WORSE_AT_MOST = 0.05


@dataclass(frozen=True, slots=True)
class Way:
    """One way to decide."""

    name: str
    policy: str
    load_aware: bool = False


WAYS = (
    Way("pd", "pd"),
    Way("local", "local"),
    Way("ppd", "ppd"),
    Way("ppd, load_aware", "ppd", load_aware=True),
    Way("queue", "queue"),
)


@dataclass(frozen=True, slots=True)
class Times:
    """rate: conversations that begin per second."""

    until_s: float = 150.0
    warm_up_s: float = 30.0
    rate: float = 3.0
    plan: Plan = PLAN


def specs(tables: Path, seeds: int, times: Times) -> list[Spec]:
    """All runs."""
    return [
        Spec(
            assignment=ASSIGNMENT,
            policy=way.policy,
            streams=(Stream(TALKS, times.rate),),
            extent=Extent(until_s=times.until_s),
            seed=f"uneven/{seed}",
            knobs=Knobs(weights=BALANCED),
            events=events,
            tables=tables if way.policy == "ppd" else None,
            load_aware=way.load_aware,
            slo=SLO,
            warm_up_s=times.warm_up_s,
            labels=(("pods", pods), ("way", way.name)),
        )
        for pods, events in PODS.items()
        for way in WAYS
        for seed in range(seeds)
    ]


def run(effort: Effort, times: Times | None = None) -> Told:
    """The section of the report. Raises ExperimentError, TableError."""
    times = times or (Times(until_s=60.0, warm_up_s=15.0) if effort.short else Times())
    tables = table_for(ASSIGNMENT, Hardware(), Regime(), plan=times.plan, jobs=effort.jobs)
    rows = run_all(specs(tables, 1 if effort.short else effort.seeds, times), effort.jobs)
    even, uneven = (_change(rows, pods, "ppd, load_aware", "ppd") for pods in PODS)
    findings = [
        Finding(
            f"A prefill and a decode pod {SLOWNESS:g} times as slow: whole turns take less time with load_aware",
            f"{uneven:+.0%}",
            uneven < 0,
        ),
        Finding(
            f"Even pods: they do not take more than {WORSE_AT_MOST:.0%} longer", f"{even:+.1%}", even <= WORSE_AT_MOST
        ),
    ]
    return Told(findings, [_about(times), *(text for pods in PODS for text in ("", _table(rows, pods)))])


def _of(rows: Sequence[Row], pods: str, way: str) -> list[Row]:
    return [row for row in rows if row.label("pods") == pods and row.label("way") == way]


def _change(rows: Sequence[Row], pods: str, ours: str, theirs: str) -> float:
    """Of the mean time of a whole turn, the first ones too."""
    one, other = (interval([row.all.e2e_mean_ms for row in _of(rows, pods, way)]).mean for way in (ours, theirs))
    return one / other - 1


def _about(times: Times) -> str:
    return (
        f"`{ASSIGNMENT}`, {TALKS.origin}; {times.rate:g} conversations begin per second. Uneven: one of the prefill "
        f"pods and one of the decode pods are {SLOWNESS:g} times as slow from the start, which no table says. "
        f"Goodput: turns within TTFT {SLO.ttft_s * 1000:g} ms and TPOT {SLO.tpot_s * 1000:g} ms."
    )


def _table(rows: Sequence[Row], pods: str) -> str:
    lines = [
        f"**{pods.capitalize()} pods.**",
        "",
        "| | TTFT ms, mean | P99 | TPOT ms, mean | P99 | whole turn ms, mean | goodput | local |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for way in WAYS:
        ours = _of(rows, pods, way.name)
        values = [
            interval([row.all.ttft_mean_ms for row in ours]),
            interval([row.all.ttft_p99_ms for row in ours]),
            interval([row.all.tpot_ok_ms for row in ours]),
            interval([row.all.tpot_p99_ms for row in ours]),
            interval([row.all.e2e_mean_ms for row in ours]),
        ]
        goodput = interval([row.all.goodput for row in ours]).mean
        local = interval([row.later.local_share for row in ours]).mean
        lines.append(f"| {way.name} | " + " | ".join(map(_shown, values)) + f" | {goodput:.0%} | {local:.0%} |")
    return "\n".join(lines)


def _shown(value: Interval) -> str:
    return str(value) if value.runs else "∞"


SECTION = Section("uneven", "Pods that are not alike", run)
