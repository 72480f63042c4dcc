"""One node assignment's table and the two ways to ask it.

Rule of this room: this is the request path. A lookup reads a few dozen bytes of the mapped file and makes one `Cell`;
it never raises for a number, whatever the number. The file is not checked here (`lut.tableset` does that before). NumPy
(12 MB, and a thread per core) is for those who look at whole tables, and loaded when the first of them does.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Sequence
from operator import mul
from typing import TYPE_CHECKING

from lut.axes import AXIS_NAMES, Axes
from lut.cell import ARMS, FIELDS, HEALTHY_SUCCESS, UNKNOWN_CI, Arm, Cell, Route

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

ARM_BYTES = 4 * len(FIELDS)
_ARM = struct.Struct(f"<{len(FIELDS)}f")
_SUCCESS = FIELDS.index("success")
_SAMPLES = FIELDS.index("samples")
_TTFT_CI = FIELDS.index("ttft_ci")
_TPOT_CI = FIELDS.index("tpot_ci")
_ORIGIN = FIELDS.index("origin")
_LOCAL_BYTES = ARMS.index("local") * ARM_BYTES
_READBACK_BYTES = ARMS.index("readback") * ARM_BYTES
_new = tuple.__new__


def table_shape(axes: Axes, arms: tuple[Route, ...]) -> tuple[int, ...]:
    """(context, new, output, rate, arms, fields)."""
    return (*axes.shape, len(arms), len(FIELDS))


class Table:
    """The cells of one node assignment.

    It is made of float32, C order, little endian, shape `table_shape(axes, arms)`: a NumPy array, or usually a view of
    a file mapped for reading, whose pages all processes share. `arms` is ("pd", "local") or those and "readback".

    Arguments of a lookup are any numbers: what lies below an axis, is negative or NaN ("not known") is taken as the
    axis's first value, what lies above as its last.
    """

    __slots__ = (
        "_byte_steps",
        "_cell",
        "_has_readback",
        "_midpoints",
        "_scales",
        "_values",
        "arms",
        "assignment",
        "axes",
        "content",
    )

    def __init__(
        self, assignment: str, axes: Axes, arms: tuple[Route, ...], data: memoryview[float] | npt.NDArray[np.float32]
    ) -> None:
        if arms not in (ARMS[:2], ARMS):
            raise ValueError(f"arms are {arms}, not pd and local (and readback)")
        shape = table_shape(axes, arms)
        view = data if isinstance(data, memoryview) else data.data
        if view.shape != shape or view.format != "f" or not view.c_contiguous:
            raise ValueError(f"array is {view.format} {view.shape}, not little-endian float32 {shape} in C order")
        self.assignment = assignment
        self.axes = axes
        self.arms = arms
        self.content = view.cast("B")
        self._scales = axes.scales()
        self._midpoints = tuple(scale.midpoints for scale in self._scales)
        self._values = axes.values
        self._byte_steps = tuple(step * len(arms) * ARM_BYTES for step in _cell_steps(axes.shape))
        self._cell = struct.Struct(f"<{len(arms) * len(FIELDS)}f")
        self._has_readback = len(arms) > 2

    def place(
        self, context_tokens: float, new_tokens: float, output_tokens: float, rate: float
    ) -> tuple[int, int, int, int]:
        """The indices of that cell which `nearest` answers from."""
        c_midpoints, i_midpoints, o_midpoints, q_midpoints = self._midpoints
        return (
            bisect_left(c_midpoints, context_tokens),
            bisect_left(i_midpoints, new_tokens),
            bisect_left(o_midpoints, output_tokens),
            bisect_left(q_midpoints, rate),
        )

    def nearest(self, context_tokens: float, new_tokens: float, output_tokens: float, rate: float) -> Cell:
        """The cell whose axis values are nearest in log coordinates, axis by axis."""
        c_midpoints, i_midpoints, o_midpoints, q_midpoints = self._midpoints
        c_values, i_values, o_values, q_values = self._values
        c_bytes, i_bytes, o_bytes, q_bytes = self._byte_steps
        c = bisect_left(c_midpoints, context_tokens)
        i = bisect_left(i_midpoints, new_tokens)
        o = bisect_left(o_midpoints, output_tokens)
        q = bisect_left(q_midpoints, rate)
        at = c * c_bytes + i * i_bytes + o * o_bytes + q * q_bytes
        data, unpack = self.content, _ARM.unpack_from
        pd = _new(Arm, unpack(data, at))
        local = _new(Arm, unpack(data, at + _LOCAL_BYTES))
        readback = _new(Arm, unpack(data, at + _READBACK_BYTES)) if self._has_readback else None
        return _new(Cell, (pd, local, readback, c_values[c], i_values[i], o_values[o], q_values[q]))

    def interpolated(self, context_tokens: float, new_tokens: float, output_tokens: float, rate: float) -> Cell:
        """Multilinear in log coordinates over the (up to 16) cells around the point.

        When an arm of any of them is degraded its latencies mean nothing, so `nearest` answers. `samples` is the
        smallest of the corners, `origin` the worst, a confidence interval unknown when one of them is. The axis values
        of the cell are the arguments, clamped.
        """
        corners, weights = [0], [1.0]
        query = (context_tokens, new_tokens, output_tokens, rate)
        for value, scale, step in zip(query, self._scales, self._byte_steps, strict=True):
            lower, upper, weight = scale.bracket(value)
            if lower == upper:
                corners = [corner + lower * step for corner in corners]
            else:
                corners = [corner + index * step for index in (lower, upper) for corner in corners]
                weights = [w * part for part in (1.0 - weight, weight) for w in weights]
        if len(corners) == 1:
            return self.nearest(*query)
        data, unpack = self.content, self._cell.unpack_from
        columns = list(zip(*[unpack(data, corner) for corner in corners], strict=True))
        if any(min(successes) < HEALTHY_SUCCESS for successes in columns[_SUCCESS :: len(FIELDS)]):
            return self.nearest(*query)
        arms = [_blend(columns[at : at + len(FIELDS)], weights) for at in range(0, len(columns), len(FIELDS))]
        readback = arms[2] if len(arms) > 2 else None
        point = [scale.clamp(value) for value, scale in zip(query, self._scales, strict=True)]
        return Cell(arms[0], arms[1], readback, *point)

    @property
    def data(self) -> npt.NDArray[np.float32]:
        """All numbers, a view of shape (context, new, output, rate, arms, fields)."""
        import numpy as np

        return np.frombuffer(self.content, "<f4").reshape(table_shape(self.axes, self.arms))

    def column(self, arm: Route, field: str) -> npt.NDArray[np.float32]:
        """One field of one arm in every cell, a view of shape (context, new, output, rate)."""
        view: npt.NDArray[np.float32] = self.data[..., self.arms.index(arm), FIELDS.index(field)]
        return view

    def __repr__(self) -> str:
        shape = "×".join(f"{len(values)} {name}" for name, values in zip(AXIS_NAMES, self._values, strict=True))
        return f"<Table {self.assignment} {shape}>"


def _cell_steps(shape: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """How many cells further one step along each axis is."""
    _, new, output, rate = shape
    return new * output * rate, output * rate, rate, 1


def _blend(columns: Sequence[tuple[float, ...]], weights: Sequence[float]) -> Arm:
    """The weighted mean of an arm at several corners; columns: per field, the numbers of all corners."""
    fields = [sum(map(mul, weights, column)) for column in columns]
    fields[_SAMPLES] = min(columns[_SAMPLES])
    fields[_ORIGIN] = max(columns[_ORIGIN])
    for interval in (_TTFT_CI, _TPOT_CI):
        if min(columns[interval]) < 0:
            fields[interval] = UNKNOWN_CI
    return Arm(*fields)
