"""What the gateway uses while it works, and what it holds when nobody asks anything.

Rule of this room: looked at from outside, in /proc and on pages that every gateway has.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path

from loadtest.live.overhead import run_queue_delay_s
from loadtest.soak.cluster import Cluster
from loadtest.soak.traffic import Traffic

RSS_EVERY_S = 0.5
TABLE_EVERY = 10
"""Samples of memory per look at the table of conversations."""
CALM_TALKS = 16
"""Before a count: enough for each pod to have had one, so that each has one connection, and what is too old is seen to
be."""
TRIES = 3
LOOKS = 9


@dataclass(frozen=True, slots=True)
class Held:
    """What the gateway holds. sockets: listening, and to clients and pods. seats: of requests at pods."""

    sockets: int
    tasks: int
    conversations: int
    seats: int
    seat_tokens: int
    handovers: int

    def beyond(self, before: Held) -> dict[str, int]:
        """What is more than before, and by how much."""
        old = asdict(before)
        return {name: value - old[name] for name, value in asdict(self).items() if value > old[name]}


@dataclass(slots=True)
class Watch:
    """Samples over the run. rss: (seconds, KiB); table: (seconds, conversations); blocks: (seconds, blocks of memory
    that Python objects take)."""

    rss: list[tuple[float, int]] = field(default_factory=list)
    table: list[tuple[float, int]] = field(default_factory=list)
    blocks: list[tuple[float, int]] = field(default_factory=list)

    async def run(self, cluster: Cluster, seconds: float) -> None:
        """For so long."""
        began = time.monotonic()
        while (now := time.monotonic() - began) < seconds:
            if len(self.rss) % TABLE_EVERY == 0:
                with suppress(RuntimeError):  # it is overloaded; requests tell of that
                    counted = await cluster.metric("ppd_conversations")
                    self.table.append((now, int(counted["ppd_conversations"])))
                self.blocks.append((now, (await cluster.counts())[1]))
            self.rss.append((now, cluster.gateway.rss_kib))
            await asyncio.sleep(RSS_EVERY_S)


async def held_by(cluster: Cluster) -> Held:
    """Count it. Of tasks and sockets the least of some looks: a health probe comes and goes."""
    found = await cluster.metric(
        "ppd_conversations", "ppd_pod_in_flight", "ppd_pod_load_tokens", "ppd_handovers_waiting"
    )
    conversations, seats, seat_tokens, handovers = map(int, found.values())
    sockets, tasks = cluster.gateway.sockets, (await cluster.counts())[0]
    for _ in range(LOOKS):
        await asyncio.sleep(0.07)
        sockets, tasks = min(sockets, cluster.gateway.sockets), min(tasks, (await cluster.counts())[0])
    return Held(sockets, tasks, conversations, seats, seat_tokens, handovers)


async def held_in_peace(cluster: Cluster, traffic: Traffic, before: Held | None = None) -> Held:
    """What is held after a few conversations one by one: at most, in some rounds of them (whether a pod has an idle
    connection depends on who was asked last). before: once older ones are forgotten, and looked at again while it is
    more than that."""
    rounds: list[Held] = []
    for _ in range(TRIES):
        if before is not None:
            await asyncio.sleep(cluster.ttl_s + 1.0)
        await traffic.calm(CALM_TALKS)
        rounds.append(await held_by(cluster))
        if before is not None and not rounds[-1].beyond(before):
            break
    return rounds[-1] if before is not None else Held(*map(max, *map(astuple, rounds)))


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds so far: of the clock, and of CPU; machine: of all cores since boot. waited: of the client and of the
    gateway for a core, though they could have gone on; None where the kernel does not say."""

    clock: float
    gateway: float
    pods: float
    client: float
    machine: float
    client_waited: float | None
    gateway_waited: float | None

    @classmethod
    def by(cls, cluster: Cluster) -> Spent:
        ticks = os.sysconf("SC_CLK_TCK")
        fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
        user, nice, system, _, _, irq, softirq, steal = map(int, fields[:8])
        return cls(
            time.monotonic(),
            cluster.gateway.cpu_s,
            sum(pod.cpu_s for pod in cluster.pods),
            time.process_time(),
            (user + nice + system + irq + softirq + steal) / ticks,
            run_queue_delay_s("self"),
            run_queue_delay_s(cluster.gateway.process.pid),
        )
