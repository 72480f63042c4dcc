"""One run, from checked wishes to a result.

Rule of this room: the only place where the real clock is read and signals are caught.
"""

from __future__ import annotations

import asyncio
import datetime
import gc
import itertools
import resource
import secrets
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.version import VERSION
from loadtest.live import overhead, preflight, progress
from loadtest.live.book import Book
from loadtest.live.client import Client, Patience
from loadtest.live.driver import Driver, Manner
from loadtest.live.endpoint import Endpoint
from loadtest.live.errors import LoadtestError
from loadtest.live.results import Result, Setup, result_of
from loadtest.live.schedule import Arrivals, Casting, Window, plan
from loadtest.live.slo import Slo
from loadtest.live.talks import ASSUMED_TOKENS_PER_WORD, STREAMED, MakeSource

_SPARE_FILES = 100


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the operator asked for, checked. models: with weights; none: the only one that is served.

    fields: of every body. marked: no prompt begins like one of an earlier run or conversation.
    """

    endpoints: Sequence[Endpoint]
    make_source: MakeSource
    arrivals: Arrivals
    window: Window
    api: str = "chat"
    models: Sequence[tuple[str, float]] = ()
    paired: bool = True
    patience: Patience = field(default_factory=Patience)
    fields: dict[str, Any] = field(default_factory=lambda: dict(STREAMED))
    max_in_flight: int = 100_000
    session_header: str | None = None
    marked: bool = True
    slo: Slo | None = None
    seed: int = 1
    header_names: Sequence[str] = ()
    shows: bool = True


class RealClock:
    """`time.perf_counter`; waits with the event loop's timers, which have a resolution of 1 ms."""

    def now(self) -> float:
        return time.perf_counter()

    async def until(self, moment_s: float) -> None:
        while (left_s := moment_s - time.perf_counter()) > 0:  # noqa: ASYNC110 - a timer may fire early
            await asyncio.sleep(left_s)


async def carry_out(wishes: Wishes) -> tuple[Result, Book]:
    """Look at the endpoints, put the load on them, work out the figures. Raises LoadtestError before anything is sent.

    SIGINT and SIGTERM end the run; the result then says so.
    """
    clock = RealClock()
    clients = [
        Client(endpoint, wishes.api, wishes.patience, clock.now, wishes.session_header) for endpoint in wishes.endpoints
    ]
    try:
        found = await preflight.look_at(clients, wishes.api, [name for name, _ in wishes.models], wishes.fields)
        source = wishes.make_source(found.tokens_per_word or ASSUMED_TOKENS_PER_WORD)
        models = list(wishes.models) or [(name, 1.0) for name in found.models]
        casting = Casting(len(clients), models, wishes.paired)
        planned = plan(source, wishes.arrivals, casting, wishes.window, wishes.seed)
        first = next(planned, None)
        if first is None:
            raise LoadtestError("--duration: nothing arrives in so short a time at this rate")
        limits = [limit for limit in found.models.values() if limit is not None]
        manner = Manner(
            api=wishes.api,
            mark=secrets.token_hex(4) if wishes.marked else "",
            fields=wishes.fields,
            max_in_flight=wishes.max_in_flight,
            max_model_len=min(limits, default=None),
        )
        began = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        book = Book(len(clients), wishes.window)
        rest_of_memory()
        async with overhead.metering() as meter:
            book.started_s = clock.now()
            driver = Driver(itertools.chain([first], planned), source, clients, manner, book, clock)
            interrupted_s = await _until_done_or_stopped(driver, book, clock, shows=wishes.shows)
    finally:
        for client in clients:
            client.close()
    setup = _setup(wishes, source.words, models, found.tokens_per_word, began)
    return result_of(setup, book, wishes.slo, overhead.overhead_of(meter, book), interrupted_s), book


async def _until_done_or_stopped(driver: Driver, book: Book, clock: RealClock, *, shows: bool) -> float | None:
    """Gives the second at which somebody stopped it."""
    loop = asyncio.get_running_loop()
    running = asyncio.create_task(driver.run())
    stopped: list[float] = []

    def stop() -> None:
        stopped.append(clock.now() - book.started_s)
        running.cancel()

    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, stop)
    try:
        if shows:
            async with progress.shown(book, lambda: clock.now() - book.started_s):
                await asyncio.wait([running])
        else:
            await asyncio.wait([running])
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
        running.cancel()
    if running.cancelled() and stopped:
        return stopped[0]
    running.result()
    return None


def _setup(
    wishes: Wishes, words: str, models: Sequence[tuple[str, float]], tokens_per_word: float | None, began: str
) -> Setup:
    assignment = ""
    if len(wishes.endpoints) == 2:
        assignment = (
            "conversations in pairs that say the same, one to each endpoint, a seeded coin says which first"
            if wishes.paired
            else "each conversation by a seeded coin"
        )
    return Setup(
        urls=[endpoint.url for endpoint in wishes.endpoints],
        api=wishes.api,
        models=dict(models),
        workload=words,
        arrivals=wishes.arrivals.words,
        assignment=assignment,
        warmup_s=wishes.window.warmup_s,
        end_s=wishes.window.end_s,
        slo="" if wishes.slo is None else wishes.slo.words,
        seed=wishes.seed,
        timeout_s=wishes.patience.total_s,
        first_token_timeout_s=wishes.patience.first_s,
        max_in_flight=wishes.max_in_flight,
        header_names=list(wishes.header_names),
        tokens_per_word=tokens_per_word,
        began=began,
        version=VERSION,
    )


def rest_of_memory() -> None:
    """Let full garbage collections be rare: each would be a pause in the middle of the measurement."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def allow_files(wanted: int) -> None:
    """A connection is a file. Raises LoadtestError when the system does not allow that many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard not in (resource.RLIM_INFINITY,) and wanted + _SPARE_FILES > hard:
        raise LoadtestError(f"--max-in-flight {wanted}: this system allows {hard} open files (ulimit -Hn)")
    if soft not in (resource.RLIM_INFINITY,) and soft < wanted + _SPARE_FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted + _SPARE_FILES, hard))
