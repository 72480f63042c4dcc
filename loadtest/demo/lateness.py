"""How late this machine's timers are, as a measure of how busy it is.

Rule of this room: simulated pods live in real time, so what delays timers here delays them too; a run on a busy
machine must be told from one on an idle machine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from statistics import quantiles

BUSY_MS = 10.0
"""More than a decode step of the simulated pods."""
_INTERVAL_S = 0.02


class Lateness:
    """How late each tick was, in milliseconds."""

    def __init__(self) -> None:
        self.ticks_ms: list[float] = []

    @property
    def p95_ms(self) -> float:
        """19 of 20 ticks were less late than this; 0 before the second tick."""
        return quantiles(self.ticks_ms, n=20)[-1] if len(self.ticks_ms) > 1 else 0.0


@asynccontextmanager
async def watched() -> AsyncIterator[Lateness]:
    """Look at the clock as long as the `with` lasts."""
    seen = Lateness()

    async def tick() -> None:
        while True:
            due = time.perf_counter() + _INTERVAL_S
            await asyncio.sleep(_INTERVAL_S)
            seen.ticks_ms.append((time.perf_counter() - due) * 1000)

    task = asyncio.create_task(tick())
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
