"""Several gateways in front of the same pods, with one real server between them, all seen from this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

import aiohttp
import pytest

from gateway.net.records import RequestRecord
from gateway.net.redis_link import RedisLink
from gateway.net.shared import SharedState
from gateway.ops.config import load
from gateway.ops.serve import Running, running
from tests.net.world import CHAT, COMPLETIONS, Reply, Watcher, World, assistant, user, world
from tests.redis_server import WORDS, command

PATIENCE_S = 20.0

needs_server = pytest.mark.skipif(command() is None, reason=WORDS)


@dataclass
class Member:
    """One gateway of the cluster."""

    running: Running
    watcher: Watcher
    world: World

    @property
    def shared(self) -> SharedState:
        found = self.running.keeping.shared
        assert found is not None
        return found

    def be_patient(self) -> None:
        """Wait for the server, from now on, as long as a busy machine takes."""
        self.shared._timeout_s = PATIENCE_S
        times = self.shared._link._client.connection_pool.connection_kwargs
        times["socket_timeout"] = times["socket_connect_timeout"] = PATIENCE_S

    def asks(self, *results: str) -> int:
        """How often it asked the shared state, by result; all when none is named."""
        counts = self.shared.counts
        return sum(n for (op, result), n in counts.items() if op == "ask" and (not results or result in results))

    async def settled(self) -> None:
        """Nothing in flight, and the server told of it."""
        await self.running.gateway.drain(10)
        self.running.gateway.draining = False
        await self.running.gateway.parts.finish_background()
        if self.running.keeping.shared is not None:
            await self.running.keeping.shared.written()


@dataclass
class Cluster:
    """The gateways, and the pods of `world`, which the first of them was started with."""

    world: World
    members: list[Member]

    async def settled(self) -> None:
        for member in self.members:
            await member.settled()


@asynccontextmanager
async def cluster(gateways: int, state: str | None, **options: Any) -> AsyncIterator[Cluster]:
    """`options` are those of `world`. Without a `state_timeout_s` the gateways are patient with the server."""
    flags: dict[str, Any] = {"state_timeout_s": str(PATIENCE_S), **options}
    if state is not None:
        flags["state"] = state
    async with AsyncExitStack() as stack:
        if "state_timeout_s" not in options:
            stack.enter_context(patch("gateway.net.redis_link.RedisLink", partial(RedisLink, io_timeout_s=PATIENCE_S)))
        w = await stack.enter_async_context(world(**flags))
        made = Cluster(w, [])
        made.members.append(Member(w.running, w.watcher, w))
        for _ in range(gateways - 1):
            made.members.append(await another(w, stack, **flags))
        yield made


async def another(w: World, stack: AsyncExitStack, **options: Any) -> Member:
    """One more gateway in front of the pods of a world."""
    watcher = Watcher()
    given = {key: value for key, value in options.items() if key not in ("prefill", "decode", "replica", "pod")}
    config = load(None, {}, {**w.settings, **given})
    started = await stack.enter_async_context(running(config, watcher))
    pods = [*w.prefill, *w.decode, *w.replica]
    await watcher.until(lambda: all(watcher.pods.get(pod.url) for pod in pods))
    return Member(started, watcher, w)


@dataclass
class Talker:
    """A client that talks by turns with any of the gateways, and keeps what the gateway noted of each turn."""

    session: aiohttp.ClientSession
    name: str
    session_id: str | None = None
    max_tokens: int = 24
    messages: list[dict[str, str]] = field(default_factory=list)
    text: str = ""
    records: list[RequestRecord] = field(default_factory=list)

    async def say(self, member: Member, words: str) -> RequestRecord:
        """The next turn of a chat."""
        self.messages.append(user(words))
        record, reply = await self._post(member, CHAT, {"messages": self.messages})
        self.messages.append(assistant(reply.text))
        return record

    async def edit(self, member: Member, words: str) -> RequestRecord:
        """Take the last question back and ask another one in its place."""
        self.messages = self.messages[:-2]
        return await self.say(member, words)

    async def write(self, member: Member, words: str) -> RequestRecord:
        """The next turn of a completions prompt."""
        self.text += words
        record, reply = await self._post(member, COMPLETIONS, {"prompt": self.text})
        self.text += reply.text
        return record

    async def _post(self, member: Member, path: str, fields: dict[str, Any]) -> tuple[RequestRecord, Reply]:
        headers = {"Authorization": "Bearer sk-secret-of-the-tenant"}
        if self.session_id is not None:
            headers["X-Session-ID"] = self.session_id
        before = len(member.watcher.records)
        body = {"model": "sim", "max_tokens": self.max_tokens, **fields}
        reply = await member.world.post(path, body, headers, member.running.url)
        assert reply.status == 200, reply.body
        await member.watcher.until(lambda: len(member.watcher.records) > before)
        record = member.watcher.records[-1]
        self.records.append(record)
        return record, reply

    @property
    def story(self) -> list[tuple[int | None, str | None, int]]:
        """Per turn: its number, its route, and the pod that answered, numbered as they came up."""
        pods = list(dict.fromkeys(record.answering for record in self.records))
        return [(record.turn, record.route, pods.index(record.answering)) for record in self.records]


def talkers(w: World, names: Sequence[str]) -> list[Talker]:
    return [Talker(w.session, name) for name in names]
