"""PNG plots of what a report says in numbers.

Rule of this room: matplotlib is an optional extra, imported only when something is drawn. A series is data; every
series has its own marker and dash as well as its colour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from loadtest.experiments.errors import ExperimentError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = (
    "#1b6ca8",
    "#c2543d",
    "#4f8f3a",
    "#7b5ea7",
    "#b8860b",
    "#2f9e9e",
    "#8c564b",
    "#555555",
    "#d6719b",
    "#0f3b57",
)
_MARKERS = "osD^vPX*<>"
_DASHES = ("-", "--", "-.", ":")
_REPLICAS = "#111111"


class Point(NamedTuple):
    """half: of an interval in y, 0 for none."""

    x: float
    y: float
    half: float = 0.0
    label: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One set of axes. Series by name; joined: their points are connected; share: y goes from 0 to 1."""

    title: str
    x_name: str
    y_name: str
    series: Mapping[str, Sequence[Point]]
    log_x: bool = False
    log_y: bool = False
    joined: bool = True
    share: bool = False


def available() -> bool:
    """Whether anything can be drawn."""
    try:
        import matplotlib.backends.backend_agg  # noqa: F401
    except ImportError:
        return False
    return True


def draw(path: Path, title: str, panels: Sequence[Panel], *, columns: int = 2) -> None:
    """Write one PNG. Raises ExperimentError when matplotlib is not installed or the file cannot be written."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ExperimentError("plots need matplotlib: pip install 'ppd-gateway[plot]'") from None
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(6.2 * columns, 4.2 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    names = list(dict.fromkeys(name for panel in panels for name in panel.series))
    for index, panel in enumerate(panels):
        axes = figure.add_subplot(rows, columns, index + 1)
        _fill(axes, panel, names)
    if len(names) > 1:
        figure.legend(*_legend(figure.axes, names), loc="outside lower center", ncols=min(4, len(names)), fontsize=8)
    figure.suptitle(title, fontsize=11)
    try:
        figure.savefig(path, dpi=90, metadata={"Software": None})
    except OSError as error:
        raise ExperimentError(f"{path}: cannot be written ({error.strerror})") from None


def _fill(axes: Axes, panel: Panel, names: Sequence[str]) -> None:
    for name, points in panel.series.items():
        colour, marker, dash = _look(name, names.index(name))
        axes.errorbar(
            [point.x for point in points],
            [point.y for point in points],
            yerr=[point.half for point in points] if any(point.half > 0 for point in points) else None,
            label=name,
            color=colour,
            marker=marker,
            markersize=4.5,
            linewidth=1.4,
            linestyle=dash if panel.joined else "none",
            capsize=2,
        )
        for point in points:
            if point.label:
                axes.annotate(point.label, (point.x, point.y), fontsize=7, xytext=(3, 3), textcoords="offset points")
    axes.set_title(panel.title, fontsize=9)
    axes.set_xlabel(panel.x_name, fontsize=8)
    axes.set_ylabel(panel.y_name, fontsize=8)
    axes.tick_params(labelsize=7)
    if panel.log_x:
        axes.set_xscale("log")
    if panel.log_y:
        axes.set_yscale("log")
    if panel.share:
        axes.set_ylim(0.0, 1.05)
    axes.grid(alpha=0.3)


def _look(name: str, index: int) -> tuple[str, str, str]:
    if name[:-1].isdigit() and name.endswith("R"):
        return _REPLICAS, "s", ":"
    return _COLOURS[index % len(_COLOURS)], _MARKERS[index % len(_MARKERS)], _DASHES[index // len(_COLOURS) % 4]


def _legend(all_axes: Sequence[Axes], names: Sequence[str]) -> tuple[list[Any], list[str]]:
    handles: dict[str, Any] = {}
    for axes in all_axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    return [handles[name] for name in names], list(names)
