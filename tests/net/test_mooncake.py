"""Mooncake: both legs start at once, and whichever fails takes the other along as far as it must."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from loadtest.pod.journal import Record
from loadtest.pod.simulated import SimulatedPod
from tests.net.leftovers import check_well_formed, clean_world
from tests.net.test_disconnects import eventually, leave_when
from tests.net.test_faults_handover import ledger
from tests.net.world import LONG, World, _lower, assistant, user


@asynccontextmanager
async def mooncake_world(**options: Any) -> AsyncIterator[World]:
    """Simulated pods listen for the bootstrap question on their own port."""
    async with clean_world(handover="mooncake", **{"policy": "pd", **options}) as w:
        yield w


def params(record: Record) -> dict[str, Any]:
    found = record.body["kv_transfer_params"]
    assert isinstance(found, dict)
    return found


async def test_both_legs_carry_one_transfer_id_and_d_is_told_who_p_is() -> None:
    async with mooncake_world(prefill=1, decode=1) as w:
        reply = await w.chat([user()])
        assert reply.status == 200
        (p,), (d,) = w.prefill[0].requests, w.decode[0].requests
        transfer_id = params(p)["transfer_id"]
        assert params(p) == {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": transfer_id}
        assert params(d) == {
            "do_remote_decode": False,
            "do_remote_prefill": True,
            "remote_bootstrap_addr": w.prefill[0].url,
            "remote_engine_id": w.prefill[0].state.engine_id,
            "transfer_id": transfer_id,
        }
        assert _lower(p.headers)["x-request-id"] == _lower(d.headers)["x-request-id"]
        assert [transfer.ok for transfer in w.decode[0].transfers] == [True]


async def test_d_is_asked_before_p_has_answered() -> None:
    async with mooncake_world(prefill=1, decode=1) as w:
        w.prefill[0].fault("hold")
        asked = asyncio.create_task(w.chat([user()]))
        await w.decode[0].until(lambda: len(w.decode[0].requests) == 1)
        assert w.prefill[0].requests[0].outcome not in ("ok", "error")
        w.prefill[0].clear_faults()
        assert (await asked).status == 200


@pytest.mark.parametrize("stream", [True, False])
async def test_the_client_gets_the_usage_that_p_counted(stream: bool) -> None:
    async with mooncake_world(prefill=1, decode=1, pod={"block_size": 16}) as w:
        first = await w.chat([user()])
        messages = [user(), assistant(first.text), user("And then?")]
        extra = {"stream_options": {"include_usage": True}} if stream else {}
        w.prefill[0].fault("slow_headers", seconds=0.1)  # D's stream has begun when P answers
        second = await w.chat(messages, stream=stream, **extra)
        usage = second.chunks[-1]["usage"] if stream else second.json["usage"]
        record = await w.record(2)
        assert record.route == "pd"
        assert usage["prompt_tokens_details"]["cached_tokens"] == record.prefill_cached_tokens
        assert record.prefill_cached_tokens is not None
        assert record.prefill_cached_tokens > 0


async def test_the_answer_is_what_one_pod_alone_says() -> None:
    async with mooncake_world(prefill=1, decode=1, replica=1) as w:
        body = {"model": "sim", "messages": [user()], "max_tokens": 24}
        through = await w.post("/v1/chat/completions", body)
        alone = await w.post("/v1/chat/completions", body, url=w.replica[0].url)
        assert (await w.record(1)).route in ("pd", "replica")
        assert through.text == alone.text


async def test_a_p_that_fails_ends_the_leg_to_d_and_the_next_p_serves() -> None:
    async with mooncake_world(prefill=2, decode=1) as w:
        for pod in w.prefill:
            pod.fault("refuse_5xx", status=503)
        reply = await w.chat([user()])
        assert check_well_formed(reply, stream=False) == "ok"
        record = await w.record(1)
        assert (record.attempts, record.route) == (3, "local")
        assert [d.outcome for d in w.decode[0].requests] == ["gone", "gone", "ok"]
        assert w.watcher.fault_kinds.count("prefill_status") == 2


async def test_a_p_that_hangs_is_given_up_and_d_works_alone() -> None:
    async with mooncake_world(prefill=1, decode=1, **{"timeouts.prefill_s": 0.2, "retry_timed_out_prefill": True}) as w:
        w.prefill[0].fault("hang_before_headers")
        reply = await w.chat([user()])
        assert check_well_formed(reply, stream=False) == "ok"
        assert (await w.record(1)).route == "local"


async def test_a_d_that_cannot_be_reached_ends_the_leg_to_p() -> None:
    async with mooncake_world(prefill=1, decode=2, **{"health.interval_s": 60}) as w:
        w.prefill[0].fault("hold")
        await w.kill(w.decode[0])
        await w.kill(w.decode[1])
        reply = await w.chat([user()])
        assert check_well_formed(reply, stream=False) == "error"
        await w.settled()
        assert w.prefill[0].requests[0].outcome == "gone"


async def test_a_d_that_refuses_the_request_leaves_nothing_pinned() -> None:
    async with mooncake_world(prefill=1, decode=1) as w:
        w.decode[0].fault("refuse_5xx", status=503)
        reply = await w.chat([user()])
        assert check_well_formed(reply, stream=False) == "ok"
        assert (await w.record(1)).route == "local"
        await w.settled()
        await eventually(lambda: w.prefill[0].summary["pinned_blocks"] == 0)


async def test_a_client_that_leaves_lets_p_finish_so_that_d_can_free_its_blocks() -> None:
    async with mooncake_world(prefill=1, decode=1, **{"timeouts.handover_grace_s": 0.05}) as w:
        w.prefill[0].fault("hold")
        await leave_when(w, lambda: len(w.decode[0].requests) == 1)
        await eventually(lambda: w.decode[0].requests[0].outcome == "gone")
        w.prefill[0].clear_faults()
        await w.settled()
        assert w.prefill[0].requests[0].outcome == "ok", "P came to its end"
        for pod in (*w.prefill, *w.decode):
            await eventually(lambda pod=pod: pod.summary["free_blocks"] == pod.summary["blocks"])


async def test_without_an_engine_id_d_works_alone_and_says_why() -> None:
    async with mooncake_world(prefill=1, decode=1, **{"health.interval_s": 60}) as w:
        w.gateway.parts.origins.forget(w.prefill[0].url)
        reply = await w.chat([user()])
        assert reply.status == 200
        record = await w.record(1)
        assert (record.route, len(w.prefill[0].requests)) == ("local", 0)
        assert "prefill_no_handover" in w.watcher.fault_kinds


async def test_a_p_that_came_back_is_known_by_its_new_engine_id() -> None:
    async with mooncake_world(prefill=1, decode=1) as w:
        await w.chat([user()])
        old = w.prefill[0].state.engine_id
        await w.kill(w.prefill[0])
        await w.watcher.until(lambda: not w.watcher.pods[w.prefill[0].url])
        new: SimulatedPod = await w.restart(w.prefill[0])
        await w.watcher.until(lambda: w.watcher.pods[new.url])
        await w.chat([user("something else " + LONG)])
        told = params(w.decode[0].requests[-1])["remote_engine_id"]
        assert told == new.state.engine_id != old


async def test_a_hand_over_is_in_the_ledger_from_p_s_answer_until_d_s() -> None:
    async with mooncake_world(prefill=1, decode=1) as w:
        w.decode[0].fault("hold")
        asked = asyncio.create_task(w.chat([user()]))
        await eventually(lambda: ledger(w) == (1, 0))
        w.decode[0].clear_faults()
        assert (await asked).status == 200
        assert ledger(w) == (0, 0)


async def test_a_request_waits_for_a_place_before_either_leg_begins() -> None:
    async with mooncake_world(prefill=1, decode=1, decode_max_in_flight=1, queue_s=30) as w:
        w.decode[0].fault("hold")
        first = asyncio.create_task(w.chat([user()]))
        await eventually(lambda: len(w.decode[0].requests) == 1)
        second = asyncio.create_task(w.chat([user("something else")]))
        await eventually(lambda: len(w.gateway.parts.admission) == 1)
        assert (len(w.prefill[0].requests), len(w.decode[0].requests)) == (1, 1)
        w.decode[0].clear_faults()
        assert (await first).status == (await second).status == 200


async def test_a_bootstrap_server_that_does_not_answer_is_said_and_costs_nobody_an_answer() -> None:
    async with mooncake_world(prefill=1, decode=1, **{"health.facts_interval_s": 0.01}) as w:
        w.gateway.parts.origins.forget(w.prefill[0].url)
        w.gateway.parts.origins._bootstraps = {w.prefill[0].url: "http://127.0.0.1:1"}
        await w.watcher.until(lambda: "bootstrap_connect" in w.watcher.fault_kinds)
        assert (await w.chat([user()])).status == 200
        assert w.watcher.records[-1].route == "local"
        assert w.watcher.pods[w.prefill[0].url], "the pod itself is well"


async def test_the_pods_page_says_how_a_pod_hands_over() -> None:
    async with mooncake_world(prefill=1, decode=1) as w:
        shown = {pod["url"]: pod["handover"] for pod in (await w.get("/admin/pods")).json["pods"]}
        assert shown == {w.prefill[0].url: "mooncake", w.decode[0].url: None}
