"""Where the ids of a prompt come from, the requests that get no readback, and decode pods that offer one themselves."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.pods import Role
from gateway.net import readback
from gateway.wire.contract import Api
from tests.net.readback_world import Talk, allow, asked, last, moving, nobody_holds_blocks, pods, reading
from tests.net.world import CHAT, LONG, assistant

BOTH = [Api.CHAT, Api.COMPLETIONS]
RENDER = "/v1/chat/completions/render"


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"a_field_of_tomorrow": 1}, "prompt"),
        ({"reasoning_effort": "low"}, "prompt"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none"}, "prompt"),
    ],
)
async def test_a_prompt_that_tokenize_does_not_know_is_computed(more: dict[str, Any], why: str) -> None:
    async with reading() as w:
        talk = Talk(w, more=more)
        holder = await moving(w, talk)
        said = await talk.say("Go on.")
        assert last(w).route == "pd"
        assert (last(w).reason or "").endswith(f"the history read back; but no readback ({why})")
        assert w.watcher.fault_kinds == [f"readback_{why}"]
        assert said == await talk.right()
        assert asked(holder).path == CHAT, "the holder was not asked"


async def test_where_p_renders_any_field_will_do() -> None:
    async with reading(p={"scale_out": True}) as w:
        talk = Talk(w, more={"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none"})
        await moving(w, talk)
        said = await talk.say("Go on.")
        assert last(w).route == "readback"
        assert said == await talk.right()


async def test_a_pod_that_renders_nothing_is_asked_once() -> None:
    async with reading(decode=3) as w:
        talk = Talk(w)
        await moving(w, talk)
        await talk.say("Go on.")
        assert w.gateway.parts.unrendered == {w.prefill[0].url: {RENDER}}
        allow(w, Role.DECODE, False, last(w).answering)
        w.prefill[0].fault("refuse_5xx", path=RENDER, times=1)
        await talk.say("And on.")
        assert last(w).route == "readback"
        assert w.prefill[0].state.faults.strike(RENDER, generates=False) is not None, "unused"


@pytest.mark.parametrize("body", ["status", "nothing"])
async def test_a_p_that_gives_no_ids_costs_the_readback_only(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with reading() as w:
        talk = Talk(w)
        await moving(w, talk)
        if body == "status":
            w.prefill[0].fault("refuse_5xx", path="/tokenize")
        else:
            monkeypatch.setattr(readback.wire, "read_ids", lambda _: None)
        await talk.say("Go on.")
        assert last(w).route == "pd"
        detail = "status 503" if body == "status" else "status 200"
        assert [(kind, what) for kind, _, what in w.watcher.faults] == [("readback_ids", detail)]


async def test_a_message_with_more_than_text_is_not_read_back() -> None:
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}
    async with reading() as w:
        talk = Talk(w, headers={"X-Session-ID": "mine"})
        holder = await moving(w, talk)
        talk.messages.append(picture)
        reply = await talk.post("What is that?")
        assert reply.status == 400, "the simulated pods take no images"
        assert last(w).route == "pd"
        assert (last(w).reason or "").endswith(f"moves to {last(w).answering}")
        assert asked(holder).path == CHAT
        assert w.watcher.faults == []


async def test_a_history_of_a_few_tokens_is_not_worth_it() -> None:
    async with reading() as w:
        talk = Talk(w)
        allow(w, Role.PREFILL, False)
        await talk.say("Hello, you.")
        assert last(w).prompt_tokens is not None
        assert last(w).prompt_tokens < readback.MIN_TOKENS
        allow(w, Role.PREFILL, True)
        allow(w, Role.DECODE, False, last(w).answering)
        await talk.say("Go on.")
        assert (last(w).route, last(w).holder) == ("pd", None)
        assert (last(w).reason or "").endswith("but no readback (too_little)")
        assert w.watcher.fault_kinds == ["readback_too_little"]


# A decode pod that offers its blocks by itself


@pytest.mark.parametrize("api", BOTH)
async def test_a_decode_pods_own_offer_never_reaches_the_client_and_is_given_back(api: Api) -> None:
    async with reading(d={"bidirectional": True}) as w:
        talk = Talk(w, api)
        for words, route in ((LONG, "pd"), (" Go on.", "local"), (" And on.", "local")):
            reply = await talk.post(words)
            assert reply.json["kv_transfer_params"] is None
            talk.messages.append(assistant(reply.text))
            talk.text += reply.text
            assert last(w).route == route
            await nobody_holds_blocks(w)
        assert w.watcher.faults == []
        assert [pod.reads_back for pod in pods(w, Role.PREFILL)] == [None], "nothing was read back"


async def test_where_decode_pods_offer_by_themselves_a_move_still_reads_back_right() -> None:
    async with reading(d={"bidirectional": True}) as w:
        talk = Talk(w)
        holder = await moving(w, talk)
        said = await talk.say("Go on.")
        assert (last(w).route, last(w).holder) == ("readback", holder.url)
        assert said == await talk.right()
        await nobody_holds_blocks(w)
