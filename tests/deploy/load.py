"""A gateway under a load that has something of everything, for Prometheus to look at.

Every round is a few conversations through a cluster of simulated pods: first turns, turns that the table keeps on D,
a queue, replicas, a readback, a prefill pod that fails, a stream that breaks, a client that leaves. It goes on until it
is told to stop, so that rates are never nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from gateway.core.pods import Role
from tests.net.world import CHAT, LONG, World, assistant, user, world
from tests.tables import arm, write_set

FAST_LOCAL = {"1P_3D": (arm(100, 10), arm(20, 10.7))}


@asynccontextmanager
async def busy_gateway(folder: Path) -> AsyncIterator[World]:
    """One prefill, three decode pods (one with its breaker open), one replica; both arms of a canary."""
    table = write_set(folder / "table", FAST_LOCAL)
    flags: dict[str, Any] = {
        "policy": "ppd",
        "table": str(table),
        "readback": True,
        "canary.percent": 50,
        "canary.guard": False,
        "state_file": str(folder / "state"),
        "breaker.open_s": 300,
        "admission.max_tokens": 2_000,
        "slo.standard.ttft_p99_ms": 60_000,
        "slo.min_samples": 5,
    }
    pod_of = {"prefill": {"bidirectional": True}, "decode": {"kv_events": True, "buffer_steps": 30}}
    async with world(1, 3, 1, pod_of=pod_of, pod={"block_size": 16}, **flags) as w:
        parts = w.gateway.parts
        broken = parts.fleet.get(w.decode[2].url)
        assert broken is not None
        while broken.breaker.admits:
            parts.blame(broken, "timeout")
        load = asyncio.ensure_future(_go_on(w))
        try:
            yield w
        finally:
            load.cancel()
            with suppress(asyncio.CancelledError):
                await load  # had it ended by itself, this says why


async def _go_on(w: World) -> None:
    number = 0
    while True:
        number += 1
        await asyncio.gather(*(_talk(w, f"c{number}.{each}", LONG) for each in range(4)))
        await asyncio.gather(*(_talk(w, f"q{number}.{each}", LONG * 2) for each in range(8)))  # more than may come in
        await _moves(w, f"m{number}")
        await _goes_wrong(w, f"w{number}")
        await asyncio.sleep(0.02)


async def _say(w: World, name: str, messages: list[dict[str, str]], **more: Any) -> str:
    """One streamed turn; its text."""
    body = {"model": "sim", "messages": messages, "max_tokens": 24, "stream": True, **more}
    return (await w.post(CHAT, body, {"X-Session-ID": name})).streamed_text


async def _talk(w: World, name: str, text: str) -> None:
    first = [user(f"{name} {text}")]
    said = await _say(w, name, first)
    await _say(w, name, [*first, assistant(said), user("and then?")])


async def _moves(w: World, name: str) -> None:
    """A conversation begins on a decode pod alone, which is then drained: its next turn is a readback."""
    fleet = w.gateway.parts.fleet
    others = [*fleet.of(Role.PREFILL), *fleet.of(Role.REPLICA)]
    for pod in others:
        fleet.set_draining(pod, True)
    first = [user(f"{name} {LONG * 3}")]
    said = await _say(w, name, first)
    for pod in others:
        fleet.set_draining(pod, False)
    holder = fleet.get(w.watcher.records[-1].answering)
    assert holder is not None
    fleet.set_draining(holder, True)
    await _say(w, name, [*first, assistant(said), user("and then?")])
    fleet.set_draining(holder, False)


async def _goes_wrong(w: World, name: str) -> None:
    w.prefill[0].fault("refuse_5xx")
    await _say(w, f"{name}a", [user(f"{name} a {LONG}")])
    w.prefill[0].clear_faults()
    for pod in w.decode[:2]:
        pod.fault("reset_after_events", events=4)
    w.replica[0].fault("reset_after_events", events=4)
    body = {"model": "sim", "messages": [user(f"{name} b {LONG}")], "max_tokens": 24, "stream": True}
    await w.post(CHAT, body, {"X-Session-ID": f"{name}b"})
    for pod in (*w.decode, *w.replica):
        pod.clear_faults()
