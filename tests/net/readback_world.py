"""Conversations that move from one decode pod to another, for the tests of readback."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from gateway.core.pods import Pod, Role
from gateway.core.policies import Choice, Route, TurnView
from gateway.net.records import RequestRecord
from gateway.wire.contract import Api
from loadtest.pod.journal import Record
from loadtest.pod.simulated import SimulatedPod
from tests.net.world import CHAT, COMPLETIONS, LONG, Reply, World, assistant, user, world

PATHS = {Api.CHAT: CHAT, Api.COMPLETIONS: COMPLETIONS, Api.MESSAGES: "/v1/messages", Api.RESPONSES: "/v1/responses"}
STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@dataclass
class Talk:
    """A conversation of any API that goes on with the answers it gets."""

    world: World
    api: Api = Api.CHAT
    stream: bool = False
    more: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)
    text: str = ""

    @property
    def path(self) -> str:
        return PATHS[self.api]

    def body(self) -> dict[str, Any]:
        if self.api is Api.RESPONSES:
            return {"model": "sim", "max_output_tokens": 24, "input": self.messages, **self.more}
        prompt = {"prompt": self.text} if self.api is Api.COMPLETIONS else {"messages": self.messages}
        return {"model": "sim", "max_tokens": 24, **prompt, **self.more}

    async def post(self, words: str) -> Reply:
        """The next turn, whatever comes of it."""
        self.messages.append(user(words))
        self.text += words
        before = len(self.world.watcher.records)
        reply = await self.world.post(self.path, {**self.body(), "stream": self.stream}, self.headers)
        await self.world.record(before + 1)
        return reply

    async def say(self, words: str) -> str:
        reply = await self.post(words)
        assert reply.status == 200, reply.body
        said = _streamed(self.api, reply) if self.stream else _whole(self.api, reply)
        self.messages.append(assistant(said))
        self.text += said
        return said

    async def right(self) -> str:
        """What a pod that has nothing cached answers to the last turn; call after it."""
        asked = Talk(self.world, self.api, more=self.more, messages=self.messages[:-1])
        said = self.messages[-1]["content"]
        asked.text = self.text.removesuffix(said)
        async with SimulatedPod() as cold:
            return _whole(self.api, await self.world.post(self.path, asked.body(), url=cold.url))


def _whole(api: Api, reply: Reply) -> str:
    if api is Api.MESSAGES:
        return "".join(block["text"] for block in reply.json["content"])
    if api is Api.RESPONSES:
        return "".join(part["text"] for item in reply.json["output"] for part in item["content"])
    return reply.text


def _streamed(api: Api, reply: Reply) -> str:
    if api in (Api.MESSAGES, Api.RESPONSES):
        said = [msgspec.json.decode(event.partition(b"\ndata: ")[2]) for event in reply.events]
        if api is Api.MESSAGES:
            return "".join(event["delta"]["text"] for event in said if event["type"] == "content_block_delta")
        return "".join(event["delta"] for event in said if event["type"] == "response.output_text.delta")
    choices = [choice for chunk in reply.chunks for choice in chunk["choices"]]
    return "".join((c["delta"].get("content") if "delta" in c else c["text"]) or "" for c in choices)


@asynccontextmanager
async def reading(
    prefill: int = 1, decode: int = 2, p: dict[str, Any] | None = None, d: dict[str, Any] | None = None, **flags: Any
) -> AsyncIterator[World]:
    """A gateway with readback whose P has `bidirectional_kv_xfer` and whose D have not, unless told otherwise."""
    flags = {"policy": "local", "readback": True, "timeouts.prefill_s": 30.0, **flags}
    options = {"prefill": {"bidirectional": True, **(p or {})}, "decode": d or {}}
    async with world(prefill, decode, pod_of=options, **flags) as w:
        yield w


def pods(w: World, role: Role) -> list[Pod]:
    return w.gateway.parts.fleet.of(role)


def allow(w: World, role: Role, allowed: bool, url: str | None = None) -> None:
    for pod in pods(w, role):
        if url is None or pod.url == url:
            w.gateway.parts.fleet.set_draining(pod, not allowed)


async def on_one_pod(w: World, talk: Talk) -> SimulatedPod:
    """Two turns on a decode pod, none through P; returns that pod."""
    allow(w, Role.PREFILL, False)
    await talk.say(LONG * 2)
    await talk.say(" And then, what did the engine say? ")
    allow(w, Role.PREFILL, True)
    assert (last(w).route, last(w).turn) == ("local", 2)
    return w.pod(last(w).answering)


async def moving(w: World, talk: Talk) -> SimulatedPod:
    """Two turns on a decode pod that is then drained."""
    holder = await on_one_pod(w, talk)
    allow(w, Role.DECODE, False, holder.url)
    return holder


async def nobody_holds_blocks(w: World) -> None:
    await w.settled()
    for pod in [*w.prefill, *w.decode]:
        await pod.until(lambda pod=pod: pod.summary["leases"] == 0 == pod.summary["running"])
        assert pod.summary["expired_leases"] == 0
        assert pod.summary["free_blocks"] == pod.summary["blocks"]


def asked(pod: SimulatedPod) -> Record:
    """The last request to a pod."""
    return pod.requests[-1]


def last(w: World) -> RequestRecord:
    return w.watcher.records[-1]


class ReadsBack:
    """A policy that wants readback for every turn it may have it."""

    name = "reads back"

    def choose(self, view: TurnView) -> Choice:
        return Choice(Route.READBACK if view.readback else Route.PD, f"readback is {'' if view.readback else 'not '}on")
