"""The table that somebody would have who measured again at once: the same profiling, on the pods as they are now.

Rule of this room: two regimes differ in what has changed and in nothing else: one plan, one way of measuring, the same
seeds, which are never those of an evaluation.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import xxhash

from loadtest.experiments.run import Hardware, run
from loadtest.experiments.scenario import ChangeRate, Event, Slow
from loadtest.experiments.sweep import run_many
from loadtest.experiments.tables import ARMS, Placed, Plan, Shape, point_of, spec_of
from loadtest.experiments.traffic import Extent, Stream
from loadtest.experiments.workloads import Workload
from lut.build import build
from lut.errors import TableError
from lut.publish import write_table_set
from lut.raw import Located, RawPoint
from lut.table import TableSet

FOLDER = Path("build/slo-tables")
VERSION = 2
PLAN = Plan(
    contexts=(512, 2048, 6144), news=(32, 256, 1024), outputs=(64, 256), rates=(2.0, 8.0, 16.0), repeats=2, samples=32
)

_BESIDE = "beside"
_BEFORE_S = 2.0
"""So long before the turns that are measured the others begin."""


@dataclass(frozen=True, slots=True)
class Regime:
    """Pods and what goes on beside the turns that are measured. slow: (pod, factor).

    beside: other conversations, so many begin per second.
    """

    slow: tuple[tuple[str, float], ...] = ()
    beside: Workload | None = None
    rate: float = 0.0


def measure(
    assignment: str, hardware: Hardware, regime: Regime, plan: Plan = PLAN, jobs: int | None = None
) -> list[RawPoint]:
    """All raw points of one node assignment."""
    shapes = itertools.product(range(plan.repeats), plan.contexts, plan.news, plan.outputs, plan.rates, ARMS)
    most = hardware.load().max_model_len
    cells = [
        (Shape(assignment, hardware, arm, context, new, output, rate, repeat, plan), regime)
        for repeat, context, new, output, rate, arm in shapes
        if context + new + output <= most
    ]
    return run_many(_point, cells, jobs)


def _point(given: tuple[Shape, Regime]) -> RawPoint:
    shape, regime = given
    spec = spec_of(shape)
    streams, extent = spec.streams, spec.extent
    events: list[Event] = [Slow(0.0, pod, factor) for pod, factor in regime.slow]
    placed = streams[0].workload
    if regime.beside is not None and isinstance(placed, Placed):
        begins_s = placed.placing_s * (len(placed.times_s) + 1)
        streams = (*streams, Stream(regime.beside, 0.0, tenant=_BESIDE))
        extent = Extent(until_s=begins_s + placed.times_s[-1])
        events.append(ChangeRate(begins_s - _BEFORE_S, regime.rate, _BESIDE))
    return point_of(shape, run(replace(spec, streams=streams, extent=extent, events=tuple(events))))


def table_for(
    assignment: str,
    hardware: Hardware,
    regime: Regime,
    *,
    folder: Path = FOLDER,
    plan: Plan = PLAN,
    jobs: int | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Path:
    """The directory of a regime's table set, measured now if it is not there. Raises TableError."""
    digest = xxhash.xxh3_64_hexdigest(repr((VERSION, hardware.load(), plan, assignment, regime)).encode())
    directory = folder / f"{assignment}-{digest}"
    try:
        TableSet.open(directory)
    except TableError:
        tell(f"measuring a table of {assignment}, {regime}, once ...")
        folder.mkdir(parents=True, exist_ok=True)
        points = measure(assignment, hardware, regime, plan, jobs)
        located = [Located(f"point {number}", point) for number, point in enumerate(points)]
        write_table_set(directory, build(located, gpu=f"{hardware.profile} (simulated)", notes=(repr(regime),)))
    return directory
