"""How it goes, while it goes.

Rule of this room: on a terminal a table that is drawn over (rich, where it is installed), else a line every ten
seconds, on stderr; looking costs nothing per token.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from statistics import median
from typing import Any, TextIO

from loadtest.live.book import Book
from loadtest.live.results import NAMES
from loadtest.live.text import ms

LINE_EVERY_S = 10.0
DRAW_EVERY_S = 0.5


def row_of(book: Book, number: int, now_s: float) -> list[str]:
    """Name, ended, failed, TTFT and TPOT of recent turns (ms), tokens/s of answers that ended in the last 10 s."""
    arm = book.arms[number]
    second = int(now_s)
    tokens = [arm.ended_tokens[earlier] for earlier in range(max(0, second - 10), second)]
    return [
        NAMES[number],
        str(arm.ended),
        str(sum(arm.failed.values())),
        ms(median(arm.recent_ttft_s)) if arm.recent_ttft_s else "-",
        ms(median(arm.recent_tpot_s)) if arm.recent_tpot_s else "-",
        f"{sum(tokens) / len(tokens):,.0f}" if tokens else "-",
    ]


def line(book: Book, now_s: float) -> str:
    """Everything in one line."""
    said = [f"{min(now_s, book.window.end_s):.0f}/{book.window.end_s:g} s, {book.in_flight} in flight"]
    for number in range(len(book.arms)):
        name, ended, failed, ttft, tpot, tokens = row_of(book, number, now_s)
        said.append(f"{name}: {ended} ended, {failed} failed, TTFT {ttft} ms, TPOT {tpot} ms, {tokens} tokens/s")
    return "; ".join(said)


@asynccontextmanager
async def shown(book: Book, now: Callable[[], float], out: TextIO = sys.stderr) -> AsyncIterator[None]:
    """As long as the `with` lasts. now: seconds from the start of the run."""
    live = _live() if out.isatty() else None
    every_s = LINE_EVERY_S if live is None else DRAW_EVERY_S

    async def look() -> None:
        while True:
            await asyncio.sleep(every_s)
            if live is None:
                print(line(book, now()), file=out, flush=True)
            else:
                live.update(_table(book, now()), refresh=True)

    if live is not None:
        live.start()
    task = asyncio.create_task(look())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if live is not None:
            live.stop()


def _live() -> Any:
    try:
        from rich.console import Console
        from rich.live import Live
    except ModuleNotFoundError:
        return None
    return Live(console=Console(stderr=True), auto_refresh=False, transient=True)


def _table(book: Book, now_s: float) -> Any:
    from rich.table import Table

    caption = line(book, now_s).partition(";")[0]
    table = Table("", "ended", "failed", "TTFT P50 ms", "TPOT P50 ms", "tokens/s", caption=caption)
    for number in range(len(book.arms)):
        table.add_row(*row_of(book, number, now_s))
    return table
