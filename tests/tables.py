"""Small table sets for tests, with numbers one can work out by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from lut.axes import Axes
from lut.cell import FIELDS, Arm
from lut.lookup import table_shape
from lut.publish import Draft, DraftTable, write_table_set
from lut.table import TableSet

AXES = Axes(context_tokens=(0, 1024, 8192), new_tokens=(16, 256), output_tokens=(32, 512), rate=(1.0, 10.0))

Point = tuple[float, float, float, float]
ArmOf = Callable[[Point], Arm]


def arm(ttft_ms: float, tpot_ms: float, *, success: float = 1.0, ci_ms: float = -1000.0) -> Arm:
    """An arm with these means; confidence half widths of both means in ms, negative for not known."""
    ci = -1.0 if ci_ms < 0 else ci_ms / 1000
    ttft, tpot = ttft_ms / 1000, tpot_ms / 1000
    return Arm(ttft, 2 * ttft, tpot, 2 * tpot, success, 50.0, ci, ci, 0.0)


def write_set(
    directory: Path,
    tables: Mapping[str, tuple[ArmOf | Arm, ArmOf | Arm]],
    *,
    model: str = "sim",
    simulated: bool = False,
    axes: Axes = AXES,
) -> Path:
    """Write a set; per assignment the pd arm and the local arm, fixed or as a function of the point."""
    drafts = {name: DraftTable(("pd", "local"), _fill(axes, arms)) for name, arms in tables.items()}
    return write_table_set(
        directory, Draft(model=model, block_size=16, simulated=simulated, axes=axes, tables=drafts, gpu="test")
    )


def make_set(directory: Path, tables: Mapping[str, tuple[ArmOf | Arm, ArmOf | Arm]], **options: bool) -> TableSet:
    """Write a set and open it."""
    return TableSet.open(write_set(directory, tables, **options))  # type: ignore[arg-type]


def _fill(axes: Axes, arms: tuple[ArmOf | Arm, ArmOf | Arm]) -> np.ndarray:  # type: ignore[type-arg]
    data = np.zeros(table_shape(axes, ("pd", "local")), dtype="<f4")
    for index in np.ndindex(*axes.shape):
        point = tuple(float(values[at]) for values, at in zip(axes.values, index, strict=True))
        for number, one in enumerate(arms):
            data[(*index, number)] = one if isinstance(one, Arm) else one(point)  # type: ignore[arg-type]
    assert data.shape[-1] == len(FIELDS)
    return data
