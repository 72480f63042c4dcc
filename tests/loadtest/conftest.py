"""Pods and a client for the HTTP tests."""

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest

from loadtest.pod import SimulatedPod

HELLO = [{"role": "user", "content": "Tell me about the sea, the sky and the long road home, please."}]
LEG_ONE = {"do_remote_decode": True, "do_remote_prefill": False}


@dataclass
class Answered:
    """An answer read to its end (or to where it broke)."""

    status: int
    headers: dict[str, str]
    raw: bytes
    broken: bool = False
    events: list[Any] = field(default_factory=list)

    @property
    def json(self) -> Any:
        return json.loads(self.raw)

    @property
    def text(self) -> str:
        """The text of choice 0."""
        if not self.events:
            choice = self.json["choices"][0]
            return choice["message"]["content"] if "message" in choice else choice["text"]
        chosen = [e["choices"][0] for e in self.events if isinstance(e, dict) and e.get("choices")]
        return "".join(
            c["delta"].get("content") or "" if "delta" in c else c["text"] for c in chosen if c["index"] == 0
        )


class Client:
    """Asks pods."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session

    async def post(self, pod: SimulatedPod, path: str, body: Any, headers: dict[str, str] | None = None) -> Answered:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **(headers or {})}
        async with self.session.post(pod.url + path, data=data, headers=headers) as answer:
            raw, broken = b"", False
            try:
                async for piece in answer.content.iter_any():
                    raw += piece
            except aiohttp.ClientError:
                broken = True
            names = {name.lower(): value for name, value in answer.headers.items()}
            found = Answered(answer.status, names, raw, broken)
        if found.headers.get("content-type", "").startswith("text/event-stream"):
            lines = [block.removeprefix("data: ") for block in raw.decode().split("\n\n") if block]
            with contextlib.suppress(json.JSONDecodeError):  # a broken stream may end inside an event
                for line in lines:
                    found.events.append(line if line == "[DONE]" else json.loads(line))
        return found

    async def get(self, pod: SimulatedPod, path: str) -> Answered:
        async with self.session.get(pod.url + path) as answer:
            names = {name.lower(): value for name, value in answer.headers.items()}
            return Answered(answer.status, names, await answer.read())

    async def chat(self, pod: SimulatedPod, headers: dict[str, str] | None = None, **more: Any) -> Answered:
        body = {"model": "sim", "messages": HELLO, "max_tokens": 8} | more
        return await self.post(pod, "/v1/chat/completions", body, headers)

    async def complete(self, pod: SimulatedPod, **more: Any) -> Answered:
        body = {"model": "sim", "prompt": "The long road home", "max_tokens": 8} | more
        return await self.post(pod, "/v1/completions", body)

    async def hand_over(self, prefill: SimulatedPod, decode: SimulatedPod, **more: Any) -> Answered:
        """Both legs of one chat request."""
        leg = {k: v for k, v in more.items() if k not in ("stream", "stream_options")}
        first = await self.chat(prefill, **(leg | {"max_tokens": 1, "kv_transfer_params": LEG_ONE}))
        return await self.chat(decode, **(more | {"kv_transfer_params": first.json["kv_transfer_params"]}))


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with aiohttp.ClientSession() as session:
        yield Client(session)


@pytest.fixture
async def plain() -> AsyncIterator[SimulatedPod]:
    async with SimulatedPod() as pod:
        yield pod


@pytest.fixture
async def prefill() -> AsyncIterator[SimulatedPod]:
    async with SimulatedPod(role="prefill") as pod:
        yield pod


@pytest.fixture
async def decode() -> AsyncIterator[SimulatedPod]:
    async with SimulatedPod(role="decode") as pod:
        yield pod
