"""Many experiments, on several cores, with a progress bar.

Rule of this room: rows come back in the order of the specs whatever finished first, so results do not depend on the
number of processes.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from typing import TypeVar

from loadtest.experiments.errors import ExperimentError
from loadtest.experiments.rows import Row, row_of
from loadtest.experiments.run import Spec, run

OnRow = Callable[[Row], None]
Given = TypeVar("Given")
Made = TypeVar("Made")


def one(spec: Spec) -> Row:
    """Run one and summarise it."""
    began = time.process_time()
    result = run(spec)
    return row_of(result, time.process_time() - began)


def run_all(specs: Sequence[Spec], jobs: int | None = None, on_row: OnRow = lambda row: None) -> list[Row]:
    """All rows, in the order of specs. jobs: processes, None for one per core; 1 stays in this one."""
    return run_many(one, specs, jobs, on_row)


def run_many(
    work: Callable[[Given], Made],
    given: Sequence[Given],
    jobs: int | None = None,
    on_made: Callable[[Made], None] = lambda made: None,
) -> list[Made]:
    """`work` of each, in their order."""
    jobs = min(jobs or os.cpu_count() or 1, max(1, len(given)))
    if jobs == 1:
        made = []
        for each in given:
            made.append(work(each))
            on_made(made[-1])
        return made
    found: dict[int, Made] = {}
    with ProcessPoolExecutor(jobs) as pool:
        futures = {pool.submit(work, each): index for index, each in enumerate(given)}
        try:
            for future in as_completed(futures):
                found[futures[future]] = future.result()
                on_made(found[futures[future]])
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [found[index] for index in range(len(given))]


@contextmanager
def progress(total: int, what: str, *, quiet: bool = False) -> Iterator[OnRow]:
    """Tell it of each row. A bar where standard error is a terminal and rich is installed, else a line now and then."""
    if quiet:
        yield lambda row: None
        return
    if sys.stderr.isatty():
        try:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
        except ImportError:
            pass
        else:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            with Progress(*columns, console=Console(stderr=True)) as bar:
                task = bar.add_task(what, total=total)
                yield lambda row: bar.advance(task)
            return
    done, turns, said_at = 0, 0, time.monotonic()

    def tell(row: Row) -> None:
        nonlocal done, turns, said_at
        done, turns = done + 1, turns + row.simulated_turns
        if done == total or time.monotonic() - said_at > 10:
            said_at = time.monotonic()
            print(f"{what}: {done}/{total} experiments, {turns} turns", file=sys.stderr, flush=True)

    yield tell


def check_jobs(jobs: int | None) -> int | None:
    """Raises ExperimentError."""
    if jobs is not None and not 1 <= jobs <= 1024:
        raise ExperimentError("--jobs: must be 1 to 1024")
    return jobs
