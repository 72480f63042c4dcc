"""What is left of requests that are over: counted in the gateway, at its sockets, and in the event loop.

Rule of this room: everything a request can hold on to is one line here; a test takes the count before and asks for the
same after.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tests.net.world import Reply, World, world


@dataclass(frozen=True)
class Leftovers:
    """seats: places at pods, as the gateway counts them. handlers: tasks of the server that serve a request."""

    background: int = 0
    in_flight: int = 0
    seats: int = 0
    seat_tokens: int = 0
    pending_turns: int = 0
    trials: int = 0
    handovers: int = 0
    running_on_pods: int = 0
    waiting_on_pods: int = 0
    handlers: int = 0


def count(w: World) -> Leftovers:
    """What the world's gateway and pods hold now. All zero once every request is over."""
    parts = w.gateway.parts
    pods = list(parts.fleet)
    simulated = [*w.prefill, *w.decode, *w.replica]
    return Leftovers(
        background=parts.background_tasks,
        in_flight=w.gateway.in_flight,
        seats=sum(pod.in_flight for pod in pods),
        seat_tokens=sum(pod.load_tokens for pod in pods),
        pending_turns=sum(each.pending for each in map(parts.store.get, parts.store.keys()) if each is not None),
        trials=sum(pod.breaker.trial for pod in pods),
        handovers=handovers_in_use(w),
        running_on_pods=sum(int(pod.summary["running"]) for pod in simulated),
        waiting_on_pods=sum(int(pod.summary["waiting"]) for pod in simulated),
        handlers=sum("HttpServer._serve" in repr(task.get_coro()) for task in asyncio.all_tasks()),
    )


def handovers_in_use(w: World) -> int:
    """Hand-overs of which a request still makes something."""
    return w.gateway.parts.handovers.in_use


def open_sockets() -> set[str]:
    """The sockets of this process."""
    found = set()
    for each in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.add(str(each.readlink()))
    return {name for name in found if name.startswith("socket:")}


@asynccontextmanager
async def clean_world(**options: Any) -> AsyncIterator[World]:
    """A world that must leave nothing: no seat, no turn, no task, no socket."""
    sockets, tasks = open_sockets(), asyncio.all_tasks()
    async with world(**options) as w:
        yield w
        await nothing_left(w)
    try:
        async with asyncio.timeout(30):
            while len(open_sockets()) > len(sockets) or not asyncio.all_tasks() <= tasks:  # noqa: ASYNC110 - nothing announces it
                await asyncio.sleep(0.005)
    except TimeoutError:
        left = f"left open: {open_sockets() - sockets}, running: {asyncio.all_tasks() - tasks}"
        raise AssertionError(left) from None


async def nothing_left(w: World, timeout_s: float = 30.0) -> None:
    """Wait until nothing is left; says what is, where that does not come about."""
    await w.settled()
    try:
        async with asyncio.timeout(timeout_s):
            while count(w) != Leftovers():  # noqa: ASYNC110
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"left behind: {count(w)}") from None


def check_well_formed(reply: Reply, *, stream: bool) -> str:
    """How the answer ended: "ok", "error" (an answer of its own) or "broken" (a stream that ends with an error event).

    Anything that a client could not make sense of fails here.
    """
    if reply.status != 200:
        assert reply.status in (502, 503, 504, 500), reply
        assert set(reply.json["error"]) >= {"message", "type", "code"}, reply.body
        return "error"
    if not stream:
        assert reply.json["choices"][0]["finish_reason"] in ("length", "stop"), reply.body[:300]
        return "ok"
    assert reply.body.endswith(b"\n\n"), reply.body[-100:]
    last = reply.events[-1]
    if last == b"data: [DONE]":
        before = msgspec.json.decode(reply.events[-2].removeprefix(b"data: "))
        return "broken" if "error" in before else "ok"
    assert set(msgspec.json.decode(last.removeprefix(b"data: "))["error"]) == {"message", "type", "param", "code"}
    return "broken"
