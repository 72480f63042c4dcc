"""Which pods a turn goes to, and what each of them is sent."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from tests.net.test_disconnects import eventually
from tests.net.world import CHAT, COMPLETIONS, LONG, World, assistant, user, world


async def conversation(w: World, turns: int, **fields: object) -> list[str]:
    """Play turns as a client does, returning the replies."""
    messages, replies = [], []
    for turn in range(turns):
        messages.append(user(f"{LONG} question {turn}"))
        reply = await w.chat(messages, **fields)
        assert reply.status == 200, reply.body
        replies.append(reply.text)
        messages.append(assistant(reply.text))
    return replies


async def test_turn_one_goes_through_p_and_hands_its_kv_to_d() -> None:
    async with world() as w:
        reply = await w.chat([user()])
        record = await w.record(1)
        prefill, decode = w.pod(record.prefill), w.pod(record.answering)
        assert (record.route, record.turn, record.kind) == ("pd", 1, "new")
        asked = prefill.requests[-1].body
        assert asked["max_tokens"] == 1
        assert asked["stream"] is False
        assert asked["kv_transfer_params"]["do_remote_decode"] is True
        handed = decode.requests[-1].body
        assert handed["kv_transfer_params"]["do_remote_prefill"] is True
        assert handed["messages"] == asked["messages"]
        assert handed["max_tokens"] == 8
        assert len(decode.transfers) == 1
        assert reply.json["kv_transfer_params"] is None


async def test_turn_two_under_local_goes_to_the_pod_that_holds_the_kv_and_to_no_other() -> None:
    async with world(decode=3, policy="local") as w:
        await conversation(w, 3)
        first, second, third = [await w.record(n) for n in (1, 2, 3)]
        assert [first.route, second.route, third.route] == ["pd", "local", "local"]
        assert first.answering == second.answering == third.answering
        assert len(w.prefill[0].requests) == 1
        assert "kv_transfer_params" not in w.pod(second.answering).requests[-1].body
        assert second.cached_tokens is not None
        assert second.cached_tokens > 0.8 * (first.prompt_tokens or 0)


async def test_turn_two_under_pd_goes_through_the_same_p_to_the_same_d() -> None:
    async with world(prefill=3, decode=3, policy="pd") as w:
        await conversation(w, 3)
        records = [await w.record(n) for n in (1, 2, 3)]
        assert [record.route for record in records] == ["pd", "pd", "pd"]
        assert len({record.answering for record in records}) == 1
        assert len({record.prefill for record in records}) == 1
        moved = [transfer.num_blocks for transfer in w.pod(records[0].answering).transfers]
        assert moved[1] < moved[0] + moved[1] / 2, "D pulls only the blocks it lacks"


async def test_all_routes_give_the_text_of_one_plain_pod() -> None:
    answers = []
    for policy, shape in (("pd", {}), ("local", {}), ("local", {"prefill": 0, "decode": 1}), ("pd", {"replica": 1})):
        async with world(policy=policy, **shape) as w:
            answers.append(await conversation(w, 3))
    assert answers[0] == answers[1] == answers[2] == answers[3]
    assert len(set(answers[0])) == 3


async def test_a_replica_serves_its_conversation_whole() -> None:
    async with world(prefill=1, decode=1, replica=1) as w:
        for pod in w.gateway.parts.fleet:
            if pod.role != "replica":
                pod.take(10_000)
        await conversation(w, 3)
        records = [await w.record(n) for n in (1, 2, 3)]
        assert {record.route for record in records} == {"replica"}
        assert {record.answering for record in records} == {w.replica[0].url}
        assert not w.prefill[0].requests
        assert not w.decode[0].requests


async def test_new_conversations_go_to_the_least_loaded_pods() -> None:
    async with world(prefill=2, decode=2) as w:
        for pod in w.gateway.parts.fleet:
            if pod.url in (w.prefill[0].url, w.decode[1].url):
                pod.take(1_000)
        for number in range(4):
            await w.chat([user(f"{number} {LONG}")])
        assert {r.prefill for r in w.watcher.records} == {w.prefill[1].url}
        assert {r.answering for r in w.watcher.records} == {w.decode[0].url}


async def test_first_turns_that_arrive_together_are_spread_over_the_decode_pods() -> None:
    async with world(prefill=1, decode=4) as w:
        w.prefill[0].fault("hold", times=4)
        asked = asyncio.gather(*(w.chat([user(f"{number} {LONG}")]) for number in range(4)))
        await eventually(lambda: len(w.prefill[0].requests) == 4)
        w.prefill[0].clear_faults()
        await asked
        assert len({record.answering for record in w.watcher.records}) == 4
        assert all(pod.load_tokens == 0 == pod.in_flight for pod in w.gateway.parts.fleet)


async def test_completions_are_recognised_by_the_text_they_extend() -> None:
    async with world(policy="local") as w:
        prompt = LONG
        for _ in range(3):
            reply = await w.post(COMPLETIONS, {"model": "sim", "prompt": prompt, "max_tokens": 8})
            prompt += reply.text + " and then? " + LONG
        assert [(r.route, r.turn) for r in w.watcher.records] == [("pd", 1), ("local", 2), ("local", 3)]


async def test_two_users_who_begin_alike_share_nothing() -> None:
    async with world(decode=2, policy="local") as w:
        one = await w.post(CHAT, {"model": "sim", "messages": [user()]}, {"Authorization": "Bearer a"})
        two = await w.post(CHAT, {"model": "sim", "messages": [user()]}, {"Authorization": "Bearer b"})
        assert one.text == two.text
        follow_up = [user(), assistant(one.text), user("more")]
        await w.post(CHAT, {"model": "sim", "messages": follow_up}, {"Authorization": "Bearer b"})
        first, second, third = w.watcher.records
        assert first.conversation != second.conversation
        assert third.conversation == second.conversation


@pytest.mark.parametrize("name", ["X-Session-ID", "X-Conversation-ID"])
async def test_an_explicit_id_wins_over_the_text(name: str) -> None:
    async with world(policy="local") as w:
        for text in ("one thing " + LONG, "another thing " + LONG):
            await w.post(CHAT, {"model": "sim", "messages": [user(text)]}, {name: "my-chat"})
        assert [r.turn for r in w.watcher.records] == [1, 2]
        assert len({r.conversation for r in w.watcher.records}) == 1


@pytest.mark.parametrize("name", ["conversation_id", "session_id"])
async def test_an_explicit_id_in_the_body_counts_as_well(name: str) -> None:
    async with world(policy="local") as w:
        for text in ("one thing " + LONG, "another thing " + LONG):
            await w.chat([user(text)], **{name: "my-chat"})
        assert [r.turn for r in w.watcher.records] == [1, 2]
        assert all("session_id" not in request.body for pod in [*w.prefill, *w.decode] for request in pod.requests)


async def test_pods_get_the_request_id_on_both_legs_and_a_session_that_is_not_the_clients() -> None:
    async with world(handover="nixl") as w:
        headers = {"X-Request-Id": "req-42", "X-Session-ID": "mine", "X-Data-Parallel-Rank": "3", "X-Custom": "kept"}
        reply = await w.post(CHAT, {"model": "sim", "messages": [user()]}, headers)
        record = await w.record(1)
        assert reply.headers["x-request-id"] == "req-42"
        for pod in (w.pod(record.prefill), w.pod(record.answering)):
            seen = pod.requests[-1].headers
            assert seen["x-request-id"] == "req-42"
            assert seen["x-session-id"] == record.conversation
            assert seen["x-custom"] == "kept"
            assert "x-data-parallel-rank" not in seen
        assert reply.json["id"] == "chatcmpl-req-42"


async def test_a_clients_own_handover_parameters_reach_no_pod() -> None:
    async with world() as w:
        evil = {"do_remote_prefill": True, "remote_engine_id": "someone", "remote_block_ids": [[1, 2, 3]]}
        reply = await w.chat([user()], kv_transfer_params=evil, vllm_xargs={"kv_transfer_params": "x", "a": 1})
        assert reply.status == 200
        record = await w.record(1)
        for pod in (w.pod(record.prefill), w.pod(record.answering)):
            assert b"someone" not in pod.requests[-1].raw
            assert pod.requests[-1].body["vllm_xargs"] == {"a": 1}
        assert "client_handover" in w.watcher.fault_kinds


@pytest.mark.parametrize(
    "fields",
    [{"n": 2, "temperature": 1.0, "seed": 1}, {"prompt_logprobs": 1}, {"truncate_prompt_tokens": -1}],
    ids=["n", "prompt_logprobs", "truncate"],
)
async def test_what_does_not_survive_a_handover_runs_whole_on_one_pod(fields: dict[str, object]) -> None:
    async with world() as w:
        reply = await w.chat([user()], **fields)
        assert reply.status == 200, reply.body
        record = await w.record(1)
        assert (record.route, record.prefill) == ("local", None)
        assert not w.prefill[0].requests
        assert "kv_transfer_params" not in w.pod(record.answering).requests[-1].body


async def test_bytes_the_gateway_does_not_know_reach_both_pods_as_they_came() -> None:
    odd = b'{"zeta": {"b" : 1.50e3, "a":[ 1,2 ]}, "model":"sim","messages":[{"content":"caf\\u00e9 ' + b"x " * 200
    odd += b'","role":"user"}],  "vendor":-0.0}'
    async with world() as w:
        assert (await w.post(CHAT, odd)).status == 200
        record = await w.record(1)
        for pod in (w.pod(record.prefill), w.pod(record.answering)):
            fields = msgspec.json.decode(pod.requests[-1].raw, type=dict[str, msgspec.Raw])
            sent = msgspec.json.decode(odd, type=dict[str, msgspec.Raw])
            assert list(fields)[:4] == list(sent)
            assert all(bytes(fields[name]) == bytes(sent[name]) for name in sent)


async def test_usage_on_the_prefill_path_counts_what_p_had_cached() -> None:
    async with world(decode=1, policy="pd") as w:
        cold = (await w.chat([user()])).json["usage"]
        warm = (await w.chat([user()])).json["usage"]
        streamed = await w.chat([user()], stream=True, stream_options={"include_usage": True})
        records = [await w.record(n) for n in (1, 2, 3)]
        prefill_view = [record.cached_tokens for record in w.prefill[0].requests]
        assert _cached(cold) == 0 == (prefill_view[0] or 0)
        assert _cached(warm) == prefill_view[1] == records[1].prefill_cached_tokens
        assert _cached(warm) > 0
        assert _cached(streamed.chunks[-1]["usage"]) == prefill_view[2]


def _cached(usage: dict[str, object]) -> int:
    details = usage.get("prompt_tokens_details")
    return int(details["cached_tokens"] or 0) if isinstance(details, dict) else 0
