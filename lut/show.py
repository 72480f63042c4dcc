"""`lut show`: a table set in words.

Rule of this room: only reads. The summary is one structure, printed as text or as JSON.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec
import numpy as np

from lut.axes import AXIS_NAMES
from lut.cell import HEALTHY_SUCCESS, Cell, Origin
from lut.lookup import Table
from lut.manifest import Manifest
from lut.publish import shares
from lut.score import score
from lut.tableset import TableSet


class ArmSummary(msgspec.Struct, frozen=True):
    """One arm of one node assignment. Shares are of all cells, counts are of measured cells."""

    measured: float
    interpolated: float
    nearest: float
    measured_cells: int
    degraded_cells: int
    """Measured with less than 95 % success."""
    samples: int


class RouteSummary(msgspec.Struct, frozen=True):
    """What the cells say in which every arm was measured."""

    cells: int
    routes: dict[str, int]
    """Cells by route; "tie" for those inside the noise."""
    decided_by_success: int
    """Cells in which an arm below 95 % success lost whatever S says."""


class Summary(msgspec.Struct, frozen=True):
    """Everything that `lut show` prints."""

    directory: str
    manifest: Manifest
    weights: tuple[float, float]
    arms: dict[str, dict[str, ArmSummary]]
    """By node assignment and arm."""
    routes: dict[str, RouteSummary]
    """By node assignment."""


def summarise(tables: TableSet, weights: tuple[float, float]) -> Summary:
    return Summary(
        str(tables.directory),
        tables.manifest,
        weights,
        {name: _arms(table) for name, table in tables.tables.items()},
        {name: _routes(table, weights) for name, table in tables.tables.items()},
    )


def as_json(summary: Summary) -> str:
    return msgspec.json.format(msgspec.json.encode(summary), indent=2).decode()


def as_text(summary: Summary) -> str:
    return "\n".join(_lines(summary)) + "\n"


def measured_cells(table: Table) -> Iterator[Cell]:
    """The cells in which every arm of the table was measured."""
    measured = np.logical_and.reduce([table.column(arm, "origin") == int(Origin.MEASURED) for arm in table.arms])
    values = table.axes.values
    for place in np.argwhere(measured).tolist():
        yield table.nearest(*(axis[index] for axis, index in zip(values, place, strict=True)))


def _arms(table: Table) -> dict[str, ArmSummary]:
    summaries: dict[str, ArmSummary] = {}
    for index, arm in enumerate(table.arms):
        share = shares(table.data[..., index, :])
        measured = table.column(arm, "origin") == int(Origin.MEASURED)
        degraded = measured & (table.column(arm, "success") < HEALTHY_SUCCESS)
        samples = int(table.column(arm, "samples").sum(dtype=np.float64))
        counts = (int(measured.sum()), int(degraded.sum()), samples)
        summaries[arm] = ArmSummary(share.measured, share.interpolated, share.nearest, *counts)
    return summaries


def _routes(table: Table, weights: tuple[float, float]) -> RouteSummary:
    routes: Counter[str] = Counter()
    decided_by_success = 0
    for cell in measured_cells(table):
        result = score(cell, *weights)
        routes[result.route or "tie"] += 1
        decided_by_success += result.degraded is not None
    return RouteSummary(routes.total(), dict(sorted(routes.items())), decided_by_success)


def _lines(summary: Summary) -> Iterator[str]:
    manifest = summary.manifest
    yield f"{summary.directory}: {manifest.model}{'  SIMULATED' if manifest.simulated else ''}"
    yield f"  gpu {manifest.gpu or '-'}, network {manifest.network or '-'}, block size {manifest.block_size or '-'}"
    yield f"  made {manifest.created} by {manifest.tool}; format version {manifest.version}"
    yield f"axes (rate counts {manifest.rate_counts})"
    for name, values in zip(AXIS_NAMES, manifest.axes.values, strict=True):
        yield f"  {name:<15}{len(values):>4}: {' '.join(f'{value:g}' for value in values)}"
    yield "cells"
    header = ("π", "arm", "measured", "interpolated", "nearest", "measured cells", "degraded", "samples")
    yield "  {:<9}{:<9}{:>9}{:>14}{:>9}{:>16}{:>10}{:>10}".format(*header)
    for assignment, arms in summary.arms.items():
        for arm, counts in arms.items():
            yield (
                f"  {assignment:<9}{arm:<9}{counts.measured:>9.1%}{counts.interpolated:>14.1%}{counts.nearest:>9.1%}"
                f"{counts.measured_cells:>16}{counts.degraded_cells:>10}{counts.samples:>10}"
            )
    yield "routes in measured cells at weights ttft={:g}, tpot={:g}".format(*summary.weights)
    for assignment, counted in summary.routes.items():
        parts = ", ".join(f"{name} {count} ({count / counted.cells:.1%})" for name, count in counted.routes.items())
        yield (
            f"  {assignment:<9}{parts or 'no cell has every arm'}"
            f"{f'; {counted.decided_by_success} of them by success' if counted.decided_by_success else ''}"
        )
    for assignment, reason in manifest.left_out.items():
        yield f"left out {assignment}: {reason}"
    for note in manifest.notes:
        yield f"note: {note}"
