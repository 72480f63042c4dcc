"""Two prefill pods, three decode pods, and a gateway before them.

Rule of this room: everything that was started is ended with the `async with`.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from collections import Counter
from typing import Any, Self

import orjson

from loadtest.bench.proxy.build import tools
from loadtest.live.client import Client, Patience
from loadtest.live.endpoint import endpoint_of
from loadtest.soak.gateway_log import GatewayLog
from loadtest.soak.pods import MockPod, Pod, SimulatedPod, start_all
from loadtest.soak.processes import Process

SILENCE_S = 4.0
"""What the gateway bears of a pod that does not answer."""

SETTINGS = {
    "policy": "local",
    "port": "0",
    "selftest": "false",
    "health-interval-s": "0.3",
    "breaker-open-s": "1",
    "lease-s": "5",
    "timeouts-connect-s": "2",
    "timeouts-prefill-s": str(SILENCE_S),
    "timeouts-first-byte-s": str(SILENCE_S),
    "timeouts-token-gap-s": str(SILENCE_S),
    "timeouts-unstreamed-s": str(SILENCE_S),
}


def pods_of(kind: str, prefill: int = 2, decode: int = 3) -> list[Pod]:
    """kind: mock or simulated. Raises CannotBuildError."""
    roles = ["prefill"] * prefill + ["decode"] * decode
    if kind == "mock":
        program = tools().mock
        return [MockPod(role, program) for role in roles]
    return [SimulatedPod(role) for role in roles]


class Cluster:
    """`async with Cluster(pods, ttl_s) as cluster`. url: the gateway's. log: what it says of failures.

    ttl_s: when conversations are forgotten; the table is in its steady state that long after the first of them ended.
    """

    def __init__(self, pods: list[Pod], ttl_s: float) -> None:
        self.pods = pods
        self.ttl_s = ttl_s
        self.log = GatewayLog(time.monotonic)
        self.gateway: Process
        self.url = ""
        self._client: Client

    async def __aenter__(self) -> Self:
        await start_all(self.pods)
        try:
            named = [word for pod in self.pods for word in (f"--{pod.role}", pod.url)]
            settings = {**SETTINGS, "conversations-ttl-s": str(self.ttl_s)}
            flags = [word for name, value in settings.items() for word in (f"--{name}", value)]
            leash = (sys.executable, "-m", "loadtest.demo.leash", str(os.getpid()), "loadtest.soak.watched")
            self.gateway = Process((*leash, "serve", *named, *flags), self.log.take)
            self.url = (await self.gateway.start(r" on (http://\S+),"))[1]
            self._client = Client(endpoint_of(self.url), "chat", Patience(5.0, 10.0, 10.0), time.monotonic)
            await self._until_ready()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._client.close()
        await self._end()

    async def page(self, path: str) -> bytes:
        """A page of the gateway. Raises RuntimeError."""
        answer = await self._client.ask_plain("GET", path)
        if answer.status != 200 or answer.fault is not None:
            raise RuntimeError(f"{path}: {answer.fault or answer.status}")
        return answer.body

    async def metric(self, *names: str) -> dict[str, float]:
        """The sums of these metrics over their labels."""
        sums = dict.fromkeys(names, 0.0)
        for line in (await self.page("/metrics")).decode().splitlines():
            name = line.partition(" ")[0].partition("{")[0]
            if name in sums:
                sums[name] += float(line.rpartition(" ")[2])
        return sums

    async def metric_by(self, name: str, label: str) -> dict[str, int]:
        """The sums of one metric by one label."""
        sums: Counter[str] = Counter()
        for line in (await self.page("/metrics")).decode().splitlines():
            if line.startswith(f"{name}{{") and (found := re.search(rf'\b{label}="([^"]*)"', line)):
                sums[found[1]] += int(float(line.rpartition(" ")[2]))
        return dict(sums)

    async def counts(self) -> tuple[int, int]:
        """The gateway's tasks, and the blocks of memory that its Python objects take."""
        answer = self.log.next_counts()
        self.gateway.signal(signal.SIGUSR2)
        async with asyncio.timeout(10):
            return await answer

    async def _until_ready(self) -> None:
        async with asyncio.timeout(30):
            while not all(pod["up"] for pod in (await self._pods())):  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def _pods(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = orjson.loads(await self.page("/admin/pods"))["pods"]
        return found

    async def _end(self) -> None:
        ended = [pod.stop() for pod in self.pods]
        if hasattr(self, "gateway"):
            ended.append(self.gateway.stop())
        await asyncio.gather(*ended, return_exceptions=True)
