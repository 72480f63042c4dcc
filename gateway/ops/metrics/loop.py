"""How late the event loop comes to what it is asked for.

Rule of this room: a timer that asks to be woken and looks at the clock; it costs four wake-ups a second.
"""

from __future__ import annotations

import asyncio

from gateway.ops.metrics.families import Spread

EVERY_S = 0.25


class LoopLag:
    """Measures the loop it is started on into a histogram."""

    def __init__(self, into: Spread) -> None:
        self._into = into
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def start(self) -> None:
        """Measure until `stop`."""
        loop = asyncio.get_running_loop()
        self._due = loop.time() + EVERY_S
        self._timer = loop.call_at(self._due, self._woken, loop)

    def stop(self) -> None:
        """End it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _woken(self, loop: asyncio.AbstractEventLoop) -> None:
        self._into.observe(max(0.0, loop.time() - self._due))
        self.start()
