"""A table set as large as tables get, filled with numbers that mean nothing.

Rule of this room: for measuring how fast and how heavy a table is, never for deciding anything.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lut.axes import Axes
from lut.cell import ARMS, FIELDS
from lut.lookup import table_shape
from lut.publish import Draft, DraftTable, write_table_set

ASSIGNMENT = "16P_48D"


def write_large_set(directory: Path) -> float:
    """Write a set with one table of about 64 MiB; returns its size in MiB."""

    axes = Axes(
        context_tokens=(0, *_tokens(16, 131_072, 31)),
        new_tokens=_tokens(16, 131_072, 31),
        output_tokens=_tokens(8, 16_384, 31),
        rate=tuple(np.geomspace(0.1, 1000, 30).tolist()),
    )
    arms = ARMS[:2]
    data = np.random.default_rng(5).uniform(0.001, 0.5, table_shape(axes, arms)).astype("<f4")
    data[..., FIELDS.index("success")] = 1.0
    data[..., FIELDS.index("samples")] = 100.0
    data[..., FIELDS.index("origin")] = 0.0
    for mean, p99 in (("ttft_mean", "ttft_p99"), ("tpot_mean", "tpot_p99")):
        data[..., FIELDS.index(p99)] = 2 * data[..., FIELDS.index(mean)]
    write_table_set(
        directory,
        Draft(
            model="synthetic",
            block_size=16,
            simulated=True,
            axes=axes,
            tables={ASSIGNMENT: DraftTable(arms, data)},
            notes=("random numbers, for measuring speed",),
        ),
    )
    return data.nbytes / 2**20


def _tokens(first: int, last: int, count: int) -> tuple[int, ...]:
    return tuple(round(value) for value in np.geomspace(first, last, count).tolist())
