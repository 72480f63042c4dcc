"""Readback for Anthropic's Messages and OpenAI's Responses: their ids come from the prefill pod's render endpoints."""

from __future__ import annotations

import pytest

from gateway.core.pods import Role
from gateway.wire.contract import Api
from tests.net.readback_world import (
    PATHS,
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

OTHERS = pytest.mark.parametrize("api", [Api.MESSAGES, Api.RESPONSES])
SYSTEM = {Api.MESSAGES: {"system": "Be brief."}, Api.RESPONSES: {"instructions": "Be brief."}}


@OTHERS
@STREAMED
async def test_a_drained_pods_conversation_moves_with_its_history(api: Api, stream: bool) -> None:
    async with reading(p={"scale_out": True}) as w:
        talk = Talk(w, api, stream, more=SYSTEM[api])
        holder = await moving(w, talk)
        said = await talk.say(" Go on about the river.")
        record, p = last(w), w.prefill[0]
        assert (record.route, record.holder, record.turn, record.attempts) == ("readback", holder.url, 3, 1)
        assert record.answering != holder.url
        assert record.readback_tokens is not None
        assert record.readback_tokens > 200
        assert record.prefill_cached_tokens == record.readback_tokens, "P read it: it had none of it"
        assert [(t.ok, t.remote_engine_id) for t in p.transfers] == [(True, holder.summary["engine_id"])]
        assert said == await talk.right()
        assert w.watcher.faults == []
        assert [pod.reads_back for pod in pods(w, Role.PREFILL)] == [True]
        await nobody_holds_blocks(w)


@OTHERS
async def test_all_three_pods_are_told_the_same_ids(api: Api) -> None:
    async with reading(p={"scale_out": True}) as w:
        talk = Talk(w, api, more={"cache_salt": "s"})
        holder = await moving(w, talk)
        await talk.say("Go on.")
        recall, p, d = asked(holder), asked(w.prefill[0]), asked(w.pod(last(w).answering))
        ids = p.body["kv_transfer_params"]["prompt_token_ids"]
        assert (recall.path, p.path, d.path) == (COMPLETIONS, PATHS[api], PATHS[api])
        assert recall.body["prompt"] == ids[: last(w).readback_tokens]
        assert (recall.body["model"], recall.body["cache_salt"]) == ("sim", "s")
        assert recall.cached_tokens == last(w).readback_tokens - 16, "one block is computed"
        assert d.body["kv_transfer_params"]["prompt_token_ids"] == ids
        assert len(ids) == last(w).prompt_tokens


@OTHERS
async def test_a_policy_may_choose_it(api: Api) -> None:
    async with reading(p={"scale_out": True}) as w:
        w.gateway.parts.policy = ReadsBack()
        talk = Talk(w, api)
        allow(w, Role.PREFILL, False)
        await talk.say(LONG * 2)
        allow(w, Role.PREFILL, True)
        said = await talk.say("Go on.")
        assert (last(w).route, last(w).reason) == ("readback", "readback is on")
        assert last(w).holder == last(w).answering
        assert said == await talk.right()


@OTHERS
async def test_where_p_renders_nothing_the_prompt_is_computed(api: Api) -> None:
    """`/tokenize` knows no such requests."""
    async with reading(decode=3) as w:
        talk = Talk(w, api)
        holder = await moving(w, talk)
        said = await talk.say("Go on.")
        assert last(w).route == "pd"
        assert (last(w).reason or "").endswith("but no readback (prompt)")
        assert w.watcher.fault_kinds == ["readback_prompt"]
        assert said == await talk.right()
        assert asked(holder).path == PATHS[api], "the holder was not asked"
        assert w.gateway.parts.unrendered == {w.prefill[0].url: {f"{PATHS[api]}/render"}}

        allow(w, Role.DECODE, False, last(w).answering)
        await talk.say("And on.")
        assert last(w).route == "pd"
        assert (last(w).reason or "").endswith(f"moves to {last(w).answering}"), "nobody tries it again"
        assert w.watcher.fault_kinds == ["readback_prompt"]


async def test_an_agents_loop_is_read_back_with_its_calls_and_results() -> None:
    tool = {"name": "weather", "description": "d", "input_schema": {"type": "object", "properties": {}}}
    call = {"type": "tool_use", "id": "t", "name": "weather", "input": {"city": "Oslo"}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "rain"}]}
    async with reading(p={"scale_out": True}) as w:
        talk = Talk(w, Api.MESSAGES, more={"tools": [tool]})
        await moving(w, talk)
        talk.messages += [user("Ask it."), {"role": "assistant", "content": [call]}]
        talk.messages.append({"role": "user", "content": [result]})
        said = await talk.say("And now?")
        assert last(w).route == "readback"
        assert said == await talk.right()


async def test_a_picture_in_a_result_is_not_read_back() -> None:
    picture = {"type": "image", "source": {"type": "url", "url": "http://example.org/a.png"}}
    async with reading(p={"scale_out": True}) as w:
        talk = Talk(w, Api.MESSAGES)
        await moving(w, talk)
        result = {"type": "tool_result", "tool_use_id": "t", "content": [picture]}
        talk.messages.append({"role": "user", "content": [result]})
        await talk.say("What is that?")
        assert last(w).route == "pd"
        assert w.watcher.faults == []
