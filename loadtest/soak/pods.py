"""Pods of either kind: killed, started again on the same port, told to go wrong.

Rule of this room: the faults have the same names for both kinds; a kind that cannot make one does not list it.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Protocol

import orjson

from loadtest.live.client import Client, Patience, Plain
from loadtest.live.endpoint import endpoint_of
from loadtest.soak.processes import Process

OWN_PORTS = (15_000, 32_000)
"""Below those that Linux chooses for outgoing connections."""

ECHO = "soak:"
"""What stands before a mark in a prompt; a mark has 16 characters."""
GAP_US = 8000
PATIENCE = Patience(connect_s=5.0, first_s=10.0, total_s=10.0)
TRIES = 3

Fault = dict[str, Any]


def free_port() -> int:
    """A port that the kernel gives to no connection of its own while the pod is down."""
    while True:
        port = random.randrange(*OWN_PORTS)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


class Pod(Protocol):
    """role: prefill or decode. model: its name there. echoes: an answer begins with the prompt's last mark."""

    role: str
    url: str
    model: str
    echoes: bool
    faults: ClassVar[dict[str, Fault]]

    async def start(self) -> None:
        """The first time, or again."""
        ...

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """SIGKILL for a crash."""
        ...

    async def order(self, fault: str) -> None:
        """Let requests for tokens meet one of `faults`."""
        ...

    async def end_fault(self) -> int | None:
        """It is over; how many requests met it, where that is known."""
        ...

    @property
    def cpu_s(self) -> float:
        """CPU time of its processes that have ended, and of the one that runs."""
        ...


class _Base:
    """What both kinds do alike."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: Process
        self._spent_s = 0.0

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        with suppress(OSError):
            self._spent_s += self._process.cpu_s
        await self._process.stop(number)

    @property
    def cpu_s(self) -> float:
        try:
            return self._spent_s + self._process.cpu_s
        except OSError:
            return self._spent_s

    async def _tell(self, method: str, path: str, body: bytes = b"") -> Plain:
        """Raises RuntimeError when it refuses."""
        client = Client(endpoint_of(self.url), "chat", PATIENCE, time.monotonic)
        try:
            for _ in range(TRIES):
                answer = await client.ask_plain(method, path, body)
                if answer.status == 200:
                    return answer
        finally:
            client.close()
        raise RuntimeError(f"{self.url}{path}: {answer.fault or answer.status} {answer.detail} {answer.body[:200]!r}")


class MockPod(_Base):
    """The benchmark's mock of vLLM in C. A new process is a new engine; D refuses hand-overs of one that is dead."""

    model = "mock"
    echoes = True
    faults: ClassVar[dict[str, Fault]] = {
        "refuse": {"times": 8},
        "reset": {"times": 8},
        "close": {"times": 8},
        "garbage": {"times": 5},
        "late": {"times": 20, "ms": 500},
        "hang": {"times": 5},
        "cut": {"times": 8, "ms": 20},
        "bad_chunk": {"times": 5, "ms": 20},
        "give_up": {"times": 5, "ms": 20},
        "forget": {"times": 5},
    }

    def __init__(self, role: str, program: Path) -> None:
        super().__init__(role)
        self._program = program

    async def start(self) -> None:
        options = ("--port", str(self.port), "--gap-us", str(GAP_US), "--blocks", "20", "--echo", ECHO)
        self._process = Process((str(self._program), *options))
        await self._process.start(r"^(\d+)$")

    async def order(self, fault: str) -> None:
        query = "&".join(f"{name}={value}" for name, value in {"kind": fault, **self.faults[fault]}.items())
        await self._tell("POST", f"/fault?{query}")

    async def end_fault(self) -> int | None:
        return int(orjson.loads((await self._tell("DELETE", "/fault")).body)["struck"])


class SimulatedPod(_Base):
    """The simulator in Python, with an engine behind it. It costs more than what it stands before."""

    model = "sim"
    echoes = False
    faults: ClassVar[dict[str, Fault]] = {
        "refuse": {"kind": "refuse_5xx", "status": 503, "times": 5},
        "reset": {"kind": "reset_before_headers", "times": 5},
        "close": {"kind": "close_without_response", "times": 5},
        "garbage": {"kind": "malformed_head", "times": 3},
        "late": {"kind": "slow_headers", "seconds": 0.5, "times": 10},
        "hang": {"kind": "hang_before_headers", "times": 3},
        "cut": {"kind": "reset_after_events", "events": 3, "times": 5},
        "bad_chunk": {"kind": "malformed_chunk", "events": 2, "times": 3},
        "give_up": {"kind": "finish_error", "events": 2, "times": 3},
        "forget": {"kind": "drop_kv_params", "times": 3},
    }

    async def start(self) -> None:
        options = ("--role", self.role, "--port", str(self.port), "--profile", "instant", "--lease-s", "5")
        leash = (sys.executable, "-m", "loadtest.demo.leash", str(os.getpid()), "loadtest.pod")
        self._process = Process((*leash, *options))
        await self._process.start(r"^(http://\S+)")

    async def order(self, fault: str) -> None:
        await self._tell("POST", "/sim/fault", orjson.dumps(self.faults[fault]))

    async def end_fault(self) -> int | None:
        await self._tell("DELETE", "/sim/fault")
        return None


async def start_all(pods: list[Pod]) -> None:
    await asyncio.gather(*(pod.start() for pod in pods))
