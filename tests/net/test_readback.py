"""Readback: P takes a conversation's history from the pod that holds it, and the answer is right.

In most tests the history is put on a decode pod while no prefill pod may be used, so P has nothing of it and must read.
Then the decode pod is drained: the conversation moves, P <- old D, new D <- P. A simulated pod that is given KV of
another prompt answers with other words, so equal answers mean the right KV.
"""

from __future__ import annotations

import pytest

from gateway.core.pods import Role
from gateway.net import readback
from gateway.wire import readback as wire
from gateway.wire.contract import Api
from loadtest.pod.simulated import SimulatedPod
from tests.net.readback_world import (
    STREAMED,
    ReadsBack,
    Talk,
    allow,
    asked,
    last,
    moving,
    nobody_holds_blocks,
    pods,
    reading,
)
from tests.net.world import COMPLETIONS, LONG, user

BOTH = [Api.CHAT, Api.COMPLETIONS]


@pytest.mark.parametrize("render", [True, False], ids=["render", "tokenize"])
@pytest.mark.parametrize("api", BOTH)
@STREAMED
async def test_a_drained_pods_conversation_moves_with_its_history(api: Api, stream: bool, render: bool) -> None:
    async with reading(p={"scale_out": render}) as w:
        talk = Talk(w, api, stream)
        holder = await moving(w, talk)
        said = await talk.say(" Go on about the river.")
        record = last(w)
        assert (record.route, record.holder, record.turn) == ("readback", holder.url, 3)
        assert record.reason == (
            f"turn 3: {holder.url} is being drained: moves to {record.answering}, the history read back"
        )
        assert record.answering != holder.url
        assert record.readback_tokens == record.expected_tokens // 16 * 16
        assert record.readback_tokens > 200
        assert record.prefill_cached_tokens == record.readback_tokens, "P read it: it had none of it"
        assert [(t.ok, t.remote_engine_id) for t in w.prefill[0].transfers] == [(True, holder.summary["engine_id"])]
        assert record.ids_s is not None
        assert record.recall_s is not None
        assert said == await talk.right()
        assert w.watcher.faults == []
        assert [pod.reads_back for pod in pods(w, Role.PREFILL)] == [True]
        assert (w.prefill[0].url in w.gateway.parts.unrendered) is not render
        await nobody_holds_blocks(w)


async def test_the_conversation_is_at_home_on_the_other_pod_afterwards() -> None:
    async with reading() as w:
        talk = Talk(w)
        holder = await moving(w, talk)
        await talk.say("Go on.")
        there = last(w).answering
        await talk.say("And on.")
        assert (last(w).route, last(w).answering) == ("local", there)
        assert last(w).answering != holder.url
        assert last(w).readback_tokens is None
        assert last(w).expected_tokens is not None
        assert (last(w).cached_tokens or 0) >= last(w).expected_tokens - 16 > 250


async def test_the_holder_is_asked_for_one_token_of_the_very_ids_and_p_and_d_get_them() -> None:
    async with reading(p={"scale_out": True}) as w:
        talk = Talk(w, more={"cache_salt": "s", "temperature": 0.3})
        holder = await moving(w, talk)
        await talk.say("Go on.")
        recall, p, d = asked(holder), asked(w.prefill[0]), asked(w.pod(last(w).answering))
        ids = p.body["kv_transfer_params"]["prompt_token_ids"]
        assert recall.path == COMPLETIONS
        assert recall.body["prompt"] == ids[: last(w).readback_tokens]
        assert {k: recall.body[k] for k in ("model", "cache_salt", "max_tokens", "temperature")} == {
            "model": "sim",
            "cache_salt": "s",
            "max_tokens": 1,
            "temperature": 0,
        }
        assert recall.headers["x-request-id"] == f"{last(w).request_id}-recall"
        assert recall.headers["x-session-id"] == p.headers["x-session-id"] == d.headers["x-session-id"]
        assert recall.cached_tokens == last(w).readback_tokens - 16, "one block is computed"
        assert p.body["kv_transfer_params"]["remote_engine_id"] == holder.summary["engine_id"]
        assert d.body["kv_transfer_params"]["prompt_token_ids"] == ids
        assert d.body["kv_transfer_params"]["remote_engine_id"] == w.prefill[0].summary["engine_id"]
        assert len(ids) == last(w).prompt_tokens


async def test_completions_are_read_back_on_ids_as_their_prompt() -> None:
    async with reading(p={"scale_out": True}) as w:
        talk = Talk(w, Api.COMPLETIONS)
        holder = await moving(w, talk)
        await talk.say(" Go on.")
        p, d = asked(w.prefill[0]), asked(w.pod(last(w).answering))
        assert p.body["prompt"] == d.body["prompt"] == p.body["kv_transfer_params"]["prompt_token_ids"]
        assert asked(holder).body["prompt"] == p.body["prompt"][: last(w).readback_tokens]


async def test_a_prompt_of_ids_is_asked_for_nowhere() -> None:
    async with reading() as w:
        allow(w, Role.PREFILL, False)
        ids = list(range(3000, 3300))
        body = {"model": "sim", "max_tokens": 4, "ignore_eos": True, "session_id": "s", "return_token_ids": True}
        first = (await w.post(COMPLETIONS, {**body, "prompt": ids})).json
        await w.record(1)
        ids += [*first["choices"][0]["token_ids"], 5000, 5001]
        allow(w, Role.PREFILL, True)
        allow(w, Role.DECODE, False, last(w).answering)
        w.prefill[0].fault("refuse_5xx", path="/tokenize", times=-1)
        answer = (await w.post(COMPLETIONS, {**body, "prompt": ids})).json
        assert (await w.record(2)).route == "readback"
        assert last(w).readback_tokens == 304, "300 of the prompt and 4 of the answer"
        async with SimulatedPod() as cold:
            right = (await w.post(COMPLETIONS, {**body, "prompt": ids}, url=cold.url)).json
        assert answer["choices"][0]["text"] == right["choices"][0]["text"]


CHANGES = {
    "edited": lambda m: [*m[:2], user("Quite another question. " * 9), *m[3:]],
    "stripped": lambda m: [{**x, "content": x["content"][-12:]} if x["role"] == "assistant" else x for x in m],
    "truncated": lambda m: m[2:],
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_history_that_comes_back_changed_is_still_answered_right(change: str) -> None:
    """The client says that it is the same conversation, and it is not the same tokens."""
    async with reading() as w:
        talk = Talk(w, headers={"X-Session-ID": "mine"})
        await moving(w, talk)
        talk.messages = CHANGES[change](talk.messages)
        said = await talk.say("Go on.")
        assert said == await talk.right()
        await nobody_holds_blocks(w)


async def test_blocks_of_other_ids_would_show_in_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of the tests above."""

    def of_other_ids(fields: wire.Fields, ids: list[int]) -> bytes:
        return real(fields, [token + 1 for token in ids])

    real = wire.recall_body
    monkeypatch.setattr(readback.wire, "recall_body", of_other_ids)
    async with reading() as w:
        talk = Talk(w)
        holder = await moving(w, talk)
        said = await talk.say("Go on.")
        assert last(w).readback_tokens is not None
        assert said != await talk.right()
        assert w.watcher.faults == [
            ("recall_recomputed", holder.url, f"{holder.url} had 0 of {last(w).readback_tokens} tokens")
        ]


async def test_a_policy_may_read_back_to_the_same_decode_pod() -> None:
    async with reading() as w:
        w.gateway.parts.policy = ReadsBack()
        talk = Talk(w)
        allow(w, Role.PREFILL, False)
        await talk.say(LONG * 2)
        allow(w, Role.PREFILL, True)
        holder = last(w).answering
        said = await talk.say("Go on.")
        record = last(w)
        assert (record.route, record.reason) == ("readback", "readback is on")
        assert record.holder == record.answering == holder
        assert (record.readback_tokens or 0) > 100
        assert record.prefill_cached_tokens == record.readback_tokens
        assert said == await talk.right()
        await nobody_holds_blocks(w)


async def test_with_readback_off_a_policy_is_not_offered_it_and_a_move_computes() -> None:
    async with reading(readback=False) as w:
        w.gateway.parts.policy = ReadsBack()
        talk = Talk(w)
        allow(w, Role.PREFILL, False)
        await talk.say(LONG * 2)
        allow(w, Role.PREFILL, True)
        await talk.say("Go on.")
        assert (last(w).route, last(w).reason) == ("pd", "readback is not on")
        allow(w, Role.DECODE, False, last(w).answering)
        await talk.say("And on.")
        assert last(w).route == "pd"
        assert (last(w).reason or "").endswith(f"moves to {last(w).answering}")
        assert w.watcher.faults == []
