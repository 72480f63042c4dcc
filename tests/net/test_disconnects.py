"""Clients that go away, and what is left on the pods."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import pytest

from gateway.net.records import Outcome
from loadtest.pod.simulated import SimulatedPod
from tests.net.world import CHAT, World, user, world


async def leave_when(w: World, condition: Callable[[], bool], **fields: object) -> None:
    """Send a request and close the connection as soon as the condition holds."""
    body = {"model": "sim", "messages": [user()], "max_tokens": 400, **fields}
    request = asyncio.create_task(w.post(CHAT, body))
    await eventually(condition)
    request.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await request


async def eventually(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    """Let the loop turn until the condition holds (everything runs in this loop; nothing tells of it)."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


def idle(*pods: SimulatedPod) -> bool:
    return all(pod.summary["running"] == 0 and pod.summary["waiting"] == 0 for pod in pods)


def pinned(pod: SimulatedPod) -> int:
    return int(pod.summary["pinned_blocks"])


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_leaving_during_the_prefill_leg_cancels_it_at_once(stream: bool) -> None:
    async with world(prefill=1, decode=1) as w:
        w.prefill[0].fault("hang_before_headers")
        await leave_when(w, lambda: len(w.prefill[0].requests) == 1, stream=stream)
        record = await w.record(1)
        await eventually(lambda: w.prefill[0].requests[0].outcome == "gone")
        await w.settled()
        assert record.outcome is Outcome.CANCELLED
        assert not w.decode[0].requests
        assert idle(w.prefill[0])
        assert pinned(w.prefill[0]) == 0


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_leaving_between_the_legs_completes_the_handover_so_that_p_frees_its_blocks(stream: bool) -> None:
    async with world(prefill=1, decode=1, **{"timeouts.handover_grace_s": 30}) as w:
        w.decode[0].fault("hold")
        await leave_when(w, lambda: len(w.decode[0].requests) == 1, stream=stream)
        assert pinned(w.prefill[0]) > 0
        w.decode[0].clear_faults()
        record = await w.record(1)
        assert record.outcome is Outcome.CANCELLED
        await eventually(lambda: pinned(w.prefill[0]) == 0)
        await w.settled()
        await eventually(lambda: idle(w.prefill[0], w.decode[0]))
        assert w.gateway.parts.background_tasks == 0


async def test_an_abandoned_handover_does_not_hold_d_for_longer_than_its_grace() -> None:
    async with world(prefill=1, decode=1, **{"timeouts.handover_grace_s": 0.1}) as w:
        w.decode[0].fault("hang_before_headers")
        await leave_when(w, lambda: len(w.decode[0].requests) == 1)
        await w.settled()
        assert idle(w.decode[0])
        assert w.gateway.parts.background_tasks == 0


@pytest.mark.parametrize("policy", ["pd", "local"])
async def test_leaving_in_mid_stream_stops_the_decode_pod(policy: str) -> None:
    async with world(prefill=1 if policy == "pd" else 0, decode=1, policy=policy) as w:
        w.decode[0].fault("stall_after_events", events=4)
        body = {"model": "sim", "messages": [user()], "max_tokens": 400, "stream": True}
        async with w.session.post(w.url + CHAT, json=body) as response:
            await response.content.readany()
        record = await w.record(1)
        await eventually(lambda: idle(*w.prefill, *w.decode))
        assert record.outcome is Outcome.CANCELLED
        assert all(pod.in_flight == 0 and pod.load_tokens == 0 for pod in w.gateway.parts.fleet)


async def test_leaving_an_unstreamed_request_stops_the_decode_pod() -> None:
    async with world(prefill=0, decode=1) as w:
        w.decode[0].fault("hang_before_headers")
        await leave_when(w, lambda: len(w.decode[0].requests) == 1)
        await w.record(1)
        await eventually(lambda: w.decode[0].requests[0].outcome == "gone")
        assert idle(w.decode[0])


async def test_a_cancelled_turn_leaves_the_conversation_where_it_was() -> None:
    async with world(prefill=0, decode=1) as w:
        w.decode[0].fault("hang_before_headers")
        await leave_when(w, lambda: len(w.decode[0].requests) == 1)
        await w.record(1)
        await w.settled()
        assert len(w.gateway.parts.store) == 0


async def test_p_frees_its_blocks_when_d_refuses_the_request() -> None:
    async with world(prefill=1, decode=1) as w:
        w.decode[0].fault("refuse_5xx", status=400)
        reply = await w.chat([user()])
        assert reply.status == 400
        await w.settled()
        await eventually(lambda: pinned(w.prefill[0]) == 0)
        release = w.decode[0].requests[-1]
        assert release.status == 404
        assert release.body["kv_transfer_params"] == w.decode[0].requests[-2].body["kv_transfer_params"]
        assert "messages" not in release.body
