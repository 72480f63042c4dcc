"""`--workers N`: several processes on one port, and the parent that looks after them.

Rule of this room: the parent serves nothing. It holds the port (bound, not listening), starts the workers as the
command it was itself started as, starts dead ones again, passes signals on, and ends when they have ended.

Every worker listens with SO_REUSEPORT: the kernel spreads connections evenly by their addresses, and takes a dead
worker out at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.ops.config import Config
from gateway.ops.logs import MAIN
from gateway.ops.scrape import socket_of
from gateway.version import VERSION

COMMAND = (sys.executable, "-m", "gateway.ops.cli")
BACK_OFF_S = (0.2, 0.5, 1.0, 2.0, 5.0)
STEADY_S = 30.0
"""A worker that lived so long is started again without delay."""

_KILL_AFTER_S = 10.0
_FATAL = (1, 2)


@dataclass(frozen=True, slots=True)
class WorkerSeat:
    """Which worker a process is. folder: where the workers meet."""

    number: int
    count: int
    folder: Path


def seat_of(text: str, folder: Path) -> WorkerSeat:
    """From the hidden flags `--worker 2/4 --worker-folder DIR`."""
    number, _, count = text.partition("/")
    return WorkerSeat(int(number), int(count), folder)


def config_of(config: Config, seat: WorkerSeat) -> Config:
    """A worker's own configuration: each has its own state file."""
    if config.state_file is None:
        return config
    return dataclasses.replace(
        config, state_file=config.state_file.with_name(f"{config.state_file.name}.{seat.number}")
    )


def reserve(host: str, port: int) -> socket.socket:
    """Bind a port for the workers, without listening. Raises OSError when somebody else listens there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if port:
        with socket.create_server((host, port), family=family):
            pass
    held = socket.socket(family, socket.SOCK_STREAM)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind((host, port))
    except OSError:
        held.close()
        raise
    return held


class Supervisor:
    """Starts the workers and keeps them alive until a signal. `run` gives the exit status.

    leash: a pipe that nobody writes to; the workers see its end when this process is gone.
    """

    def __init__(self, config: Config, arguments: Sequence[str], port: int, folder: Path, leash: int) -> None:
        self._config = config
        self._arguments = [*arguments, "--port", str(port), "--worker-folder", str(folder)]
        self._folder = folder
        self._leash = leash
        self._stopping = asyncio.Event()
        self._status = 0
        self._processes: dict[int, asyncio.subprocess.Process] = {}

    async def run(self) -> int:
        """Serve until told to stop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop, 0)
        loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        await asyncio.gather(*(self._keep_alive(number) for number in range(1, self._config.workers + 1)))
        return self._status

    async def _keep_alive(self, number: int) -> None:
        quick_deaths, served = 0, False
        while not self._stopping.is_set():
            socket_of(self._folder, number).unlink(missing_ok=True)
            began_s = time.monotonic()
            status = await self._one_life(number)
            served = served or socket_of(self._folder, number).exists()
            if self._stopping.is_set():
                if status not in (0, -signal.SIGTERM, -signal.SIGINT):
                    self._status = self._status or 1
                return
            if status in _FATAL and not served:
                self._stop(status)
                return
            quick_deaths = 0 if time.monotonic() - began_s >= STEADY_S else quick_deaths + 1
            wait_s = BACK_OFF_S[min(quick_deaths, len(BACK_OFF_S)) - 1] if quick_deaths else 0.0
            MAIN.warning("worker %d ended with status %d; starting it again in %g s", number, status, wait_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._stopping.wait()

    async def _one_life(self, number: int) -> int:
        process = await asyncio.create_subprocess_exec(
            *COMMAND,
            *self._arguments,
            "--worker",
            f"{number}/{self._config.workers}",
            stdin=self._leash,
        )
        self._processes[number] = process
        if self._stopping.is_set():
            _send(process, signal.SIGTERM)
        waiting = asyncio.ensure_future(process.wait())
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait([waiting, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                await asyncio.wait([waiting], timeout=self._config.drain_timeout_s + _KILL_AFTER_S)
            if not waiting.done():
                MAIN.error("worker %d does not end; killing it", number)
                process.kill()
            return await waiting
        finally:
            stopping.cancel()
            del self._processes[number]

    def _stop(self, status: int) -> None:
        """Let every worker end; the command's status will be that."""
        self._status = self._status or status
        self._stopping.set()
        for process in self._processes.values():
            _send(process, signal.SIGTERM)

    def _hang_up(self) -> None:
        """Pass SIGHUP on to the workers that serve; one that is just starting would die of it."""
        for number, process in self._processes.items():
            if socket_of(self._folder, number).exists():
                _send(process, signal.SIGHUP)


def _send(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)


async def supervise(config: Config, arguments: Sequence[str]) -> int:
    """Serve with several workers. Raises OSError when the port is taken."""
    with reserve(config.host, config.port) as held:
        port = int(held.getsockname()[1])
        MAIN.info("ppd-gateway %s: starting %d workers for %s:%d", VERSION, config.workers, config.host, port)
        folder = Path(tempfile.mkdtemp(prefix="ppd-gateway-"))
        leash, held_end = os.pipe()
        try:
            status = await Supervisor(config, arguments, port, folder, leash).run()
        finally:
            os.close(leash)
            os.close(held_end)
            shutil.rmtree(folder, ignore_errors=True)
    MAIN.info("all workers have ended")
    return status
