"""Child processes: start them, keep their last words, notice when one dies, end them all.

Rule of this room: a child that was started is ended when the `async with` ends, whatever happened; it runs in a
session of its own, so that Ctrl-C reaches this process only and the end is in one place.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self, TypeVar

LAST_LINES = 15
GRACE_S = 4.0
"""From SIGTERM to SIGKILL."""
_LINE_LIMIT = 1 << 20

T = TypeVar("T")
Listener = Callable[[str], None]
"""Is given each line of a child's output."""


class DemoError(Exception):
    """Why the demo cannot go on. `lines` are the last of the process to blame."""

    def __init__(self, why: str, lines: Sequence[str] = ()) -> None:
        super().__init__(why)
        self.lines = tuple(lines)


class ChildEndedError(DemoError):
    """A child ended by itself."""

    def __init__(self, name: str, status: int, lines: Sequence[str]) -> None:
        how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
        super().__init__(f"{name} {how}", lines)


class Child:
    """One process that runs."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, listener: Listener) -> None:
        self.name = name
        self.process = process
        self.lines: deque[str] = deque(maxlen=LAST_LINES)
        streams = [stream for stream in (process.stdout, process.stderr) if stream is not None]
        self._readers = [asyncio.create_task(self._read(stream, listener)) for stream in streams]

    async def ended(self) -> ChildEndedError:
        """Wait for its end; the error tells of it."""
        status = await self.gone()
        return ChildEndedError(self.name, status, self.lines)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it still runs."""
        with suppress(ProcessLookupError):
            self.process.send_signal(number)

    async def gone(self) -> int:
        """Wait until it is reaped and its output is read; returns its status."""
        status = await self.process.wait()
        await asyncio.wait(self._readers)
        return status

    async def _read(self, stream: asyncio.StreamReader, listener: Listener) -> None:
        async for line in stream:
            text = line.decode(errors="replace").rstrip()
            self.lines.append(text)
            listener(text)


class Children:
    """All children of one `async with`."""

    def __init__(self) -> None:
        self._all: list[Child] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()

    async def start(self, name: str, module: str, arguments: Sequence[str], listener: Listener) -> Child:
        """Run a Python module as a child."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "loadtest.demo.leash", str(os.getpid()), module, *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=clean_environment(os.environ),
            start_new_session=True,
            limit=_LINE_LIMIT,
        )
        child = Child(name, process, listener)
        self._all.append(child)
        return child

    async def guard(self, work: Coroutine[Any, Any, T], within_s: float | None = None) -> T:
        """Do something as long as all children live. Raises ChildEndedError if not, DemoError when late."""
        task = asyncio.ensure_future(work)
        deaths = [asyncio.ensure_future(child.ended()) for child in self._all]
        try:
            await asyncio.wait([task, *deaths], timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
            for death in deaths:
                if death.done():
                    raise death.result()
            if not task.done():
                last = self._all[-1]
                raise DemoError(f"{last.name} was not ready within {within_s:g} s", last.lines)
            return task.result()
        finally:
            for waiting in (task, *deaths):
                waiting.cancel()
            await asyncio.gather(task, *deaths, return_exceptions=True)

    async def end(self) -> None:
        """SIGTERM to all, SIGKILL to those that do not end in time; returns when all are gone."""
        children, self._all = self._all, []
        for child in children:
            child.signal(signal.SIGTERM)
        gone = asyncio.gather(*(child.gone() for child in children))
        try:
            await asyncio.wait_for(asyncio.shield(gone), GRACE_S)
        except TimeoutError:
            for child in children:
                child.signal(signal.SIGKILL)
            await gone


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without PPD_… variables, which would configure the demo's gateway."""
    return {name: value for name, value in environment.items() if not name.startswith("PPD_")}
