"""Going through a plan.

Rule of this room: knows order, resuming and skipping, not how a cell is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gateway.ops.profile.book import Book
from gateway.ops.profile.measure import Measured
from gateway.ops.profile.plan import Plan, Task
from lut.raw import RawPoint


class Bench(Protocol):
    """Something on which a cell can be measured."""

    async def measure(self, task: Task) -> Measured:
        """Measure one cell. Raises ProfileError when the pods cannot be worked with."""


class Audience(Protocol):
    """Who is told how it goes on."""

    def begins(self, task: Task) -> None: ...

    def done(self, task: Task, measured: Measured, line: RawPoint) -> None: ...

    def skipped(self, task: Task, *, known: bool) -> None:
        """known: it is in the file already; else its column was overloaded below its rate."""


async def carry_out(
    plan: Plan, bench: Bench, book: Book, audience: Audience, timestamp: Callable[[], str | None]
) -> None:
    """Measure what is not in the book yet. timestamp: for the lines, asked before each cell."""
    for column in plan.columns():
        overloaded = book.overloaded_in(column)
        for task in column.tasks:
            if task in book:
                audience.skipped(task, known=True)
            elif overloaded is not None and task.rate > overloaded.rate:
                book.write_skipped(task, overloaded)
                audience.skipped(task, known=False)
            else:
                audience.begins(task)
                started_at = timestamp()
                measured = await bench.measure(task)
                line = book.write(task, measured, started_at)
                audience.done(task, measured, line)
                if line.stopped is not None:
                    overloaded = line
