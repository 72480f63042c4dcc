"""`lut diff`: what changes for requests when one table set takes the place of another.

Rule of this room: the two sets are asked at the same points, those of both grids, through the lookup that the gateway
uses; sets with different axes can be compared.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from lut.axes import Axes
from lut.cell import ARMS
from lut.lookup import Table
from lut.score import Score, score
from lut.tableset import TableSet

Point = tuple[float, ...]
LATENCIES = ("ttft_mean", "ttft_p99", "tpot_mean", "tpot_p99")


@dataclass(frozen=True, slots=True)
class RouteChange:
    assignment: str
    point: Point
    """(context, new, output, rate)."""
    before: Score
    after: Score


@dataclass(frozen=True, slots=True)
class LatencyChange:
    assignment: str
    point: Point
    arm: str
    field: str
    before_s: float
    after_s: float

    @property
    def relative(self) -> float:
        """+1 is twice as slow."""
        return self.after_s / self.before_s - 1


@dataclass(frozen=True, slots=True)
class Difference:
    points: dict[str, int]
    """Points compared, by node assignment."""
    routes: list[RouteChange]
    latencies: list[LatencyChange]
    """Largest relative change first; a few per kind."""
    only_before: list[str]
    only_after: list[str]
    remarks: list[str]
    """What else is not the same."""


def compare(before: TableSet, after: TableSet, weights: tuple[float, float], limit: int) -> Difference:
    """`limit` latency changes are kept of each of TTFT and TPOT."""
    points = list(product(*_union(before.manifest.axes, after.manifest.axes)))
    common = [(before.tables[name], after.tables[name]) for name in before.tables if name in after.tables]
    return Difference(
        points={table.assignment: len(points) for table, _ in common},
        routes=[change for pair in common for change in _route_changes(*pair, points, weights)],
        latencies=[
            change
            for kind in ("ttft", "tpot")
            for change in heapq.nlargest(limit, _latency_changes(common, points, kind), key=lambda c: abs(c.relative))
        ],
        only_before=[name for name in before.tables if name not in after.tables],
        only_after=[name for name in after.tables if name not in before.tables],
        remarks=list(_remarks(before, after)),
    )


def as_text(difference: Difference, limit: int) -> str:
    return "\n".join(_lines(difference, limit)) + "\n"


def _union(a: Axes, b: Axes) -> list[list[float]]:
    return [sorted({*one, *other}) for one, other in zip(a.values, b.values, strict=True)]


def _route_changes(
    before: Table, after: Table, points: list[Point], weights: tuple[float, float]
) -> Iterator[RouteChange]:
    for point in points:
        old, new = score(before.nearest(*point), *weights), score(after.nearest(*point), *weights)
        if old.route != new.route:
            yield RouteChange(before.assignment, point, old, new)


def _latency_changes(common: list[tuple[Table, Table]], points: list[Point], kind: str) -> Iterator[LatencyChange]:
    fields = [name for name in LATENCIES if name.startswith(kind)]
    for before, after in common:
        for point in points:
            old, new = before.nearest(*point), after.nearest(*point)
            for arm in ARMS:
                was, now = getattr(old, arm), getattr(new, arm)
                if was is None or now is None:
                    continue
                for name in fields:
                    a, b = getattr(was, name), getattr(now, name)
                    if a > 0 and a != b:
                        yield LatencyChange(before.assignment, point, arm, name, a, b)


def _remarks(before: TableSet, after: TableSet) -> Iterator[str]:
    for name in ("model", "block_size", "gpu", "network", "simulated"):
        old, new = getattr(before.manifest, name), getattr(after.manifest, name)
        if old != new:
            yield f"{name}: {old!r} -> {new!r}"
    if before.manifest.axes != after.manifest.axes:
        yield "the axes differ; both sets are asked at the points of both"


def _lines(difference: Difference, limit: int) -> Iterator[str]:
    yield from difference.remarks
    for name in difference.only_before:
        yield f"{name}: only in the first set"
    for name in difference.only_after:
        yield f"{name}: only in the second set"
    for name, points in difference.points.items():
        changed = [change for change in difference.routes if change.assignment == name]
        yield f"{name}: {len(changed)} of {points} points change their route"
        for change in sorted(changed, key=lambda change: -abs(change.after.s - change.before.s))[:limit]:
            yield f"  {_place(change.point)}: {_outcome(change.before)} -> {_outcome(change.after)}"
    if difference.latencies:
        yield "largest changes of latency"
    for latency in difference.latencies:
        yield (
            f"  {latency.assignment} {latency.arm} {latency.field} {_place(latency.point)}:"
            f" {latency.before_s * 1000:.2f} -> {latency.after_s * 1000:.2f} ms ({latency.relative:+.0%})"
        )


def _place(point: Point) -> str:
    return "ctx={:g} in={:g} out={:g} q={:g}".format(*point)


def _outcome(result: Score) -> str:
    degraded = f" ({result.degraded} below 95 % success)" if result.degraded else ""
    return f"{result.route or 'tie'} S={result.s:+.3f}{degraded}"
