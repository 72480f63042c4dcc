"""Hand-overs and places: P's KV waits for as short as can be, never for the wrong process, and is accounted for."""

from __future__ import annotations

import asyncio

from tests.net.leftovers import check_well_formed, clean_world
from tests.net.test_disconnects import eventually, leave_when, pinned
from tests.net.world import World, user


def ledger(w: World) -> tuple[int, int]:
    """(waiting, stranded) on the first P."""
    handovers = w.gateway.parts.handovers
    return handovers.of(w.prefill[0].url, 0.0)[0], handovers.stranded[w.prefill[0].url]


async def test_a_hand_over_is_in_the_ledger_from_p_s_answer_until_d_s() -> None:
    async with clean_world(prefill=1, decode=1) as w:
        w.decode[0].fault("hold")
        asked = asyncio.create_task(w.chat([user()]))
        await eventually(lambda: ledger(w) == (1, 0))
        assert pinned(w.prefill[0]) > 0
        page = (await w.get("/metrics")).body.decode()
        assert f'ppd_handovers_waiting{{pod="{w.prefill[0].url}"}} 1.0' in page
        w.decode[0].clear_faults()
        assert (await asked).status == 200
        assert ledger(w) == (0, 0)


async def test_what_d_dies_with_is_stranded_when_the_lease_ends() -> None:
    async with clean_world(prefill=1, decode=1, lease_s=0.3) as w:
        w.decode[0].fault("reset_before_headers", times=-1)
        assert (await w.chat([user()])).status == 502
        w.decode[0].clear_faults()
        await eventually(lambda: ledger(w) == (0, 1))
        page = (await w.get("/metrics")).body.decode()
        assert f'ppd_handovers_stranded_total{{pod="{w.prefill[0].url}"}} 1.0' in page


async def test_where_d_said_no_with_a_5xx_p_is_told_at_once() -> None:
    async with clean_world(prefill=1, decode=1) as w:
        w.decode[0].fault("refuse_5xx", status=503)
        assert (await w.chat([user()])).status == 200
        assert (await w.record(1)).route == "local"
        await w.settled()
        await eventually(lambda: pinned(w.prefill[0]) == 0)
        assert ledger(w) == (0, 0)


async def test_a_client_that_leaves_between_the_legs_leaves_nothing_in_the_ledger() -> None:
    async with clean_world(prefill=1, decode=1) as w:
        w.decode[0].fault("hold")
        await leave_when(w, lambda: len(w.decode[0].requests) == 1)
        w.decode[0].clear_faults()
        await w.settled()
        assert ledger(w) == (0, 0)


async def test_no_d_gets_the_words_of_a_p_that_was_restarted_meanwhile() -> None:
    async with clean_world(prefill=1, decode=2, **{"health.interval_s": 60}) as w:
        parts = w.gateway.parts
        first, second = w.decode
        other = parts.fleet.get(second.url)
        assert other is not None
        other.take(10**9)
        await w.kill(first)
        p = parts.fleet.get(w.prefill[0].url)
        assert p is not None
        losing = parts.notice

        def lose_and_restart(pod: object, fault: object) -> None:
            losing(pod, fault)  # type: ignore[arg-type]
            parts.restarted(p, "while D was being dialled")

        parts.notice = lose_and_restart  # type: ignore[method-assign, assignment]
        reply = await w.chat([user()])
        assert check_well_formed(reply, stream=False) == "ok"
        assert len(w.prefill[0].requests) == 2, "the prefill is done again"
        sent = [request.body["kv_transfer_params"]["remote_block_ids"] for request in second.requests]
        assert len(sent) == 1
        other.give_back(10**9)


async def test_a_request_waits_for_a_place_before_p_begins() -> None:
    async with clean_world(prefill=1, decode=1, decode_max_in_flight=1, queue_s=30) as w:
        w.decode[0].fault("hold")
        first = asyncio.create_task(w.chat([user()]))
        await eventually(lambda: len(w.decode[0].requests) == 1)
        second = asyncio.create_task(w.chat([user("something else")]))
        await eventually(lambda: len(w.gateway.parts.admission) == 1)
        assert len(w.prefill[0].requests) == 1
        w.decode[0].clear_faults()
        assert (await first).status == (await second).status == 200
        assert len(w.prefill[0].requests) == 2


async def test_a_place_that_does_not_come_is_a_503_that_says_when_to_come_back() -> None:
    async with clean_world(prefill=1, decode=1, decode_max_in_flight=1, queue_s=0.05) as w:
        w.decode[0].fault("hold")
        first = asyncio.create_task(w.chat([user()]))
        await eventually(lambda: len(w.decode[0].requests) == 1)
        late = await w.chat([user("something else")])
        assert late.status == 503
        assert int(late.headers["retry-after"]) > 0
        assert len(w.prefill[0].requests) == 1
        w.decode[0].clear_faults()
        assert (await first).status == 200
        assert len(w.gateway.parts.admission) == 0


async def test_all_who_wait_are_served_in_their_turn() -> None:
    async with clean_world(prefill=1, decode=2, decode_max_in_flight=2, queue_s=20) as w:
        replies = await asyncio.gather(*(w.chat([user(f"question {number}")]) for number in range(40)))
        assert {reply.status for reply in replies} == {200}
        assert len(w.gateway.parts.admission) == 0


async def test_a_client_that_leaves_the_queue_leaves_no_place_taken() -> None:
    async with clean_world(prefill=1, decode=1, decode_max_in_flight=1, queue_s=20) as w:
        w.decode[0].fault("hold")
        first = asyncio.create_task(w.chat([user()]))
        await eventually(lambda: len(w.decode[0].requests) == 1)
        await leave_when(w, lambda: len(w.gateway.parts.admission) == 1)
        w.decode[0].clear_faults()
        last = asyncio.create_task(w.chat([user("something else")]))
        assert (await first).status == (await last).status == 200
        assert len(w.gateway.parts.admission) == 0
