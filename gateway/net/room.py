"""Waiting for a place at a decode pod, before P has begun.

Rule of this room: who came first is woken first, one for each place that becomes free; nobody waits while P's lease
runs.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque


class Room:
    """Requests that wait for a place."""

    def __init__(self) -> None:
        self._waiters: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        return len(self._waiters)

    def freed(self) -> None:
        """A place is free: wake the first that waits."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    async def wait(self, deadline: float) -> bool:
        """Wait until there may be a place; False when there was none in time. deadline: monotonic seconds."""
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return False
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await asyncio.wait([waiter], timeout=left_s)
            return waiter.done()
        except asyncio.CancelledError:
            if waiter.done():
                self.freed()
            raise
        finally:
            if not waiter.done():
                waiter.cancel()
                self._waiters.remove(waiter)
