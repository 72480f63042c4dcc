"""The pods and the gateway as processes: started, killed, started again on the same port.

Rule of this room: everything that was started is ended with the `async with`.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from loadtest.demo.children import clean_environment

PROFILE = "instant"
READY_S = 30.0
OWN_PORTS = (15_000, 32_000)
"""Below those that Linux chooses for outgoing connections."""


class Process:
    """One child, which dies with this process."""

    def __init__(self, module: str, arguments: Sequence[str]) -> None:
        self._command = (sys.executable, "-m", "loadtest.demo.leash", str(os.getpid()), module, *arguments)
        self._reading: asyncio.Task[None] | None = None
        self.lines: list[str] = []
        self.process: asyncio.subprocess.Process

    async def start(self, ready: str) -> re.Match[str]:
        """Run it until a line matches `ready`."""
        self.process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=clean_environment(os.environ),
            start_new_session=True,
        )
        assert self.process.stdout is not None
        async with asyncio.timeout(READY_S):
            while line := (await self.process.stdout.readline()).decode(errors="replace"):
                self._keep(line)
                if found := re.search(ready, line):
                    self._reading = asyncio.create_task(self._read(self.process.stdout))
                    return found
        raise RuntimeError(f"did not start: {' '.join(self._command)}\n{''.join(self.lines[-5:])}")

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Signal it and wait for its end."""
        with suppress(ProcessLookupError):
            self.process.send_signal(number)
        try:
            await asyncio.wait_for(self.process.wait(), 15)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
        if self._reading is not None:
            await self._reading

    @property
    def rss_kib(self) -> int:
        """Resident memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))

    async def _read(self, stream: asyncio.StreamReader) -> None:
        async for line in stream:
            self._keep(line.decode(errors="replace"))

    def _keep(self, line: str) -> None:
        """Only what tells of trouble in the process itself; the traffic would fill the memory."""
        if "fault=bug" in line or "Traceback" in line or "never retrieved" in line or len(self.lines) < 5:
            self.lines.append(line)


def _free_port() -> int:
    """A port that the kernel gives to no connection of its own while the pod is down."""
    while True:
        port = random.randrange(*OWN_PORTS)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


class PodProcess:
    """A simulated pod with a fixed port."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.url = ""
        self._port = str(_free_port())
        self._process: Process

    async def start(self) -> None:
        """The first time, or again."""
        arguments = ("--role", self.role, "--port", self._port, "--profile", PROFILE, "--lease-s", "5")
        self._process = Process("loadtest.pod", arguments)
        self.url = (await self._process.start(r"^(http://\S+)"))[1]

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """SIGKILL for a crash."""
        await self._process.stop(number)


class Cluster:
    """Pods and a gateway before them."""

    def __init__(self, prefill: int = 2, decode: int = 3) -> None:
        self.pods = [PodProcess("prefill") for _ in range(prefill)] + [PodProcess("decode") for _ in range(decode)]
        self.gateway: Process
        self.url = ""

    async def __aenter__(self) -> Self:
        await asyncio.gather(*(pod.start() for pod in self.pods))
        pods = [word for pod in self.pods for word in (f"--{pod.role}", pod.url)]
        limits = {
            "policy": "local",
            "port": "0",
            "selftest": "false",
            "conversations-ttl-s": "5",
            "conversations-max": "2000",
            "health-interval-s": "0.3",
            "breaker-open-s": "1",
            "lease-s": "5",
            "timeouts-connect-s": "2",
            "timeouts-prefill-s": "20",
            "timeouts-first-byte-s": "20",
            "timeouts-unstreamed-s": "20",
            "timeouts-token-gap-s": "20",
        }
        flags = [word for name, value in limits.items() for word in (f"--{name}", value)]
        self.gateway = Process("gateway.ops.cli", ["serve", *pods, *flags])
        self.url = (await self.gateway.start(r" on (http://\S+),"))[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(self.gateway.stop(), *(pod.stop() for pod in self.pods), return_exceptions=True)
