"""`python -m loadtest.soak [--minutes 10] [--json]`: see docs/operating.md. Exit status 1 when something is wrong."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import sys
import time
from typing import Any

import aiohttp

from loadtest.soak.ledger import Ledger, Trouble, report
from loadtest.soak.processes import Cluster, PodProcess
from loadtest.soak.traffic import Traffic

RATE = 200.0
CYCLE_S = 10.0
TROUBLED = 0.6
"""Share of a cycle in which faults happen. In the rest of it every error is one that no fault explains."""

FAULTS: list[dict[str, Any]] = [
    {"kind": "refuse_5xx", "status": 503, "times": 5},
    {"kind": "refuse_5xx", "status": 500, "times": 3},
    {"kind": "reset_before_headers", "times": 5},
    {"kind": "reset_after_events", "events": 3, "times": 5},
    {"kind": "close_without_response", "times": 5},
    {"kind": "malformed_head", "times": 3},
    {"kind": "malformed_chunk", "events": 2, "times": 3},
    {"kind": "slow_headers", "seconds": 0.5, "times": 10},
    {"kind": "finish_error", "events": 2, "times": 3},
    {"kind": "drop_kv_params", "times": 3},
]


class TroubleMaker:
    """Kills pods and orders faults, in the first part of every cycle."""

    def __init__(self, cluster: Cluster, ledger: Ledger, session: aiohttp.ClientSession, seed: int) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._session = session
        self._random = random.Random(seed)
        self._began = time.monotonic()

    async def run(self, seconds: float) -> None:
        """For so long; every pod is up and has no fault left in the end."""
        end = self._now + seconds
        while self._now + 2.0 < end:
            in_cycle = self._now % CYCLE_S
            if in_cycle >= CYCLE_S * TROUBLED:
                await asyncio.sleep(CYCLE_S - in_cycle)
                continue
            await asyncio.sleep(self._random.uniform(0.2, 1.0))
            pod = self._random.choice(self._cluster.pods)
            await (self._kill(pod) if self._random.random() < 0.35 else self._fault(pod))

    @property
    def _now(self) -> float:
        return time.monotonic() - self._began

    async def _kill(self, pod: PodProcess) -> None:
        at = self._now
        await pod.stop(signal.SIGKILL)
        await asyncio.sleep(self._random.uniform(0.0, 0.5))
        await pod.start()
        self._ledger.troubles.append(Trouble(f"kill {pod.role}", pod.url, at, self._now))

    async def _fault(self, pod: PodProcess) -> None:
        at, fault = self._now, self._random.choice(FAULTS)
        async with self._session.post(f"{pod.url}/sim/fault", json=fault) as answer:
            assert answer.status == 200, await answer.text()
        await asyncio.sleep(self._random.uniform(0.3, 0.8))
        async with self._session.delete(f"{pod.url}/sim/fault") as answer:
            assert answer.status == 200
        self._ledger.troubles.append(Trouble(fault["kind"], pod.url, at, self._now))


async def _sample(cluster: Cluster, ledger: Ledger, seconds: float) -> None:
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        ledger.samples.append((time.monotonic() - began, cluster.gateway.rss_kib))
        await asyncio.sleep(0.5)


async def _look_for_leftovers(cluster: Cluster, ledger: Ledger, session: aiohttp.ClientSession) -> None:
    """What the gateway still holds when nobody asks anything any more."""
    async with asyncio.timeout(10):
        while True:
            async with session.get(f"{cluster.url}/metrics") as answer:
                page = await answer.text()
            held = [line for line in page.splitlines() if line.startswith(_EMPTY) and not line.endswith(" 0.0")]
            if not held:
                break
            ledger.left_over = held
            await asyncio.sleep(0.5)
    ledger.left_over = [line.strip() for line in cluster.gateway.lines if "fault=bug" in line or "never retr" in line]


_EMPTY = ("ppd_pod_in_flight{", "ppd_pod_load_tokens{", "ppd_handovers_waiting{")


async def soak(minutes: float, rate: float, bound: float, seed: int) -> dict[str, Any]:
    """Run it; the report."""
    seconds, ledger = minutes * 60, Ledger()
    warm_up_s = max(seconds * 0.25, min(8.0, seconds / 2))
    connector = aiohttp.TCPConnector(limit=0)
    async with Cluster() as cluster, aiohttp.ClientSession(connector=connector) as session:
        await _until_ready(cluster, session)
        trouble = TroubleMaker(cluster, ledger, session, seed)
        traffic = Traffic(cluster.url, ledger, rate, seed)
        await asyncio.gather(traffic.run(session, seconds), trouble.run(seconds), _sample(cluster, ledger, seconds))
        try:
            await _look_for_leftovers(cluster, ledger, session)
        except TimeoutError:
            ledger.left_over = [f"left over: {line}" for line in ledger.left_over]
    return report(ledger, minutes, warm_up_s, bound)


async def _until_ready(cluster: Cluster, session: aiohttp.ClientSession) -> None:
    async with asyncio.timeout(30):
        while True:
            async with session.get(f"{cluster.url}/admin/pods") as answer:
                if all(pod["up"] for pod in (await answer.json())["pods"]):
                    return
            await asyncio.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtest.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=RATE, help="conversations per second, as far as the machine can")
    parser.add_argument("--max-slope", type=float, default=2.0, help="MiB per minute that the gateway may grow")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = asyncio.run(soak(given.minutes, given.rate, given.max_slope, given.seed))
    if given.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:24} {value}")
    sys.exit(0 if found["passed"] else 1)


if __name__ == "__main__":
    main()
