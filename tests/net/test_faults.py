"""Every way a pod can fail, on every leg: what the client gets, who serves the next turn, and that nothing is left."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.net import pod_connection, relay
from tests.net.leftovers import check_well_formed, clean_world
from tests.net.test_failures import SHORT
from tests.net.world import LONG, World, assistant, user

SMALL = 1 << 20

PATIENT = {**SHORT, "retry_timed_out_prefill": False}

P_FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"kind": "close_without_response", "times": 2}, "ok"),
    ({"kind": "malformed_head"}, "ok"),
    ({"kind": "reset_before_headers", "times": 2}, "ok"),
    ({"kind": "reset_at_byte", "bytes": 0}, "ok"),
    ({"kind": "reset_at_byte", "bytes": 1}, "ok"),
    ({"kind": "reset_at_byte", "bytes": 100}, "ok"),
    ({"kind": "malformed_chunk"}, "ok"),
    ({"kind": "malformed_sse"}, "ok"),
    ({"kind": "endless_body"}, "ok"),
    ({"kind": "one_byte_writes"}, "ok"),
    ({"kind": "slow_headers", "seconds": 0.1}, "ok"),
    ({"kind": "refuse_5xx", "status": 302}, "ok"),
    ({"kind": "refuse_5xx", "status": 502}, "ok"),
    ({"kind": "refuse_5xx", "status": 599}, "ok"),
    ({"kind": "hang_before_headers"}, "error"),
    ({"kind": "stall_after_events"}, "error"),
    ({"kind": "slow_headers", "seconds": 30}, "error"),
]
"""What fails on P, and how the client's answer ends: a prefill that took too long is not done again."""

D_FAULTS: list[tuple[dict[str, Any], str, str]] = [
    ({"kind": "close_without_response", "times": 2}, "ok", "ok"),
    ({"kind": "malformed_head"}, "ok", "ok"),
    ({"kind": "reset_before_headers", "times": 2}, "ok", "ok"),
    ({"kind": "reset_at_byte", "bytes": 0}, "ok", "ok"),
    ({"kind": "reset_at_byte", "bytes": 100}, "ok", "ok"),
    ({"kind": "reset_at_byte", "bytes": 1500}, "ok", "broken"),
    ({"kind": "malformed_chunk"}, "ok", "ok"),
    ({"kind": "malformed_chunk", "events": 4}, "ok", "broken"),
    ({"kind": "malformed_sse"}, "ok", "ok"),
    ({"kind": "malformed_sse", "events": 4}, "ok", "broken"),
    ({"kind": "endless_body"}, "ok", "ok"),
    ({"kind": "one_byte_writes"}, "ok", "ok"),
    ({"kind": "slow_headers", "seconds": 0.1}, "ok", "ok"),
    ({"kind": "refuse_5xx", "status": 302}, "ok", "ok"),
    ({"kind": "refuse_5xx", "status": 502}, "ok", "ok"),
    ({"kind": "hang_before_headers"}, "ok", "ok"),
    ({"kind": "slow_headers", "seconds": 30}, "ok", "ok"),
    ({"kind": "stall_after_events", "events": 0}, "ok", "ok"),
    ({"kind": "stall_after_events", "events": 5}, "ok", "broken"),
    ({"kind": "reset_after_events", "events": 5}, "ok", "broken"),
    ({"kind": "finish_error", "events": 0}, "ok", "ok"),
    ({"kind": "finish_error", "events": 5}, "ok", "broken"),
]
"""What fails on D, and how a whole and a streamed answer end."""


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """An endless answer need not fill the memory to be seen as one."""
    monkeypatch.setattr(pod_connection, "MAX_HELD_BYTES", SMALL)
    monkeypatch.setattr(relay, "MAX_OPENING_BYTES", SMALL)


def limits_of(fault: dict[str, Any]) -> dict[str, Any]:
    silent = fault["kind"] in ("hang_before_headers", "stall_after_events") or fault.get("seconds", 0) > 1
    return {**PATIENT, "timeouts.token_gap_s": 0.5} if silent else {}


async def next_turn_is_served(w: World, reply_text: str) -> None:
    reply = await w.chat([user(), assistant(reply_text), user("and then? " + LONG)])
    assert check_well_formed(reply, stream=False) == "ok"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("fault", "ends"), P_FAULTS, ids=str)
async def test_a_fault_of_p(fault: dict[str, Any], ends: str, stream: bool) -> None:
    async with clean_world(prefill=2, decode=1, **limits_of(fault)) as w:
        good = await w.chat([user()])
        w.gateway.parts.fleet.get(w.prefill[1].url).take(10**9)  # type: ignore[union-attr]
        w.prefill[0].fault(**fault)
        before = len(w.prefill[1].requests)
        reply = await w.chat([user()], stream=stream)
        assert check_well_formed(reply, stream=stream) == ends
        if ends == "ok":
            assert (reply.streamed_text if stream else reply.text) == good.text
        else:
            assert reply.status == 504
            assert w.watcher.fault_kinds == ["prefill_timeout"]
            assert len(w.prefill[1].requests) == before, "what may still run on one P is not begun on another"
        w.prefill[0].clear_faults()
        await next_turn_is_served(w, good.text)
        w.gateway.parts.fleet.get(w.prefill[1].url).give_back(10**9)  # type: ignore[union-attr]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("fault", "whole_ends", "stream_ends"), D_FAULTS, ids=str)
async def test_a_fault_of_d(fault: dict[str, Any], whole_ends: str, stream_ends: str, stream: bool) -> None:
    ends = stream_ends if stream else whole_ends
    async with clean_world(prefill=1, decode=2, **limits_of(fault)) as w:
        good = await w.chat([user()])
        w.gateway.parts.fleet.get(w.decode[1].url).take(10**9)  # type: ignore[union-attr]
        w.decode[0].fault(**fault)
        reply = await w.chat([user()], stream=stream)
        assert check_well_formed(reply, stream=stream) == ends
        if ends == "ok":
            assert (reply.streamed_text if stream else reply.text) == good.text
        w.decode[0].clear_faults()
        await next_turn_is_served(w, good.text)
        w.gateway.parts.fleet.get(w.decode[1].url).give_back(10**9)  # type: ignore[union-attr]
