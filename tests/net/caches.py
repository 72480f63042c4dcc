"""Pods that say what they hold, and conversations that go on with the answers they get."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from gateway.core.residency import PodCache, Source
from gateway.core.views import RankView
from gateway.net.records import RequestRecord
from loadtest.pod.simulated import SimulatedPod
from tests.net.publisher import until
from tests.net.world import CHAT, LONG, World, assistant, user, world

SIZE = 16
EVENTS, LEDGER = Source.EVENTS, Source.LEDGER


@dataclass
class Talk:
    """A conversation that goes on with the answers it gets."""

    world: World
    name: str | None = None
    more: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, str]] = field(default_factory=list)
    last_id: str = ""

    async def say(self, words: str, max_tokens: int = 16) -> RequestRecord:
        self.messages.append(user(words))
        w, count = self.world, len(self.world.watcher.records)
        body = {"model": "sim", "messages": self.messages, "max_tokens": max_tokens, **self.more}
        reply = await w.post(CHAT, body, {"X-Session-ID": self.name} if self.name else None)
        assert reply.status == 200, reply.body
        self.messages.append(assistant(reply.text))
        record = await w.record(count + 1)
        self.last_id = record.request_id
        await heard(w)
        return record


@asynccontextmanager
async def listening(decode: int = 1, d: dict[str, Any] | None = None, **flags: Any) -> AsyncIterator[World]:
    """A gateway whose decode pods publish KV events and are heard; P publishes none."""
    options = {"decode": {"kv_events": True, "block_size": SIZE, "buffer_steps": 30, **(d or {})}}
    async with world(1, decode, pod_of=options, pod={"block_size": SIZE}, **flags) as w:
        if flags.get("kv_events") != "off":
            for pod in w.decode:
                await pod.until(lambda pod=pod: pod.events.subscribers == 1)
        await until(lambda: all(pod.facts.num_blocks for pod in w.gateway.parts.fleet))
        yield w


def cache(w: World, pod: SimulatedPod) -> PodCache:
    found = w.gateway.parts.fleet.get(pod.url)
    assert found is not None
    return w.gateway.parts.residency.cache(found)


def view(w: World, pod: SimulatedPod | None = None) -> RankView:
    return cache(w, pod or w.decode[0]).views[0]


async def heard(w: World) -> None:
    """Every event that was published has come, or has shown to be lost."""
    for pod in w.decode:
        if pod.options.kv_events and cache(w, pod).views:
            await until(lambda pod=pod: not (found := pod.events.batches) or view(w, pod).next_sequence > found[-1][0])


def shares(words: str, count: int) -> str:
    return f"{words} {LONG}" * count
