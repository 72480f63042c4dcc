"""CDFs of TTFT, latency over time, throughput, as PNG files.

Rule of this room: matplotlib is an optional extra and is imported only when something is drawn; what is drawn is
worked out without it.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadtest.live.book import Book, TurnRecord
from loadtest.live.errors import LoadtestError
from loadtest.live.figures import in_group, percentile
from loadtest.live.results import NAMES

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Drawing

_COLOURS = ("#c2543d", "#3b7dbd")
_BINS = 60

Points = tuple[list[float], list[float]]


def available() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def cdf(turns: Sequence[TurnRecord]) -> Points:
    """(TTFT ms, share of all turns within it); failures keep it below 1."""
    ordered = sorted(turn.ttft_s for turn in turns)
    known = [(value * 1e3, (rank + 1) / len(ordered)) for rank, value in enumerate(ordered) if math.isfinite(value)]
    return [x for x, _ in known], [y for _, y in known]


def over_time(turns: Sequence[TurnRecord], end_s: float, share: float) -> Points:
    """(middle of each bin in s, percentile of TTFT in ms); a bin whose percentile is infinite has none."""
    width_s = max(1.0, end_s / _BINS)
    bins: dict[int, list[float]] = {}
    for turn in turns:
        bins.setdefault(int(turn.due_s / width_s), []).append(turn.ttft_s)
    points = []
    for index, values in sorted(bins.items()):
        value = percentile(sorted(values), share)
        if value is not None and math.isfinite(value):
            points.append(((index + 0.5) * width_s, value * 1e3))
    return [x for x, _ in points], [y for _, y in points]


def throughput(book: Book, arm: int, end_s: float) -> Points:
    """(s, tokens per second)."""
    last = math.ceil(end_s)
    return [float(second) for second in range(last)], [float(book.tokens_per_s[arm, second]) for second in range(last)]


def draw(book: Book, end_s: float, folder: Path) -> list[tuple[str, str]]:
    """Write the files; gives (name, caption) of each. Raises LoadtestError when a file cannot be written."""
    shown = [turn for turn in book.records if math.isfinite(turn.ttft_s)]
    if not shown:
        return []
    arms = range(len(book.arms))
    made = []

    def cdfs(drawing: Drawing) -> None:
        for arm in arms:
            for group, style in (("turn 1", "--"), ("turns 2+", "-")):
                turns = [turn for turn in book.records if turn.arm == arm and in_group(turn, group)]
                x, y = cdf(turns)
                if x:
                    drawing.step(x, y, style, where="post", color=_COLOURS[arm], label=f"{NAMES[arm]}, {group}")
        drawing.set_xscale("log")
        _plain_numbers(drawing.xaxis)
        drawing.set_ylim(0, 1)
        drawing.set_xlabel("TTFT from due time, ms")
        drawing.set_ylabel("share of turns, failures included")

    def latencies(drawing: Drawing) -> None:
        for arm in arms:
            turns = [turn for turn in book.records if turn.arm == arm]
            for value, style in ((0.5, "-"), (0.95, ":")):
                x, y = over_time(turns, end_s, value)
                drawing.plot(x, y, style, color=_COLOURS[arm], label=f"{NAMES[arm]}, P{value * 100:.0f}")
        drawing.set_yscale("log")
        _plain_numbers(drawing.yaxis)
        drawing.set_xlabel("due at, s")
        drawing.set_ylabel("TTFT, ms")

    def rates(drawing: Drawing) -> None:
        for arm in arms:
            x, y = throughput(book, arm, end_s)
            drawing.plot(x, y, color=_COLOURS[arm], label=NAMES[arm])
        drawing.set_xlabel("s")
        drawing.set_ylabel("token events per second")

    for name, caption, fill in (
        ("ttft-cdf.png", "TTFT by turn", cdfs),
        ("ttft-over-time.png", "TTFT over time", latencies),
        ("throughput.png", "Tokens per second over time, warm-up included", rates),
    ):
        _save(folder / name, caption, fill)
        made.append((name, caption))
    return made


def _plain_numbers(axis: Any) -> None:
    """No powers of ten, which are hard to read over less than a decade."""
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter("{x:g}")
    axis.set_tick_params(which="minor", labelsize=7)


def _save(path: Path, title: str, fill: Any) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    drawing = figure.add_subplot()
    fill(drawing)
    drawing.set_title(title)
    drawing.grid(visible=True, alpha=0.3)
    drawing.legend()
    try:
        FigureCanvasAgg(figure).print_png(path)  # type: ignore[no-untyped-call]
    except OSError as error:
        raise LoadtestError(f"{path}: {error.strerror}") from None
