"""Limits, the queue and its refusals over HTTP."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from gateway.core.admission.desk import AdmissionRules
from tests.net.leftovers import clean_world
from tests.net.test_disconnects import eventually, leave_when
from tests.net.world import LONG, Reply, World, assistant, user

LIMITS = {"admission.decode_tokens": 150}
"""One long prompt at a time and decode pod."""
TARGET = {"slo.standard.ttft_p99_ms": 60_000}


async def busy(w: World) -> asyncio.Task[Reply]:
    """A request that keeps the only decode pod busy until its faults are cleared."""
    w.decode[0].fault("hold")
    asked = asyncio.create_task(w.chat([user()]))
    await eventually(lambda: len(w.decode[0].requests) == 1)
    return asked


async def test_beyond_a_pods_tokens_a_request_waits_before_p_begins_and_the_record_says_how_long() -> None:
    async with clean_world(prefill=1, decode=1, **LIMITS) as w:
        first = await busy(w)
        asked_at = time.monotonic()
        second = asyncio.create_task(w.chat([user(LONG + "else")]))
        await eventually(lambda: len(w.gateway.parts.admission) == 1)
        waits_since = time.monotonic()
        assert len(w.prefill[0].requests) == 1
        await eventually(lambda: time.monotonic() - waits_since > 0.05)
        w.decode[0].clear_faults()
        assert (await first).status == (await second).status == 200
        record = await w.record(2)
        assert record.service == "standard"
        assert 0.05 < record.queued_s < time.monotonic() - asked_at
        assert w.gateway.parts.admission.desk.in_flight_tokens == 0


async def test_what_would_miss_its_deadline_gets_429_and_a_time_to_come_back() -> None:
    async with clean_world(prefill=1, decode=1, **LIMITS, **TARGET) as w:
        w.gateway.parts.admission.desk.first_tokens.learn(130, 90.0, asyncio.get_running_loop().time())
        first = await busy(w)
        late = await w.chat([user(LONG + "else")])
        assert late.status == 429
        assert late.json["error"]["type"] == "rate_limit_error"
        assert 30 <= int(late.headers["retry-after"]) <= 46  # 30 s too late, up to half as long again
        w.decode[0].clear_faults()
        assert (await first).status == 200
        assert (await w.record(1)).refused == "deadline"
        page = (await w.get("/metrics")).body.decode()
        assert 'ppd_admission_refused_total{reason="deadline",service_class="standard"} 1.0' in page


async def test_when_enough_wait_the_next_is_refused_and_ready_says_so() -> None:
    async with clean_world(prefill=1, decode=1, **LIMITS, **{"admission.queue": 1}) as w:
        first = await busy(w)
        second = asyncio.create_task(w.chat([user(LONG + "second")]))
        await eventually(lambda: len(w.gateway.parts.admission) == 1)
        ready = await w.get("/ready")
        assert (ready.status, ready.json) == (200, {"status": "ready", "admission": "full"})
        assert (await w.chat([user(LONG + "third")])).status == 429
        w.decode[0].clear_faults()
        assert (await first).status == (await second).status == 200
        assert (await w.get("/ready")).json == {"status": "ready"}


async def test_a_later_class_gives_way_to_an_earlier_one() -> None:
    async with clean_world(prefill=1, decode=1, **LIMITS, **{"admission.queue": 1}) as w:
        first = await busy(w)
        body = {"model": "sim", "messages": [user(LONG + "batch")], "max_tokens": 8}
        batch = asyncio.create_task(w.post("/v1/chat/completions", body, {"X-PPD-Class": "batch"}))
        await eventually(lambda: len(w.gateway.parts.admission) == 1)
        second = asyncio.create_task(w.chat([user(LONG + "second")]))
        assert (await batch).status == 429
        w.decode[0].clear_faults()
        assert (await first).status == (await second).status == 200
        sent = [request for request in w.decode[0].requests if "x-ppd-class" in request.headers]
        assert sent == []


async def test_a_class_that_does_not_exist_is_a_400() -> None:
    async with clean_world(prefill=1, decode=1, **LIMITS) as w:
        body = {"model": "sim", "messages": [user()], "max_tokens": 8}
        reply = await w.post("/v1/chat/completions", body, {"X-PPD-Class": "urgent"})
        assert (reply.status, reply.json["error"]["param"]) == (400, "X-PPD-Class")


async def test_a_client_that_leaves_the_queue_takes_no_place_with_it() -> None:
    async with clean_world(prefill=1, decode=1, **LIMITS) as w:
        first = await busy(w)
        await leave_when(w, lambda: len(w.gateway.parts.admission) == 1)
        await eventually(lambda: len(w.gateway.parts.admission) == 0)
        w.decode[0].clear_faults()
        last = asyncio.create_task(w.chat([user(LONG + "last")]))
        assert (await first).status == (await last).status == 200
        assert w.gateway.parts.admission.desk.in_flight_tokens == 0
        assert all(pod.load_tokens == 0 for pod in w.gateway.parts.fleet)


async def test_a_live_conversation_is_served_before_new_ones() -> None:
    async with clean_world(prefill=1, decode=1, policy="pd", **LIMITS) as w:
        talk: list[dict[str, Any]] = [user()]
        talk += [assistant((await w.chat(talk)).text), user("and then?")]
        w.decode[0].fault("hold")
        first = asyncio.create_task(w.chat([user(LONG + "first")]))
        await eventually(lambda: len(w.decode[0].requests) == 2)
        new = asyncio.create_task(w.chat([user(LONG + "new")]))
        await eventually(lambda: len(w.gateway.parts.admission) == 1)
        live = asyncio.create_task(w.chat(talk))
        await eventually(lambda: len(w.gateway.parts.admission) == 2)
        w.decode[0].clear_faults()
        replies = await asyncio.gather(first, new, live)
        assert [reply.status for reply in replies] == [200, 200, 200]
        order = [record.turn for record in w.watcher.records[1:]]
        assert order == [1, 2, 1]


async def test_all_of_many_are_served_and_the_limit_is_kept() -> None:
    async with clean_world(prefill=1, decode=2, **{"admission.max_tokens": 1200}) as w:
        parts, most = w.gateway.parts, 0
        entering = parts.admission.desk.enter

        def enter(waiter: Any) -> None:
            nonlocal most
            entering(waiter)
            most = max(most, parts.admission.desk.in_flight_tokens)

        parts.admission.desk.enter = enter  # type: ignore[method-assign]
        replies = await asyncio.gather(*(w.chat([user(f"{LONG} {number}")]) for number in range(30)))
        assert {reply.status for reply in replies} == {200}
        assert 600 < most <= 1200
        assert parts.admission.desk.in_flight_tokens == 0


async def test_a_higher_limit_lets_those_in_that_wait() -> None:
    async with clean_world(prefill=1, decode=1, **LIMITS) as w:
        first = await busy(w)
        second = asyncio.create_task(w.chat([user(LONG + "second")]))
        await eventually(lambda: len(w.gateway.parts.admission) == 1)
        w.gateway.parts.admission.set_rules(AdmissionRules(decode_tokens=100_000, queue_s=30))
        assert (await second).status == 200
        assert not first.done()
        w.decode[0].clear_faults()
        assert (await first).status == 200


async def test_pods_that_schedule_by_priority_are_told_the_class_and_whether_the_conversation_is_live() -> None:
    async with clean_world(prefill=1, decode=1, policy="local", **{"admission.vllm_priority": True}) as w:
        talk: list[dict[str, Any]] = [user()]
        talk += [assistant((await w.chat(talk)).text), user("and then?")]
        await w.chat(talk)
        assert [request.headers["x-vllm-priority"] for request in w.prefill[0].requests] == ["3"]
        assert [request.headers["x-vllm-priority"] for request in w.decode[0].requests] == ["3", "2"]


async def test_without_any_of_it_nothing_is_counted_or_sent() -> None:
    async with clean_world(prefill=1, decode=1) as w:
        await w.chat([user()])
        assert "x-vllm-priority" not in {name.lower() for name in w.decode[0].requests[0].headers}
        record = await w.record(1)
        assert (record.service, record.queued_s, record.priority) == (None, 0.0, None)
