"""Figure 6: what w_tpot buys, on the workload that the published points come from (small_huge_paste on 1P_3D).

Rule of this room: the static policies and 4R are drawn beside the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core.weights import Weights
from loadtest.experiments.book import value_of
from loadtest.experiments.gate import Knobs
from loadtest.experiments.paper.grid import PATIENCE
from loadtest.experiments.paper.section import Findings, Picture, Scale, Section, labelled, percent
from loadtest.experiments.plots import Panel, Point
from loadtest.experiments.rows import Row
from loadtest.experiments.run import Spec
from loadtest.experiments.statistics import Interval, interval, paired
from loadtest.experiments.traffic import Extent, Stream
from loadtest.experiments.workloads import PAPER, Mixed, Workload, synthetic

WORKLOAD = "small_huge_paste"
RATES = (8.0, 16.0)
WEIGHTS = (0.25, 0.5, 1.0, 1.25, 1.5, 1.75, 2.0, 3.0, 6.0, 16.0)
STATIC = {"pd": ("1P_3D", "pd"), "local": ("1P_3D", "local"), "4R": ("4R", "pd")}
MIX = Mixed(tuple((1.0, workload) for workload in PAPER))


@dataclass(frozen=True, slots=True)
class Slice:
    """One set of axes."""

    workload: Workload
    rate: float
    title: str


SLICES = (
    *(Slice(synthetic(WORKLOAD), rate, f"{WORKLOAD}, {rate:g}/s") for rate in RATES),
    Slice(MIX, 8.0, "all 18 workloads mixed, 8/s"),
)


def _specs(scale: Scale) -> list[Spec]:
    specs = []
    for part in SLICES:
        for seed in range(scale.seeds):
            for name, (assignment, policy) in STATIC.items():
                spec = _spec(scale, part, assignment, policy, seed)
                specs.append(labelled(spec, "frontier", point=name, part=part.title))
            for weight in WEIGHTS:
                spec = _spec(scale, part, "1P_3D", "ppd", seed, Weights(1.0, weight))
                specs.append(labelled(spec, "frontier", point=f"w{weight:g}", part=part.title))
    return specs


def _spec(scale: Scale, part: Slice, assignment: str, policy: str, seed: int, weights: Weights | None = None) -> Spec:
    return Spec(
        assignment=assignment,
        policy=policy,
        streams=(Stream(part.workload, part.rate),),
        extent=Extent(until_s=min(10.0, scale.burst_s)),
        seed=f"frontier/{seed}",
        knobs=Knobs() if weights is None else Knobs(weights=weights),
        patience=PATIENCE,
        tables=None if weights is None else scale.tables.get(assignment),
    )


Values = dict[tuple[str, str, str], dict[str, float | None]]
"""By slice, point (a policy, or w and a weight), metric; then by seed."""

_METRICS = {"ttft": "later.ttft_ok_ms", "tpot": "later.tpot_ok_ms", "share": "later.local_share"}


def _evaluate(rows: Sequence[Row]) -> Findings:
    found = Findings()
    values: Values = {}
    for row in rows:
        for name, metric in _METRICS.items():
            values.setdefault((row.label("part"), row.label("point"), name), {})[row.seed] = value_of(row, metric)
    ours = found.ours
    for part in SLICES[: len(RATES)]:
        key = f"figure6.{part.rate:g}"
        for name in ("ttft", "tpot"):
            for point in ("local", "w1", "w6"):
                ours[f"{key}.{point}.{name}"] = _change(values, part, point, name)
        ours[f"{key}.w6.ttft.drawn"] = ours[f"{key}.w6.ttft"]
        for weight in (1, 3, 6):
            ours[f"{key}.w{weight}.share"] = percent(_mean(values, part, f"w{weight}", "share"))
    title = f"Weights w_tpot from {WEIGHTS[0]:g} to {WEIGHTS[-1]:g} (figure 6)"
    found.pictures = [Picture("frontier", title, [_panel(values, part) for part in SLICES], 3)]
    found.text = _table(values)
    return found


def _mean(values: Values, part: Slice, point: str, name: str) -> Interval:
    return interval(list(values[part.title, point, name].values()))


def _change(values: Values, part: Slice, point: str, name: str) -> Interval:
    return percent(paired(values[part.title, point, name], values[part.title, "pd", name], relative=True))


def _panel(values: Values, part: Slice) -> Panel:
    series = {"1P_3D ppd, w_tpot": [_point(values, part, f"w{weight:g}", label=True) for weight in WEIGHTS]}
    for name in STATIC:
        series[name if name == "4R" else f"1P_3D {name}"] = [_point(values, part, name)]
    return Panel(part.title, "turn 2 TTFT, mean (ms)", "turn 2 TPOT, mean (ms)", series, log_x=True)


def _point(values: Values, part: Slice, name: str, *, label: bool = False) -> Point:
    tpot = _mean(values, part, name, "tpot")
    return Point(_mean(values, part, name, "ttft").mean, tpot.mean, tpot.bar, name if label else "")


def _table(values: Values) -> list[str]:
    lines = [
        "Local share, TTFT and TPOT of turn 2:",
        "",
        f"| w_tpot | {' | '.join(part.title for part in SLICES)} |",
        "|---|" + "---:|" * len(SLICES),
    ]
    for name in ("pd", *(f"w{weight:g}" for weight in WEIGHTS), "local", "4R"):
        cells = []
        for part in SLICES:
            share, ttft, tpot = (_mean(values, part, name, each).mean for each in ("share", "ttft", "tpot"))
            cells.append(f"{100 * share:.0f} %, {ttft:.0f} ms, {tpot:.2f} ms")
        lines.append(f"| {name.removeprefix('w')} | {' | '.join(cells)} |")
    return [*lines, ""]


SECTION = Section(
    "frontier",
    "Weights",
    "Turn 1 of 128 tokens, turn 2 pastes 1,024 and wants 32; ten seconds of arrivals, 50 client slots. All turns of "
    "that workload fall into one or two cells of the table, so a weight moves nearly all of them at once; a mix of "
    "workloads, in the third plot, moves cell by cell.",
    _specs,
    _evaluate,
)
