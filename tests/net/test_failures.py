"""What a client sees when pods fail, and what the pods are left with."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from gateway.net.records import Outcome
from tests.net.world import CHAT, LONG, Reply, World, assistant, user, world

BEFORE_THE_FIRST_BYTE = [
    {"kind": "refuse_5xx", "status": 503},
    {"kind": "refuse_5xx", "status": 500},
    {"kind": "reset_before_headers", "times": 2},
    {"kind": "hang_before_headers"},
    {"kind": "finish_error"},
    {"kind": "reset_after_events", "events": 0},
]
"""A reset on a kept-alive connection may be a stale connection, so it is tried once more: hence two."""
ONLY_IN_STREAMS = {"kind": "stall_after_events", "events": 1}
FAULTS_OF_D = [(fault, stream) for fault in BEFORE_THE_FIRST_BYTE for stream in (False, True)] + [
    (ONLY_IN_STREAMS, True)
]
SHORT: dict[str, object] = {
    "timeouts.prefill_s": 1.0,
    "timeouts.first_byte_s": 1.0,
    "timeouts.unstreamed_s": 1.0,
    "retry_timed_out_prefill": True,
}


def limits_for(fault: dict[str, object]) -> dict[str, object]:
    """Short time-outs where the fault is silence; the ordinary ones where a slow machine could be taken for it."""
    return SHORT if fault["kind"] in ("hang_before_headers", "stall_after_events") else {}


def name(fault: dict[str, object]) -> str:
    return "-".join(str(value) for value in fault.values())


async def two_turns(w: World, stream: bool = False) -> tuple[Reply, list[dict[str, str]]]:
    first = await w.chat([user()])
    messages = [user(), assistant(first.text), user("and then? " + LONG)]
    return await w.chat(messages, stream=stream), messages


def expected_text(messages: Sequence[dict[str, str]], reply: Reply) -> str:
    return reply.streamed_text if reply.body.startswith(b"data:") else reply.text


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("fault", BEFORE_THE_FIRST_BYTE, ids=name)
async def test_a_failing_p_is_replaced_by_the_next_p(fault: dict[str, object], stream: bool) -> None:
    async with world(prefill=2, decode=1, **limits_for(fault)) as w:
        good = await w.chat([user()], stream=stream)
        w.gateway.parts.fleet.get(w.prefill[1].url).take(10**9)  # type: ignore[union-attr]
        w.prefill[0].fault(**fault)
        reply = await w.chat([user()], stream=stream)
        record = await w.record(2)
        assert reply.status == 200
        assert expected_text([], reply) == expected_text([], good)
        assert (record.route, record.prefill, record.attempts) == ("pd", w.prefill[1].url, 2)
        assert w.watcher.fault_kinds[0].startswith("prefill_")
        await w.settled()
        assert all(pod.summary["running"] == 0 for pod in [*w.prefill, *w.decode])


@pytest.mark.parametrize("fault", [{"kind": "refuse_5xx", "status": 503}, {"kind": "drop_kv_params"}], ids=name)
async def test_without_another_p_the_decode_pod_answers_alone(fault: dict[str, object]) -> None:
    async with world(prefill=1, decode=1) as w:
        w.prefill[0].fault(**fault)
        reply = await w.chat([user()])
        record = await w.record(1)
        assert reply.status == 200
        assert (record.route, record.prefill, record.attempts) == ("local", None, 2)
        assert "decode pod alone" in (record.reason or "")
        assert "kv_transfer_params" not in w.decode[0].requests[-1].body


async def test_a_p_that_keeps_no_kv_is_a_fault_and_not_a_silent_recompute() -> None:
    async with world(prefill=2, decode=1) as w:
        for pod in w.prefill:
            pod.fault("drop_kv_params")
        assert (await w.chat([user()])).status == 200
        assert w.watcher.fault_kinds == ["prefill_no_handover", "prefill_no_handover"]
        assert (await w.record(1)).attempts == 3


@pytest.mark.parametrize(("fault", "stream"), FAULTS_OF_D, ids=str)
async def test_a_failing_d_on_turn_one_is_replaced_by_the_next_d(fault: dict[str, object], stream: bool) -> None:
    async with world(prefill=1, decode=2, **limits_for(fault)) as w:
        good = await w.chat([user()], stream=stream)
        w.gateway.parts.fleet.get(w.decode[1].url).take(10**9)  # type: ignore[union-attr]
        w.decode[0].fault(**fault)
        reply = await w.chat([user()], stream=stream)
        record = await w.record(2)
        assert reply.status == 200
        assert expected_text([], reply) == expected_text([], good)
        assert (record.route, record.answering) == ("pd", w.decode[1].url)
        assert record.attempts == 2
        await w.settled()
        assert all(pod.summary["running"] == 0 for pod in [*w.prefill, *w.decode])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_dead_d_between_two_turns_loses_no_conversation(stream: bool) -> None:
    async with world(prefill=1, decode=2, policy="local") as reference:
        expected, _ = await two_turns(reference, stream)
    async with world(prefill=1, decode=2, policy="local") as w:
        first = await w.chat([user()])
        await w.kill(w.pod((await w.record(1)).answering))
        reply = await w.chat([user(), assistant(first.text), user("and then? " + LONG)], stream=stream)
        record = await w.record(2)
        assert expected_text([], reply) == expected_text([], expected)
        assert record.route == "pd"
        assert record.answering != w.watcher.records[0].answering
        assert record.turn == 2


async def test_a_restarted_d_gets_no_local_turn_until_it_holds_the_conversation_again() -> None:
    async with world(prefill=1, decode=1, policy="local") as w:
        first = await w.chat([user()])
        pod = w.decode[0]
        await w.kill(pod)
        await w.watcher.until(lambda: not w.watcher.pods[pod.url])
        await w.restart(pod)
        await w.all_up()
        messages = [user(), assistant(first.text), user("and then? " + LONG)]
        second = await w.chat(messages)
        await w.chat([*messages, assistant(second.text), user("go on " + LONG)])
        assert [record.route for record in w.watcher.records] == ["pd", "pd", "local"]
        assert "restarted" in (w.watcher.records[1].reason or "")


async def test_local_fails_before_the_first_byte_and_goes_through_p() -> None:
    async with world(prefill=1, decode=1, policy="local") as w:
        first = await w.chat([user()])
        w.decode[0].fault("refuse_5xx", status=503)
        reply = await w.chat([user(), assistant(first.text), user("and then? " + LONG)])
        record = await w.record(2)
        assert reply.status == 200
        assert (record.route, record.attempts) == ("pd", 2)


async def test_one_reset_of_a_kept_alive_connection_is_taken_for_a_stale_connection() -> None:
    async with world(prefill=0, decode=1) as w:
        await w.chat([user()])
        w.decode[0].fault("reset_before_headers")
        reply = await w.chat([user()])
        assert reply.status == 200
        assert (await w.record(2)).attempts == 1
        assert len(w.decode[0].requests) == 3


async def test_a_failing_replica_is_replaced() -> None:
    async with world(prefill=1, decode=1, replica=1) as w:
        for pod in w.gateway.parts.fleet:
            if pod.role != "replica":
                pod.take(10_000)
        w.replica[0].fault("refuse_5xx", status=503)
        reply = await w.chat([user()])
        assert reply.status == 200
        assert (await w.record(1)).route == "pd"


@pytest.mark.parametrize(
    ("fault", "limits"),
    [
        ({"kind": "reset_after_events", "events": 4}, {}),
        ({"kind": "stall_after_events", "events": 4}, {"timeouts.token_gap_s": 0.5}),
    ],
    ids=["reset", "stall"],
)
async def test_a_stream_that_breaks_ends_with_an_error_event_and_no_other_pod(
    fault: dict[str, object], limits: dict[str, float]
) -> None:
    async with world(prefill=1, decode=2, **limits) as w:
        for pod in w.decode:
            pod.fault(**fault)
        reply = await w.chat([user()], stream=True, max_tokens=30)
        record = await w.record(1)
        assert reply.status == 200
        last = msgspec.json.decode(reply.events[-1][len(b"data: ") :])
        assert set(last["error"]) == {"message", "type", "param", "code"}
        assert last["error"]["type"] == "upstream_error"
        assert b"[DONE]" not in reply.body
        assert (record.outcome, record.attempts) == (Outcome.BROKEN, 1)
        assert sum(len(pod.requests) for pod in w.decode) == 1
        await w.settled()
        assert all(pod.summary["running"] == 0 for pod in w.decode)


async def test_a_broken_turn_does_not_count_as_a_turn() -> None:
    async with world(prefill=1, decode=1, policy="local") as w:
        w.decode[0].fault("reset_after_events", events=4)
        broken = await w.chat([user()], stream=True, max_tokens=30)
        assert b"upstream_error" in broken.body
        follow_up = [user(), assistant(broken.chunks[0]["model"]), user("more " + LONG)]
        await w.chat(follow_up)
        assert [record.turn for record in w.watcher.records] == [1, 1]
        assert [record.route for record in w.watcher.records] == ["pd", "pd"]


@pytest.mark.parametrize("status", [400, 401, 404, 429])
async def test_a_4xx_of_p_reaches_the_client_with_its_own_body(status: int) -> None:
    async with world(prefill=1, decode=1) as w:
        w.prefill[0].fault("refuse_5xx", status=status)
        reply = await w.chat([user()])
        assert reply.status == status
        assert set(reply.json["error"]) == {"message", "type", "param", "code"}
        assert not w.decode[0].requests
        assert (await w.record(1)).outcome is Outcome.REJECTED


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_4xx_of_d_is_a_4xx_and_not_an_empty_200(stream: bool) -> None:
    async with world(prefill=1, decode=1) as w:
        reply = await w.chat([user()], stream=stream, max_tokens=10**7)
        direct = await w.post(
            CHAT, {"model": "sim", "messages": [user()], "max_tokens": 10**7, "stream": stream}, url=w.decode[0].url
        )
        assert reply.status == direct.status == 400
        assert reply.body == direct.body


async def test_when_every_pod_says_5xx_the_client_gets_the_last_ones_answer() -> None:
    async with world(prefill=1, decode=1) as w:
        w.prefill[0].fault("refuse_5xx", status=500, times=-1)
        w.decode[0].fault("refuse_5xx", status=500, times=-1)
        reply = await w.chat([user()])
        assert reply.status == 500
        assert "error" in reply.json
        assert (await w.record(1)).outcome is Outcome.FAILED


async def test_all_pods_down_is_a_503_that_says_when_to_come_back() -> None:
    async with world(prefill=1, decode=1) as w:
        for pod in [*w.prefill, *w.decode]:
            await w.kill(pod)
        for _ in range(2):
            reply = await w.chat([user()])
            assert reply.status == 503
            assert int(reply.headers["retry-after"]) > 0
            assert reply.json["error"]["code"] == 503
        assert (await w.get("/ready")).status == 503
        assert (await w.get("/health")).status == 200


async def test_a_d_that_refuses_the_connection_passes_p_s_kv_on_to_the_next_d() -> None:
    async with world(prefill=1, decode=2, **{"health.interval_s": 60}) as w:
        w.gateway.parts.fleet.get(w.decode[1].url).take(10**9)  # type: ignore[union-attr]
        await w.kill(w.decode[0])
        reply = await w.chat([user()])
        assert reply.status == 200
        assert (await w.record(1)).answering == w.decode[1].url
        assert len(w.prefill[0].requests) == 1, "the hand-over that nobody has seen is used again"
        assert len(w.decode[1].transfers) == 1
