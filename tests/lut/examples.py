"""Small tables, sets and raw points for these tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from lut.axes import Axes
from lut.cell import FIELDS, UNKNOWN_CI, Arm, Cell, Route
from lut.lookup import table_shape
from lut.publish import Draft, DraftTable, FloatArray, write_table_set
from lut.raw import Located, RawPoint
from lut.tableset import TableSet

AXES = Axes(context_tokens=(0, 256, 2048), new_tokens=(16, 64), output_tokens=(1, 32, 256), rate=(0.5, 2.0, 8.0, 32.0))
BOTH: tuple[Route, ...] = ("pd", "local")
ALL: tuple[Route, ...] = ("pd", "local", "readback")


def arm(ttft: float = 0.1, tpot: float = 0.01, success: float = 1.0, **others: float) -> Arm:
    fields = {"ttft_p99": 2 * ttft, "tpot_p99": 2 * tpot, "samples": 30, "ttft_ci": UNKNOWN_CI, "tpot_ci": UNKNOWN_CI}
    return Arm(**{**fields, "origin": 0, **others, "ttft_mean": ttft, "tpot_mean": tpot, "success": success})


def cell(pd: Arm, local: Arm, readback: Arm | None = None) -> Cell:
    return Cell(pd, local, readback, 2048, 64, 256, 8.0)


def numbered(axes: Axes = AXES, arms: tuple[Route, ...] = BOTH) -> FloatArray:
    """Every TTFT is the number of its cell and arm, everything else is healthy."""
    data = np.empty(table_shape(axes, arms), dtype="<f4")
    data[...] = arm()
    data[..., 0] = np.arange(data[..., 0].size).reshape(data.shape[:-1])
    return data


def filled(function: Callable[..., Arm], axes: Axes = AXES, arms: tuple[Route, ...] = BOTH) -> FloatArray:
    """`function(arm, context, new, output, rate)` in every cell."""
    data = np.empty(table_shape(axes, arms), dtype="<f4")
    for place in np.ndindex(*axes.shape):
        point = [values[index] for values, index in zip(axes.values, place, strict=True)]
        for index, name in enumerate(arms):
            data[place][index] = function(name, *point)
    return data


def draft(tables: dict[str, DraftTable] | None = None, **others: Any) -> Draft:
    content = {"1P_3D": DraftTable(BOTH, numbered())} if tables is None else tables
    return Draft(**{"model": "sim", "block_size": 16, "simulated": True, "axes": AXES, "tables": content, **others})


def written(directory: Path, *names: str) -> TableSet:
    tables = {name: DraftTable(BOTH, numbered()) for name in names or ("1P_3D",)}
    return TableSet.open(write_table_set(directory, draft(tables)))


def raw(**others: Any) -> RawPoint:
    fields = {
        "assignment": "1P_3D",
        "arm": "pd",
        "context_tokens": 256,
        "new_tokens": 64,
        "output_tokens": 32,
        "rate": 2.0,
        "rate_achieved": 2.1,
        "repeat": 0,
        "samples": 20,
        "success": 1.0,
        "ttft_mean_s": 0.1,
        "ttft_p99_s": 0.2,
        "tpot_mean_s": 0.01,
        "tpot_p99_s": 0.02,
        "model": "sim",
        "block_size": 16,
        "simulated": True,
        "started_at": "2026-11-29T16:00:00Z",
        "duration_s": 10.0,
        "stopped": None,
    }
    return RawPoint(**{**fields, **others})


def dead(**others: Any) -> RawPoint:
    """A point at which no turn succeeded."""
    nothing = dict.fromkeys(("ttft_mean_s", "ttft_p99_s", "tpot_mean_s", "tpot_p99_s"))
    return raw(**{"success": 0.0, **nothing, **others})


def located(*points: RawPoint) -> list[Located]:
    return [Located(f"raw.jsonl:{number}", point) for number, point in enumerate(points, start=1)]


def field(data: FloatArray, name: str, arm_index: int) -> FloatArray:
    """One field of one arm in every cell."""
    column: FloatArray = data[..., arm_index, FIELDS.index(name)]
    return column
