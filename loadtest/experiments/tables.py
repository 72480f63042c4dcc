"""The lookup table of policy ppd for one node assignment, measured on the same pods in virtual time, and kept on disk.

Conversations are put in place one after the other; then their second turns arrive at the wanted rate, all by one route.
That is what `ppd-gateway profile` does on live pods.

Rule of this room: the seeds of a table are never those of an evaluation; a table is used again only for the very same
pods, plan and way of measuring.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import xxhash

from loadtest.experiments import assignments
from loadtest.experiments.client import Patience
from loadtest.experiments.gate import Knobs
from loadtest.experiments.outcomes import Fate
from loadtest.experiments.run import Hardware, Result, Spec, run
from loadtest.experiments.sweep import run_many
from loadtest.experiments.traffic import Extent, Stream
from loadtest.experiments.workloads import Script, TurnScript
from lut.build import build
from lut.cell import Route
from lut.errors import TableError
from lut.publish import write_table_set
from lut.raw import Located, RawPoint
from lut.table import TableSet

FOLDER = Path("build/simulated-tables")
VERSION = 1
"""Of the way of measuring; another one measures all tables again."""

_REPLY_TOKENS = 256
_PLACING_TOKENS_PER_S = 12_000.0
_PLACING_S = 0.3
_RAMP_SHARE = 0.25
_HOT_SHARE = 0.75
_PATIENCE = Patience(first_token_s=30.0, turn_s=180.0)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured: every combination, both routes, `repeats` times. window_s: for how long turns arrive."""

    contexts: tuple[int, ...] = (256, 2048, 6144)
    news: tuple[int, ...] = (16, 128, 1024)
    outputs: tuple[int, ...] = (32, 256)
    rates: tuple[float, ...] = (1.0, 4.0, 16.0, 32.0)
    repeats: int = 2
    samples: int = 24
    window_s: float = 4.0


PLAN = Plan()
ARMS: tuple[Route, ...] = ("pd", "local")


@dataclass(frozen=True, slots=True)
class Placed:
    """Workload of one cell. Each conversation's second turn comes at a time of its own."""

    context: int
    new: int
    output: int
    placing_s: float
    times_s: tuple[float, ...]
    name: str = "profiling"
    origin: str = "profiling"

    def scripts(self, dice: random.Random) -> Iterator[Script]:
        reply = min(_REPLY_TOKENS, self.context // 2)
        first = TurnScript(self.context - reply, reply)
        begins_s = self.placing_s * (len(self.times_s) + 1)
        order = dice.sample(self.times_s, len(self.times_s))
        for index, time_s in enumerate(order):
            second = TurnScript(self.new, self.output, not_before_s=begins_s + time_s)
            yield Script((first, second), at_s=self.placing_s * index)


def table_for(
    assignment: str,
    hardware: Hardware,
    *,
    folder: Path = FOLDER,
    plan: Plan = PLAN,
    jobs: int | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Path:
    """The directory of a table set for such pods, measured now if it is not there. Raises TableError.

    tell: told that it is measured, which takes some seconds to a minute.
    """
    cluster = assignments.parse(assignment)
    name = f"{cluster.prefill}P_{cluster.strict + cluster.decode}D"
    if not cluster.prefill:
        name = "1P_1D"
    digest = xxhash.xxh3_64_hexdigest(repr((VERSION, hardware.load(), plan, name)).encode())
    directory = folder / f"{name}-{digest}"
    try:
        TableSet.open(directory)
    except TableError:
        tell(f"measuring a table for {name} on simulated pods, once ...")
        folder.mkdir(parents=True, exist_ok=True)
        points = measure(name, hardware, plan, jobs)
        draft = build(
            [Located(f"point {number}", point) for number, point in enumerate(points)],
            gpu=f"{hardware.profile} (simulated)",
            notes=("measured in virtual time by loadtest.experiments.tables",),
        )
        write_table_set(directory, draft)
    return directory


@dataclass(frozen=True, slots=True)
class Shape:
    """One raw point to be."""

    assignment: str
    hardware: Hardware
    arm: Route
    context: int
    new: int
    output: int
    rate: float
    repeat: int
    plan: Plan


def measure(assignment: str, hardware: Hardware, plan: Plan = PLAN, jobs: int | None = None) -> list[RawPoint]:
    """All raw points of one node assignment, `1P_3D`."""
    shapes = itertools.product(range(plan.repeats), plan.contexts, plan.news, plan.outputs, plan.rates, ARMS)
    most = hardware.load().max_model_len
    cells = [
        Shape(assignment, hardware, arm, context, new, output, rate, repeat, plan)
        for repeat, context, new, output, rate, arm in shapes
        if context + new + output <= most
    ]
    return run_many(measure_cell, cells, jobs)


def measure_cell(cell: Shape) -> RawPoint:
    """One cell, one arm, once."""
    return point_of(cell, run(spec_of(cell)))


def spec_of(cell: Shape) -> Spec:
    """The experiment that measures a cell."""
    profile, plan = cell.hardware.load(), cell.plan
    cluster = assignments.parse(cell.assignment)
    total = cell.context + cell.new + cell.output
    room = profile.cache.num_blocks * profile.cache.block_size * min(cluster.prefill, cluster.decode)
    fitting = max(1, math.floor(_HOT_SHARE * room / total))
    samples = min(max(plan.samples, math.ceil(cell.rate * plan.window_s)), fitting)
    seed = f"table/{cell.context}/{cell.new}/{cell.output}/{cell.rate:g}/{cell.repeat}"
    dice = random.Random(seed)
    length_s = samples / cell.rate
    times_s = tuple(sorted(dice.random() * length_s for _ in range(samples)))
    placing_s = _PLACING_S + cell.context / _PLACING_TOKENS_PER_S
    workload = Placed(cell.context, cell.new, cell.output, placing_s, times_s)
    return Spec(
        assignment=cell.assignment,
        policy=cell.arm,
        streams=(Stream(workload, None),),
        extent=Extent(conversations=samples),
        seed=seed,
        hardware=cell.hardware,
        knobs=Knobs(min_resident_share=0.0),
        patience=_PATIENCE,
    )


def point_of(cell: Shape, result: Result, tenant: str = "") -> RawPoint:
    """What came of it. tenant: whose second turns are measured."""
    profile = cell.hardware.load()
    later = [turn for turn in result.turns if turn.turn == 2 and turn.tenant == tenant]
    later.sort(key=lambda turn: turn.at_s)
    counted = later[int(_RAMP_SHARE * len(later)) :]
    good = [turn for turn in counted if turn.fate is Fate.GOOD]
    ttft, tpot = [turn.ttft_s for turn in good], [turn.tpot_s for turn in good if not math.isnan(turn.tpot_s)]
    span_s = counted[-1].at_s - counted[0].at_s if len(counted) > 1 else 0.0
    return RawPoint(
        assignment=cell.assignment,
        arm=cell.arm,
        context_tokens=cell.context,
        new_tokens=cell.new,
        output_tokens=cell.output,
        rate=cell.rate,
        rate_achieved=(len(counted) - 1) / span_s if span_s > 0 else None,
        repeat=cell.repeat,
        samples=len(counted),
        success=len(good) / len(counted) if counted else 0.0,
        ttft_mean_s=_mean(ttft),
        ttft_p99_s=_p99(ttft),
        tpot_mean_s=_mean(tpot),
        tpot_p99_s=_p99(tpot),
        model=profile.name,
        block_size=profile.cache.block_size,
        simulated=True,
        started_at=None,
        duration_s=result.ended_s,
        stopped=None,
    )


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _p99(values: Sequence[float]) -> float | None:
    return sorted(values)[math.ceil(0.99 * len(values)) - 1] if values else None
