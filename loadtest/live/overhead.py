"""What the load test itself costs, and whether it got in its own way.

Rule of this room: said of every run. A client that is late or busy measures itself, so it says so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from loadtest.live.book import Book
from loadtest.live.figures import percentile

TICK_S = 0.05

BUSY_SHARE = 0.9
"""Of a core, in the busiest second: beyond it, what arrives waits for its turn."""
LATE_P99_S = 0.010
LAG_P99_S = 0.010
WAITED_SHARE = 0.1


class Overhead(msgspec.Struct, frozen=True):
    """cpu_share: of one core, over the run; cpu_busiest_share: in its busiest second. us_per_event: CPU of the whole
    process over the token events it read. waited_share: of the run, in which it could have gone on but other processes
    had the cores (the kernel's run-queue delay; None where it does not say).

    late_*: of sends against the schedule (the event loop's timers have a resolution of 1 ms), where neither the limit
    of requests in flight nor the answer before was the cause. lag_*: of a timer that does nothing else. warnings:
    sentences.
    """

    cpu_s: float
    cpu_share: float
    waited_share: float | None
    cpu_busiest_share: float
    token_events: int
    us_per_event: float | None
    late_p50_s: float | None
    late_p99_s: float | None
    late_max_s: float | None
    lag_p99_s: float | None
    lag_max_s: float | None
    most_in_flight: int
    held_back: int
    warnings: list[str]


class Meter:
    """`async with metering() as meter`: looks at the clock and the CPU as long as the `with` lasts."""

    def __init__(self) -> None:
        self.lags_s: list[float] = []
        self._used: list[tuple[float, float]] = []
        self._began_s = time.perf_counter()
        self._cpu_s = time.process_time()
        self._waited_s = run_queue_delay_s()
        self.lasted_s = self.cpu_s = 0.0
        self.waited_s: float | None = None

    def tick(self, due_s: float) -> None:
        """Look; it was to be done at due_s."""
        now_s = time.perf_counter()
        self.lags_s.append(max(0.0, now_s - due_s))
        self._used.append((now_s, time.process_time()))

    @property
    def busiest_share(self) -> float:
        """CPU over time in the busiest second; the whole run's where it was shorter."""
        per_second = round(1 / TICK_S)
        pairs = zip(self._used, self._used[per_second:], strict=False)
        shares = [(cpu - cpu_before) / (at - before) for (before, cpu_before), (at, cpu) in pairs]
        return max(shares, default=self.cpu_s / self.lasted_s if self.lasted_s else 0.0)

    def end(self) -> None:
        self.lasted_s = time.perf_counter() - self._began_s
        self.cpu_s = time.process_time() - self._cpu_s
        waited_s = run_queue_delay_s()
        if waited_s is not None and self._waited_s is not None:
            self.waited_s = waited_s - self._waited_s


def run_queue_delay_s(process: int | str = "self") -> float | None:
    """How long a process has waited for a core since it was started; None where the kernel does not say."""
    try:
        return int(Path(f"/proc/{process}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return None


@asynccontextmanager
async def metering() -> AsyncIterator[Meter]:
    """The meter's figures are final after the `with`."""
    meter = Meter()

    async def tick() -> None:
        while True:
            due_s = time.perf_counter() + TICK_S
            await asyncio.sleep(TICK_S)
            meter.tick(due_s)

    task = asyncio.create_task(tick())
    try:
        yield meter
    finally:
        meter.end()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def overhead_of(meter: Meter, book: Book) -> Overhead:
    """Put together, with the warnings."""
    lates = sorted(book.late_s)
    lags = sorted(meter.lags_s)
    share = meter.cpu_s / meter.lasted_s if meter.lasted_s else 0.0
    held_back = sum(turn.held_back for turn in book.records)
    late_p99_s, lag_p99_s = percentile(lates, 0.99), percentile(lags, 0.99)
    warnings = []
    busiest = meter.busiest_share
    if busiest > BUSY_SHARE:
        warnings.append(f"the load test used {busiest:.0%} of a core for a second: times hold its own queueing")
    if late_p99_s is not None and late_p99_s > LATE_P99_S:
        late = f"{late_p99_s * 1e3:.0f} ms late or more"
        warnings.append(f"1 % of the sends were {late}: the load test or its machine was the bottleneck")
    if lag_p99_s is not None and lag_p99_s > LAG_P99_S:
        warnings.append(f"1 % of timers fired {lag_p99_s * 1e3:.0f} ms late or more: times are that uncertain")
    waited_share = None if meter.waited_s is None or not meter.lasted_s else meter.waited_s / meter.lasted_s
    if waited_share is not None and waited_share > WAITED_SHARE:
        warnings.append(f"the load test waited for a core {waited_share:.0%} of the time: other processes had them")
    if held_back:
        warnings.append(
            f"{held_back} turns waited for --max-in-flight: the load was not open; the wait is in their times"
        )
    return Overhead(
        cpu_s=meter.cpu_s,
        cpu_share=share,
        waited_share=waited_share,
        cpu_busiest_share=busiest,
        token_events=book.token_events,
        us_per_event=meter.cpu_s * 1e6 / book.token_events if book.token_events else None,
        late_p50_s=percentile(lates, 0.5),
        late_p99_s=late_p99_s,
        late_max_s=lates[-1] if lates else None,
        lag_p99_s=lag_p99_s,
        lag_max_s=lags[-1] if lags else None,
        most_in_flight=book.most_in_flight,
        held_back=held_back,
        warnings=warnings,
    )
