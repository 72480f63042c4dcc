"""A child process: started until it says that it is ready, signalled, ended.

Rule of this room: what it says goes to whoever asked for it, in pieces as they come; nothing is kept here but a few
last lines for the case that it does not start.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from loadtest.demo.children import clean_environment

READY_S = 30.0
END_S = 15.0
LAST_LINES = 5

Listener = Callable[[bytes], None]
"""Is given whole lines, several at a time."""


def nobody(_: bytes) -> None:
    """Does not listen."""


class Process:
    """One child. listener: gets what it says once it is ready."""

    def __init__(self, command: Sequence[str], listener: Listener = nobody) -> None:
        self._command = command
        self._listener = listener
        self._reading: asyncio.Task[None] | None = None
        self.process: asyncio.subprocess.Process

    async def start(self, ready: str) -> re.Match[str]:
        """Run it until a line matches `ready`. Raises RuntimeError when it ends before, TimeoutError."""
        self.process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=clean_environment(os.environ),
            start_new_session=True,
        )
        assert self.process.stdout is not None
        last: deque[str] = deque(maxlen=LAST_LINES)
        async with asyncio.timeout(READY_S):
            while line := (await self.process.stdout.readline()).decode(errors="replace"):
                last.append(line)
                if found := re.search(ready, line):
                    self._reading = asyncio.create_task(self._read(self.process.stdout))
                    return found
        raise RuntimeError(f"did not start: {' '.join(self._command)}\n{''.join(last)}")

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Signal it and wait for its end."""
        self.signal(number)
        try:
            await asyncio.wait_for(self.process.wait(), END_S)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
        if self._reading is not None:
            await self._reading

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it still runs."""
        with suppress(ProcessLookupError):
            self.process.send_signal(number)

    @property
    def alive(self) -> bool:
        return self.process.returncode is None

    @property
    def rss_kib(self) -> int:
        """Resident memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))

    @property
    def cpu_s(self) -> float:
        """CPU time so far; fields 14 and 15 of proc_pid_stat(5)."""
        stat = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii", errors="replace")
        user, system = stat.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    @property
    def sockets(self) -> int:
        """Open ones."""
        count = 0
        for each in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with suppress(OSError):
                count += str(each.readlink()).startswith("socket:")
        return count

    async def _read(self, stream: asyncio.StreamReader) -> None:
        rest = b""
        while piece := await stream.read(1 << 16):
            whole, newline, rest = (rest + piece).rpartition(b"\n")
            if newline:
                self._listener(whole)
