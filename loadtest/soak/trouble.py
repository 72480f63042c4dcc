"""Kills and faults at random times.

Rule of this room: one trouble at a time, in the first part of every cycle; in the rest of it nothing excuses anything.
The dice are seeded, so the order of troubles is the same in each run.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Sequence

from loadtest.soak.ledger import Ledger, Trouble
from loadtest.soak.pods import Pod

CYCLE_S = 20.0
TROUBLED = 0.6
"""Share of a cycle in which troubles begin."""
PAUSE_S = (0.2, 1.0)
KILLS = 0.35
"""Share of the troubles that are kills."""
DOWN_S = (0.1, 2.0)
"""Between a pod's death and its next start."""
FAULT_S = (0.3, 0.8)
HANG_S = 4.5
"""Longer than the gateway waits (`cluster.SILENCE_S`)."""


class TroubleMaker:
    """Troubles the pods, and writes down what it did."""

    def __init__(self, pods: Sequence[Pod], ledger: Ledger, seed: int) -> None:
        self._pods = pods
        self._ledger = ledger
        self._random = random.Random(seed)
        self._began = 0.0

    async def run(self, seconds: float) -> None:
        """For so long; every pod is up and has no fault left in the end."""
        self._began = time.monotonic()
        end = seconds - max(HANG_S, DOWN_S[1]) / 2
        while self._now < end:
            in_cycle = self._now % CYCLE_S
            if in_cycle >= CYCLE_S * TROUBLED:
                await asyncio.sleep(CYCLE_S - in_cycle)
                continue
            await asyncio.sleep(self._random.uniform(*PAUSE_S))
            pod = self._random.choice(self._pods)
            await (self._kill(pod) if self._random.random() < KILLS else self._fault(pod))

    @property
    def _now(self) -> float:
        return time.monotonic() - self._began

    async def _kill(self, pod: Pod) -> None:
        at = self._now
        await pod.stop(signal.SIGKILL)
        await asyncio.sleep(self._random.uniform(*DOWN_S))
        await pod.start()
        self._ledger.troubles.append(Trouble(f"kill {pod.role}", pod.url, at, self._now))

    async def _fault(self, pod: Pod) -> None:
        at, fault = self._now, self._random.choice(list(pod.faults))
        await pod.order(fault)
        await asyncio.sleep(HANG_S if fault == "hang" else self._random.uniform(*FAULT_S))
        struck = await pod.end_fault()
        self._ledger.troubles.append(Trouble(f"{fault} {pod.role}", pod.url, at, self._now, struck))
