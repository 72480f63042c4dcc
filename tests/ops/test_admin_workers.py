"""The admin API of a gateway of two workers, both in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from gateway.core.canary import CanaryState
from gateway.ops.config import load
from gateway.ops.serve import Running, running
from gateway.ops.workers import WorkerSeat
from tests.net.test_canary import BAD, finished
from tests.net.world import CHAT, Watcher, World, user, world


@dataclass
class Workers:
    """The pods and a client in `w`; started: the workers by number; stacks: to stop one."""

    w: World
    folder: Path
    flags: dict[str, Any]
    started: dict[int, Running]
    stacks: dict[int, AsyncExitStack]
    outer: AsyncExitStack

    async def start(self, number: int) -> Running:
        stack = self.stacks[number] = AsyncExitStack()
        self.outer.push_async_exit(stack)
        watcher = Watcher()
        config = load(None, {}, {**self.w.settings, **self.flags})
        found = await stack.enter_async_context(running(config, watcher, seat=WorkerSeat(number, 2, self.folder)))
        self.started[number] = found
        return found

    async def stop(self, number: int) -> None:
        await self.stacks[number].aclose()
        del self.started[number]

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        url = self.started[1].administration.url or ""
        async with self.w.session.request(method, url + path, json=body) as answer:
            found = await answer.json()
            assert answer.status < 300, found
            return found

    async def ask(self, number: int, session: str) -> None:
        body = {"model": "sim", "messages": [user()], "max_tokens": 8}
        reply = await self.w.post(CHAT, body, {"X-Session-ID": session}, self.started[number].url)
        assert reply.status == 200


@asynccontextmanager
async def two(folder: Path, **flags: Any) -> AsyncIterator[Workers]:
    async with AsyncExitStack() as stack, world(policy="local") as w:
        given = {"admin.port": 0, **flags}
        made = Workers(w, folder, given, {}, {}, stack)
        async with stack:
            await made.start(1)
            await made.start(2)
            yield made


async def test_only_the_first_worker_listens_and_it_speaks_for_both(tmp_path: Path) -> None:
    async with two(tmp_path) as workers:
        assert workers.started[2].administration.url is None
        await workers.ask(1, "a")
        await workers.ask(2, "b")
        await workers.ask(2, "c")
        assert (await workers.call("GET", "/api/v1/health"))["conversations"] == 3
        decided = (await workers.call("GET", "/api/v1/decisions"))["decisions"]
        assert len(decided) == 3
        assert [each["time"] for each in decided] == sorted((each["time"] for each in decided), reverse=True)
        assert len((await workers.call("GET", "/api/v1/decisions?limit=2"))["decisions"]) == 2
        for each in decided:
            assert (await workers.call("GET", f"/api/v1/conversations/{each['conversation']}"))["turn"] == 1
            assert len((await workers.call("GET", f"/api/v1/decisions/{each['id']}"))["decisions"]) == 1
        flow = await workers.call("GET", "/api/v1/flow")
        assert round(sum(pair["requests_per_s"] for pair in flow["pairs"]) * flow["window_s"]) == 3
        assert len((await workers.call("GET", "/api/v1/pods"))["pods"]) == 3


async def test_a_change_is_made_by_both(tmp_path: Path) -> None:
    async with two(tmp_path) as workers:
        await workers.call("PUT", "/api/v1/weights", {"w_ttft": 3, "w_tpot": 1})
        await workers.call("PUT", "/api/v1/canary", {"percent": 10})
        await workers.call("POST", "/api/v1/pods/drain", {"url": workers.w.decode[0].url})
        for each in workers.started.values():
            parts = each.gateway.parts
            assert parts.settings.weights.default.w_ttft == 3
            assert parts.canary.status.percent == 10
            assert parts.fleet.get(workers.w.decode[0].url).draining  # type: ignore[union-attr]


async def test_a_worker_that_starts_later_makes_the_last_of_each_change_first(tmp_path: Path) -> None:
    async with two(tmp_path) as workers:
        await workers.stop(2)
        drained = workers.w.decode[0].url
        for w_ttft in (5, 7):
            await workers.call("PUT", "/api/v1/weights", {"w_ttft": w_ttft, "w_tpot": 1})
        await workers.call("POST", "/api/v1/pods/drain", {"url": drained})
        await workers.call("POST", "/api/v1/pods/undrain", {"url": drained})
        await workers.call("POST", "/api/v1/pods", {"url": "http://127.0.0.1:1", "role": "replica"})
        await workers.call("PUT", "/api/v1/canary", {"state": "off"})
        parts = (await workers.start(2)).gateway.parts
        assert parts.settings.weights.default.w_ttft == 7
        assert not parts.fleet.get(drained).draining  # type: ignore[union-attr]
        assert parts.fleet.get("http://127.0.0.1:1") is not None
        assert parts.canary.status.state is CanaryState.OFF


async def test_what_the_guard_of_one_worker_finds_stops_all(tmp_path: Path) -> None:
    async with two(tmp_path, **{"canary.percent": 50}) as workers:
        observer = workers.started[2].gateway.parts.observer
        for number in range(200):
            observer.finished(finished("canary", number, **BAD[0]))  # type: ignore[arg-type]
            observer.finished(finished("baseline", number))  # type: ignore[arg-type]
        await workers.started[2].administration.canary.look()
        found = await workers.call("GET", "/api/v1/canary")
        backend = workers.started[2].administration.backend
        assert backend is not None
        await backend.told()
        found = await workers.call("GET", "/api/v1/canary")
        assert (found["state"], found["stops"]) == ("stopped", 1)
        assert workers.started[1].gateway.parts.canary.status.state is CanaryState.STOPPED
        assert await workers.call("PUT", "/api/v1/canary", {"state": "on"})
        assert workers.started[2].gateway.parts.canary.status.state is CanaryState.ON


async def test_a_worker_that_does_not_answer_is_left_out(tmp_path: Path) -> None:
    async with two(tmp_path) as workers:
        await workers.ask(1, "a")
        await workers.stop(2)
        assert (await workers.call("GET", "/api/v1/health"))["conversations"] == 1
        (tmp_path / "2.admin").unlink()
        assert (await workers.call("GET", "/api/v1/health"))["conversations"] == 1


async def test_the_stream_has_the_decisions_of_both(tmp_path: Path) -> None:
    async with two(tmp_path) as workers:
        url = workers.started[1].administration.url or ""
        other = workers.started[2].administration.backend
        assert other is not None
        async with workers.w.session.get(url + "/api/v1/decisions?follow=1") as answer:
            await answer.content.readuntil(b": decisions\n\n")
            async with asyncio.timeout(30):
                while other.control.decisions.readers == 0:  # noqa: ASYNC110
                    await asyncio.sleep(0)
            await workers.ask(1, "a")
            await workers.ask(2, "b")
            seen = [await decision(answer) for _ in range(2)]
            assert len({each["id"] for each in seen}) == 2


async def test_a_worker_that_is_followed_stops_without_a_word(tmp_path: Path) -> None:
    said: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    async with two(tmp_path) as workers:
        url = workers.started[1].administration.url or ""
        other = workers.started[2].administration.backend
        assert other is not None
        async with workers.w.session.get(url + "/api/v1/decisions?follow=1"):
            async with asyncio.timeout(30):
                while other.control.decisions.readers == 0:  # noqa: ASYNC110
                    await asyncio.sleep(0)
            await workers.stop(2)
            assert other.control.decisions.readers == 0
    assert said == []


async def decision(answer: aiohttp.ClientResponse) -> Any:
    while True:
        event = await answer.content.readuntil(b"\n\n")
        if event.startswith(b"data: "):
            return msgspec.json.decode(event[6:])
