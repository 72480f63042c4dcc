"""A gateway in front of simulated pods, all in this process, and a client that sees what each of them saw."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Self

import aiohttp
import msgspec

from gateway.net.gateway import Gateway
from gateway.net.records import IdleObserver, RequestRecord
from gateway.ops.config import load
from gateway.ops.serve import Running, running
from gateway.ops.tables import TableKeeper
from loadtest.pod.simulated import SimulatedPod

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
LONG = "Tell me about the river, the engine and the cache of the world. " * 8


class Watcher(IdleObserver):
    """An observer that tests can wait for."""

    def __init__(self) -> None:
        self.records: list[RequestRecord] = []
        self.faults: list[tuple[str, str | None, str]] = []
        self.pods: dict[str, bool] = {}
        self.restarts: list[tuple[str, str]] = []
        self.tests: list[tuple[str, str, bool, str]] = []
        self.breakers: list[tuple[str, str, str]] = []
        self.pairs: list[tuple[str, str, bool, str]] = []
        self.removed: list[tuple[str, str]] = []
        self.models: list[tuple[str, tuple[str, ...]]] = []
        self._changed = asyncio.Event()

    def finished(self, record: RequestRecord) -> None:
        self.records.append(record)
        self._changed.set()

    def fault(self, kind: str, pod: str | None, request_id: str, detail: str) -> None:
        self.faults.append((kind, pod, detail))
        self._changed.set()

    def pod_changed(self, pod: str, role: str, up: bool, detail: str) -> None:
        self.pods[pod] = up
        self._changed.set()

    def pod_breaker(self, pod: str, role: str, state: str, detail: str) -> None:
        self.breakers.append((pod, state, detail))
        self._changed.set()

    def pod_removed(self, pod: str, role: str, detail: str) -> None:
        self.pods.pop(pod, None)
        self.removed.append((pod, detail))
        self._changed.set()

    def pod_models(self, pod: str, role: str, models: tuple[str, ...]) -> None:
        self.models.append((pod, models))
        self._changed.set()

    def pair_probed(self, prefill: str, decode: str, works: bool, detail: str) -> None:
        self.pairs.append((prefill, decode, works, detail))
        self._changed.set()

    def pod_restarted(self, pod: str, role: str, detail: str) -> None:
        self.restarts.append((pod, detail))
        self._changed.set()

    def pod_tested(self, pod: str, role: str, outcome: str, direct: bool, detail: str) -> None:
        self.tests.append((pod, outcome, direct, detail))
        self._changed.set()

    async def until(self, condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
        """Wait for something the observer is told of."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    @property
    def fault_kinds(self) -> list[str]:
        return [kind for kind, _, _ in self.faults]


class Reply(msgspec.Struct):
    """What the client got. Header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def text(self) -> str:
        choice = self.json["choices"][0]
        return str(choice["message"]["content"] if "message" in choice else choice["text"])

    @property
    def events(self) -> list[bytes]:
        return [event for event in self.body.split(b"\n\n") if event]

    @property
    def chunks(self) -> list[Any]:
        return [msgspec.json.decode(event[6:]) for event in self.events if event != b"data: [DONE]"]

    @property
    def streamed_text(self) -> str:
        choices = [choice for chunk in self.chunks for choice in chunk["choices"]]
        return "".join(choice["delta"].get("content") or "" for choice in choices)


class World:
    """Pods by role, the gateway before them, and a client."""

    def __init__(self, session: aiohttp.ClientSession, watcher: Watcher, stack: AsyncExitStack) -> None:
        self.session = session
        self.watcher = watcher
        self.prefill: list[SimulatedPod] = []
        self.decode: list[SimulatedPod] = []
        self.replica: list[SimulatedPod] = []
        self.url = ""
        self.gateway: Gateway
        self.keeper: TableKeeper | None = None
        self.running: Running
        self.settings: dict[str, Any] = {}
        self._stack = stack
        self._pods: dict[str, AsyncExitStack] = {}

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    async def add(self, role: str, **options: Any) -> SimulatedPod:
        stack = AsyncExitStack()
        pod = await stack.enter_async_context(SimulatedPod(role=role, **options))
        self._pods[pod.url] = stack
        self._stack.push_async_exit(stack)
        getattr(self, role).append(pod)
        return pod

    async def kill(self, pod: SimulatedPod) -> None:
        """Close the pod: its port refuses connections from now on."""
        await self._pods[pod.url].aclose()

    async def restart(self, pod: SimulatedPod) -> SimulatedPod:
        """A new process on the port of a killed pod."""
        group: list[SimulatedPod] = getattr(self, pod.options.role)
        group.remove(pod)
        return await self.add(pod.options.role, port=pod.port)

    async def all_up(self) -> Self:
        pods = [*self.prefill, *self.decode, *self.replica]
        await self.watcher.until(lambda: all(self.watcher.pods.get(pod.url) for pod in pods))
        return self

    def pod(self, url: str | None) -> SimulatedPod:
        return next(pod for pod in [*self.prefill, *self.decode, *self.replica] if pod.url == url)

    async def post(self, path: str, body: Any, headers: dict[str, str] | None = None, url: str | None = None) -> Reply:
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        headers = {"Content-Type": "application/json", **(headers or {})}
        async with self.session.post((url or self.url) + path, data=io.BytesIO(data), headers=headers) as response:
            return Reply(response.status, _lower(response.headers), await response.read())

    async def get(self, path: str, method: str = "GET", headers: dict[str, str] | None = None) -> Reply:
        async with self.session.request(method, self.url + path, headers=headers) as response:
            return Reply(response.status, _lower(response.headers), await response.read())

    async def chat(self, messages: Sequence[dict[str, Any]], **fields: Any) -> Reply:
        body = {"model": "sim", "messages": messages, "max_tokens": 8, **fields}
        return await self.post(CHAT, body)

    async def record(self, count: int) -> RequestRecord:
        """The count-th record (from 1)."""
        await self.watcher.until(lambda: len(self.watcher.records) >= count)
        return self.watcher.records[count - 1]

    async def settled(self) -> None:
        """Wait until nothing is in flight and no background work is left."""
        await self.gateway.drain(10)
        self.gateway.draining = False
        await self.gateway.parts.finish_background()


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def names_in(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def user(text: str = LONG) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


@asynccontextmanager
async def world(
    prefill: int = 1,
    decode: int = 2,
    replica: int = 0,
    policy: str = "local",
    pod: dict[str, Any] | None = None,
    pod_of: Mapping[str, dict[str, Any]] | None = None,
    elsewhere: Mapping[str, Sequence[str]] | None = None,
    others: Sequence[tuple[str, str]] = (),
    **flags: Any,
) -> AsyncIterator[World]:
    """Start pods and gateway; `pod` are options of every pod, `pod_of` more by role, `flags` the gateway's settings.

    elsewhere: URLs of more pods, by role, that run in other processes or not at all.
    others: more pods, (role, model).
    """
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        watcher = Watcher()
        made = World(session, watcher, stack)
        for role, count in (("prefill", prefill), ("decode", decode), ("replica", replica)):
            for _ in range(count):
                await made.add(role, **{**(pod or {}), **(pod_of or {}).get(role, {})})
        for role, model in others:
            await made.add(role, model=model, **(pod or {}))
        settings: dict[str, Any] = {
            "prefill": [p.url for p in made.prefill],
            "decode": [p.url for p in made.decode],
            "replica": [p.url for p in made.replica],
            "policy": policy,
            "port": 0,
            "health.interval_s": 0.05,
            "selftest": False,
            "pairs.probe": False,
        }
        if flags.get("handover") == "mooncake":
            settings["mooncake_bootstraps"] = [f"{p.url}={p.url}" for p in made.prefill]
        for role, urls in (elsewhere or {}).items():
            settings[role] = [*settings[role], *urls]
        config = load(None, {}, {**settings, **flags})
        running_gateway = await stack.enter_async_context(running(config, watcher))
        made.gateway, made.url = running_gateway.gateway, running_gateway.url
        made.keeper, made.running, made.settings = running_gateway.keeper, running_gateway, {**settings, **flags}
        yield await made.all_up()
