"""`lut plot`: heat maps of one table over context × new tokens.

Rule of this room: matplotlib is an optional extra and is imported only when something is drawn; what is drawn is worked
out by `panels`, without it. Filled cells are dotted.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lut.cell import ARMS, Cell, Origin
from lut.errors import TableError, refuse
from lut.lookup import Table
from lut.score import score

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Drawing
    from matplotlib.colors import Colormap

ROUTE_NAMES = ("pd", "tie", "local", "readback")
_ROUTE_COLOURS = ("#c2543d", "#d9d9d9", "#3b7dbd", "#7b5ea7")

Grid = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Panels:
    """What is drawn; each grid has the shape (context, new)."""

    title: str
    context_tokens: tuple[float, ...]
    new_tokens: tuple[float, ...]
    dttft: Grid
    dtpot: Grid
    s: Grid
    route: npt.NDArray[np.int_]
    """Index into ROUTE_NAMES."""
    filled: npt.NDArray[np.bool_]
    """Some arm was not measured."""


def panels(table: Table, weights: tuple[float, float], output_tokens: float | None, rate: float | None) -> Panels:
    """The plane of the table nearest to an output length and a rate (None: the middle of the axis)."""
    axes = table.axes
    output = axes.output_tokens[len(axes.output_tokens) // 2] if output_tokens is None else output_tokens
    turns = axes.rate[len(axes.rate) // 2] if rate is None else rate
    shape = (len(axes.context_tokens), len(axes.new_tokens))
    dttft, dtpot, s = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    route, filled = np.zeros(shape, dtype=np.int_), np.zeros(shape, dtype=np.bool_)
    cell = table.nearest(axes.context_tokens[0], axes.new_tokens[0], output, turns)
    for row, context in enumerate(axes.context_tokens):
        for column, new in enumerate(axes.new_tokens):
            cell = table.nearest(context, new, output, turns)
            result = score(cell, *weights)
            at = row, column
            dttft[at], dtpot[at], s[at] = result.dttft, result.dtpot, result.s
            route[at] = ROUTE_NAMES.index(result.route or "tie")
            filled[at] = _is_filled(cell)
    # `cell` is any cell of the plane: all have the same output length and rate.
    title = (
        f"{table.assignment}, out={cell.output_tokens:g}, {cell.rate:g} turns/s, "
        f"w_ttft={weights[0]:g}, w_tpot={weights[1]:g}"
    )
    return Panels(title, axes.context_tokens, axes.new_tokens, dttft, dtpot, s, route, filled)


def _is_filled(cell: Cell) -> bool:
    arms = (getattr(cell, name) for name in ARMS)
    return any(arm is not None and arm.origin != Origin.MEASURED for arm in arms)


def draw(content: Panels, path: Path, subtitle: str) -> None:
    """Write one PNG. Raises TableError when matplotlib is not installed or the file cannot be written."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.colors import ListedColormap
        from matplotlib.figure import Figure
    except ImportError as error:
        raise TableError("lut plot needs matplotlib: pip install 'ppd-gateway[plot]'") from error
    figure = Figure(figsize=(13, 9), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"{content.title}\n{subtitle}")
    drawings = figure.subplots(2, 2)
    signed: list[tuple[str, Grid, str]] = [
        ("Δttft: share of TTFT that local saves", content.dttft, "RdBu"),
        ("Δtpot: share of TPOT that local adds", content.dtpot, "RdBu_r"),
        ("S (> 0: local)", content.s, "RdBu"),
    ]
    for drawing, (name, grid, colours) in zip(drawings.flat, signed, strict=False):
        reach = max(float(np.abs(grid).max()), 1e-6)
        image = _heat_map(drawing, name, grid, content, colours, -reach, reach)
        _write_numbers(drawing, grid, reach)
        figure.colorbar(image, ax=drawing)
    last = len(ROUTE_NAMES) - 0.5
    image = _heat_map(drawings.flat[3], "route", content.route, content, ListedColormap(_ROUTE_COLOURS), -0.5, last)
    bar = figure.colorbar(image, ax=drawings.flat[3], ticks=range(len(ROUTE_NAMES)))
    bar.ax.set_yticklabels(ROUTE_NAMES)
    try:
        figure.savefig(path, format="png", dpi=110)
    except OSError as error:
        raise refuse(path, f"cannot be written ({error.strerror})") from error


def _heat_map(
    drawing: Drawing,
    name: str,
    grid: npt.NDArray[Any],
    content: Panels,
    colours: str | Colormap,
    low: float,
    high: float,
) -> Any:
    image = drawing.imshow(grid, origin="lower", aspect="auto", cmap=colours, vmin=low, vmax=high)
    drawing.set_title(f"{name}    · filled, not measured")
    drawing.set_xlabel("new tokens")
    drawing.set_ylabel("context tokens")
    drawing.set_xticks(range(len(content.new_tokens)), [f"{value:g}" for value in content.new_tokens])
    drawing.set_yticks(range(len(content.context_tokens)), [f"{value:g}" for value in content.context_tokens])
    rows, columns = np.nonzero(content.filled)
    drawing.plot(columns, rows - 0.3, linestyle="none", marker=".", color="black", markersize=3)
    return image


def _write_numbers(drawing: Drawing, grid: Grid, reach: float) -> None:
    """The values into the cells, while they are few enough to be read."""
    if grid.size > 200:
        return
    for (row, column), value in np.ndenumerate(grid):
        colour = "white" if abs(value) > 0.7 * reach else "black"
        drawing.text(column, row, f"{value:+.2f}", ha="center", va="center", fontsize=8, color=colour)
