"""The turns as they go: a live table on a terminal, one line per finished turn elsewhere.

Rule of this room: shows rows, measures nothing. A turn that is under way shows what is known of it so far.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from loadtest.demo.record import Board, Row

ROUTE_STYLES = {"local": "green", "pd": "yellow", "replica": "cyan"}
HEADINGS = ("conv", "turn", "route", "pods", "context", "new", "output", "cached", "TTFT ms", "TPOT ms")
_LEFT = 4
"""Columns from the left that hold words."""


@contextmanager
def board(console: Console, title: str) -> Iterator[Board]:
    """Show a run's turns until the `with` ends."""
    if not console.is_terminal:
        lines = LineBoard(console, title)
        yield lines
        return
    table = TableBoard(title)
    with Live(console=console, auto_refresh=False, get_renderable=table.render) as live:
        table.live = live
        yield table


def cells(row: Row) -> tuple[str, ...]:
    """A row's cells, in the order of the headings."""
    return (
        row.conversation,
        str(row.turn),
        row.route,
        row.pods,
        f"{row.context_tokens:,}",
        f"{row.new_tokens:,}",
        f"{row.output_tokens:,}",
        "-" if row.cached_tokens is None else f"{row.cached_tokens:,}",
        milliseconds(row.ttft_ms),
        milliseconds(row.tpot_ms),
    )


def milliseconds(value: float | None) -> str:
    """One decimal below 100, none above."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


class LineBoard:
    """One line per turn, when it has ended."""

    _WIDTHS = (4, 4, 7, 8, 7, 5, 6, 6, 7, 7)

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        console.print(title, highlight=False)
        self._line(HEADINGS)

    def sent(self, conversation: str, turn: int) -> None:
        """Shown when it has ended."""

    def spoke(self, conversation: str, turn: int, ttft_s: float) -> None:
        """Shown when it has ended."""

    def settled(self, row: Row) -> None:
        self._line(cells(row))

    def _line(self, texts: tuple[str, ...]) -> None:
        padded = [
            text.ljust(width) if index < _LEFT else text.rjust(width)
            for index, (text, width) in enumerate(zip(texts, self._WIDTHS, strict=True))
        ]
        self._console.print("  ".join(padded).rstrip(), highlight=False, soft_wrap=True)


class TableBoard:
    """A table that is drawn anew at each event."""

    def __init__(self, title: str) -> None:
        self.live: Live | None = None
        self._title = title
        self._cells: dict[tuple[int, int], tuple[str, ...]] = {}

    def sent(self, conversation: str, turn: int) -> None:
        self._put(conversation, turn, (conversation, str(turn), "…", "", "", "", "", "", "", ""))

    def spoke(self, conversation: str, turn: int, ttft_s: float) -> None:
        first = milliseconds(ttft_s * 1000)
        self._put(conversation, turn, (conversation, str(turn), "…", "", "", "", "", "", first, "…"))

    def settled(self, row: Row) -> None:
        self._put(row.conversation, row.turn, cells(row))

    def render(self) -> Table:
        """The table of this moment."""
        table = Table(title=self._title, title_justify="left", title_style="bold", box=None, padding=(0, 1, 0, 0))
        for index, heading in enumerate(HEADINGS):
            table.add_column(heading, justify="left" if index < _LEFT else "right", no_wrap=True)
        for key in sorted(self._cells):
            texts = self._cells[key]
            style = ROUTE_STYLES.get(texts[2], "dim")
            shown = [Text(text, style=style if index in (2, 3) else "") for index, text in enumerate(texts)]
            table.add_row(*shown, end_section=False)
        return table

    def _put(self, conversation: str, turn: int, texts: tuple[str, ...]) -> None:
        self._cells[int(conversation), turn] = texts
        if self.live is not None:
            self.live.refresh()
