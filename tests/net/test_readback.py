"""Readback: P takes a conversation's history from the pod that holds it, and nothing that goes wrong costs more.

In most tests the history is put on a decode pod while no prefill pod may be used, so P has nothing of it and must read.
Then the decode pod is drained: the conversation moves, P <- old D, new D <- P. A simulated pod that is given KV of
another prompt answers with other words, so equal answers mean the right KV.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.core.pods import Pod, Role
from gateway.core.policies import Choice, Route, TurnView
from gateway.net import prefill, readback
from gateway.net.records import RequestRecord
from gateway.wire import readback as wire
from gateway.wire.contract import Api
from loadtest.pod.journal import Record
from loadtest.pod.simulated import SimulatedPod
from tests.net.world import CHAT, COMPLETIONS, LONG, Reply, World, assistant, user, world

BOTH = [Api.CHAT, Api.COMPLETIONS]
STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@dataclass
class Talk:
    """A conversation of either API that goes on with the answers it gets."""

    world: World
    api: Api = Api.CHAT
    stream: bool = False
    more: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)
    text: str = ""

    @property
    def path(self) -> str:
        return CHAT if self.api is Api.CHAT else COMPLETIONS

    def body(self) -> dict[str, Any]:
        prompt = {"messages": self.messages} if self.api is Api.CHAT else {"prompt": self.text}
        return {"model": "sim", "max_tokens": 24, **prompt, **self.more}

    async def post(self, words: str) -> Reply:
        """The next turn, whatever comes of it."""
        self.messages.append(user(words))
        self.text += words
        before = len(self.world.watcher.records)
        reply = await self.world.post(self.path, {**self.body(), "stream": self.stream}, self.headers)
        await self.world.record(before + 1)
        return reply

    async def say(self, words: str) -> str:
        reply = await self.post(words)
        assert reply.status == 200, reply.body
        said = _streamed(reply) if self.stream else reply.text
        self.messages.append(assistant(said))
        self.text += said
        return said

    async def right(self) -> str:
        """What a pod that has nothing cached answers to the last turn; call after it."""
        asked = Talk(self.world, self.api, more=self.more, messages=self.messages[:-1])
        said = self.messages[-1]["content"]
        asked.text = self.text.removesuffix(said)
        async with SimulatedPod() as cold:
            return (await self.world.post(self.path, asked.body(), url=cold.url)).text


def _streamed(reply: Reply) -> str:
    choices = [choice for chunk in reply.chunks for choice in chunk["choices"]]
    return "".join((c["delta"].get("content") if "delta" in c else c["text"]) or "" for c in choices)


@asynccontextmanager
async def reading(
    prefill: int = 1, decode: int = 2, p: dict[str, Any] | None = None, d: dict[str, Any] | None = None, **flags: Any
) -> AsyncIterator[World]:
    """A gateway with readback whose P has `bidirectional_kv_xfer` and whose D have not, unless told otherwise."""
    flags = {"policy": "local", "readback": True, "timeouts.prefill_s": 30.0, **flags}
    options = {"prefill": {"bidirectional": True, **(p or {})}, "decode": d or {}}
    async with world(prefill, decode, pod_of=options, **flags) as w:
        yield w


def pods(w: World, role: Role) -> list[Pod]:
    return w.gateway.parts.fleet.of(role)


def allow(w: World, role: Role, allowed: bool, url: str | None = None) -> None:
    for pod in pods(w, role):
        if url is None or pod.url == url:
            w.gateway.parts.fleet.set_draining(pod, not allowed)


async def on_one_pod(w: World, talk: Talk) -> SimulatedPod:
    """Two turns on a decode pod, none through P; returns that pod."""
    allow(w, Role.PREFILL, False)
    await talk.say(LONG * 2)
    await talk.say(" And then, what did the engine say? ")
    allow(w, Role.PREFILL, True)
    assert (last(w).route, last(w).turn) == ("local", 2)
    return w.pod(last(w).answering)


async def moving(w: World, talk: Talk) -> SimulatedPod:
    """Two turns on a decode pod that is then drained."""
    holder = await on_one_pod(w, talk)
    allow(w, Role.DECODE, False, holder.url)
    return holder


async def nobody_holds_blocks(w: World) -> None:
    await w.settled()
    for pod in [*w.prefill, *w.decode]:
        await pod.until(lambda pod=pod: pod.summary["leases"] == 0 == pod.summary["running"])
        assert pod.summary["expired_leases"] == 0
        assert pod.summary["free_blocks"] == pod.summary["blocks"]


def asked(pod: SimulatedPod) -> Record:
    """The last request to a pod."""
    return pod.requests[-1]


def last(w: World) -> RequestRecord:
    return w.watcher.records[-1]


class ReadsBack:
    """A policy that wants readback for every turn it may have it."""

    name = "reads back"

    def choose(self, view: TurnView) -> Choice:
        return Choice(Route.READBACK if view.readback else Route.PD, f"readback is {'' if view.readback else 'not '}on")


# It works


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
        assert (w.prefill[0].url in w.gateway.parts.renders_nothing) is not render
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


# It does not work, and the request is answered


async def test_a_p_without_bidirectional_transfer_gets_one_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill, "PROOF_S", 0.3)
    async with reading(decode=3, p={"bidirectional": False}) as w:
        talk = Talk(w)
        holder = await moving(w, talk)
        said = await talk.say("Go on.")
        record, p = last(w), w.prefill[0]
        assert (record.route, record.outcome, record.holder, record.readback_tokens) == ("pd", "ok", None, None)
        assert (record.reason or "").endswith("the history read back; but no readback (timeout)")
        assert record.prefill_cached_tokens == 0
        assert said == await talk.right()
        assert [(kind, pod) for kind, pod, _ in w.watcher.faults] == [
            ("readback_timeout", p.url),
            ("readback_off", p.url),
        ]
        assert [pod.reads_back for pod in pods(w, Role.PREFILL)] == [False]
        await w.settled()
        await holder.until(lambda: holder.summary["leases"] == 0)

        allow(w, Role.DECODE, False, record.answering)
        before = len(p.requests), len(w.watcher.faults)
        said = await talk.say("And on.")
        assert (last(w).route, last(w).holder) == ("pd", None)
        assert (last(w).reason or "").endswith(f"is being drained: moves to {last(w).answering}")
        assert (len(p.requests), len(w.watcher.faults)) == (before[0] + 1, before[1])
        assert said == await talk.right()


@pytest.mark.parametrize("bidirectional", [True, False])
async def test_a_p_that_need_not_read_has_proven_nothing(bidirectional: bool) -> None:
    """A P that has the history itself answers a readback without reading, whether it could or not."""
    async with reading(p={"bidirectional": bidirectional}) as w:
        talk = Talk(w)
        await talk.say(LONG * 2)
        assert last(w).route == "pd"
        allow(w, Role.DECODE, False, last(w).answering)
        await talk.say("Go on.")
        assert last(w).route == "readback"
        assert w.prefill[0].transfers == []
        assert [pod.reads_back for pod in pods(w, Role.PREFILL)] == [None]
        if bidirectional:
            await nobody_holds_blocks(w)


async def test_where_no_p_reads_back_a_policy_is_not_offered_it() -> None:
    async with reading() as w:
        w.gateway.parts.policy = ReadsBack()
        talk = Talk(w)
        await on_one_pod(w, talk)
        pods(w, Role.PREFILL)[0].reads_back = False
        await talk.say("Go on.")
        assert (last(w).route, last(w).reason) == ("pd", "readback is not on")


async def test_another_p_that_reads_back_is_asked_instead() -> None:
    async with reading(prefill=2) as w:
        talk = Talk(w)
        await moving(w, talk)
        first, second = pods(w, Role.PREFILL)
        first.reads_back = False
        second.take(10**6)
        await talk.say("Go on.")
        assert (last(w).route, last(w).prefill) == ("readback", second.url)
        second.give_back(10**6)


async def test_a_p_that_has_proven_itself_has_all_the_time_of_a_prefill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill, "PROOF_S", 0.0)
    async with reading() as w:
        talk = Talk(w)
        await moving(w, talk)
        pods(w, Role.PREFILL)[0].reads_back = True
        await talk.say("Go on.")
        assert last(w).route == "readback"


async def test_one_that_had_and_is_slow_now_is_asked_again_later() -> None:
    async with reading(**{"timeouts.prefill_s": 1.0}) as w:
        talk = Talk(w)
        await moving(w, talk)
        pods(w, Role.PREFILL)[0].reads_back = True
        w.prefill[0].fault("hang_before_headers")
        said = await talk.say("Go on.")
        assert last(w).route == "pd"
        assert w.watcher.fault_kinds == ["readback_timeout"]
        assert [pod.reads_back for pod in pods(w, Role.PREFILL)] == [True]
        assert said == await talk.right()
        await nobody_holds_blocks(w)


HOLDER = [
    ("refuse_5xx", "recall", "readback_recall", "status 503"),
    ("drop_kv_params", "recall", "readback_recall", "no blocks in the answer"),
    ("hang_before_headers", "recall_timeout", "readback_recall_timeout", ""),
    ("reset_after_events", "recall_reset", "readback_recall_reset", ""),
]


@pytest.mark.parametrize(("fault", "word", "kind", "detail"), HOLDER)
@STREAMED
async def test_a_holder_that_does_not_help_costs_the_readback_only(
    fault: str, word: str, kind: str, detail: str, stream: bool
) -> None:
    async with reading(**{"timeouts.recall_s": 1.0}) as w:
        talk = Talk(w, stream=stream)
        holder = await moving(w, talk)
        holder.fault(fault)
        said = await talk.say("Go on.")
        record = last(w)
        assert (record.route, record.outcome, record.holder, record.readback_tokens) == ("pd", "ok", None, None)
        assert (record.reason or "").endswith(f"the history read back; but no readback ({word})")
        assert record.answering != holder.url
        assert said == await talk.right()
        ((found_kind, found_pod, found_detail),) = w.watcher.faults
        assert (found_kind, found_pod) == (kind, holder.url)
        assert not detail or found_detail == detail
        assert len(w.prefill[0].requests) == 1, "P was never asked to read"
        assert [pod.reads_back for pod in pods(w, Role.PREFILL)] == [None]


async def test_a_holder_that_dies_before_the_recall_costs_the_readback_only() -> None:
    async with reading(**{"health.interval_s": 60.0}) as w:
        talk = Talk(w)
        holder = await moving(w, talk)
        await w.kill(holder)
        said = await talk.say("Go on.")
        record = last(w)
        assert (record.route, record.outcome, record.attempts) == ("pd", "ok", 1)
        assert (record.reason or "").endswith("but no readback (recall_connect)")
        assert w.watcher.fault_kinds == ["readback_recall_connect"]
        assert w.watcher.pods[holder.url] is False, "and everybody knows at once"
        assert said == await talk.right()


@pytest.mark.parametrize("status", [500, 503, 400, 404])
@STREAMED
async def test_a_p_that_refuses_the_readback_leg_is_asked_without(status: int, stream: bool) -> None:
    async with reading() as w:
        talk = Talk(w, stream=stream)
        holder = await moving(w, talk)
        w.prefill[0].fault("refuse_5xx", status=status)
        said = await talk.say("Go on.")
        record = last(w)
        assert (record.route, record.outcome, record.attempts) == ("pd", "ok", 1)
        assert (record.holder, record.readback_tokens) == (None, None)
        assert (record.reason or "").endswith("but no readback (status)")
        assert w.watcher.faults == [("readback_status", w.prefill[0].url, str(status))]
        refused, asked_again = w.prefill[0].requests
        assert refused.body["kv_transfer_params"]["remote_engine_id"] == holder.summary["engine_id"]
        assert asked_again.body["kv_transfer_params"]["remote_engine_id"] is None
        assert "prompt_token_ids" not in asked(w.pod(record.answering)).body["kv_transfer_params"]
        assert said == await talk.right()
        assert [pod.reads_back for pod in pods(w, Role.PREFILL)] == [None]
        await nobody_holds_blocks(w)
        assert holder.summary["late_releases"] == 0


async def test_a_request_that_is_wrong_is_refused_with_the_pods_own_words() -> None:
    async with reading() as w:
        talk = Talk(w)
        await moving(w, talk)
        talk.more = {"temperature": 3.0}
        reply = await talk.post("Go on.")
        assert reply.status == 400
        assert "temperature must be in [0, 2], got 3.0." in reply.json["error"]["message"]
        assert last(w).outcome == "rejected"
        await nobody_holds_blocks(w)


async def test_a_p_that_dies_over_the_readback_is_replaced_and_the_blocks_are_given_back() -> None:
    async with reading(prefill=2) as w:
        talk = Talk(w)
        holder = await moving(w, talk)
        first, second = pods(w, Role.PREFILL)
        second.take(10**6)
        real = readback.Recall.fetch

        async def fetch(self: readback.Recall, *args: Any) -> readback.Recalled:
            found = await real(self, *args)
            await w.kill(w.prefill[0])
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(readback.Recall, "fetch", fetch)
            said = await talk.say("Go on.")
        second.give_back(10**6)
        record = last(w)
        assert (record.route, record.prefill, record.attempts) == ("pd", second.url, 2)
        assert w.watcher.fault_kinds == ["readback_connect", "prefill_connect"]
        assert not first.up
        assert said == await talk.right()
        await w.settled()
        await holder.until(lambda: holder.summary["leases"] == 0)


async def test_with_one_pod_of_each_kind_p_itself_brings_the_word() -> None:
    async with reading(decode=1) as w:
        w.gateway.parts.policy = ReadsBack()
        talk = Talk(w)
        allow(w, Role.PREFILL, False)
        await talk.say(LONG * 2)
        allow(w, Role.PREFILL, True)
        w.prefill[0].fault("refuse_5xx", status=500)
        await talk.say("Go on.")
        assert w.watcher.fault_kinds == ["readback_status"]
        await nobody_holds_blocks(w)


async def test_when_d_fails_after_a_readback_the_record_is_of_the_plan_that_worked() -> None:
    async with reading(decode=3) as w:
        talk = Talk(w)
        holder = await moving(w, talk)
        first, second = [pod for pod in pods(w, Role.DECODE) if pod.url != holder.url]
        second.take(10**6)
        w.pod(first.url).fault("refuse_5xx")
        said = await talk.say("Go on.")
        second.give_back(10**6)
        record = last(w)
        assert (record.route, record.answering, record.attempts) == ("pd", second.url, 2)
        assert (record.holder, record.readback_tokens) == (None, None)
        assert said == await talk.right()
        assert w.watcher.fault_kinds == ["answer_status"]
        assert len(w.prefill[0].transfers) == 1


# No readback at all


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
        assert w.gateway.parts.renders_nothing == {w.prefill[0].url}
        allow(w, Role.DECODE, False, last(w).answering)
        w.prefill[0].fault("refuse_5xx", path="/v1/chat/completions/render", times=1)
        await talk.say("And on.")
        assert last(w).route == "readback"
        assert w.prefill[0].state.faults.strike("/v1/chat/completions/render", generates=False) is not None, "unused"


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


# One cache per tenant

KEYS = ("sk-secret-of-anna", "sk-secret-of-bert")


def salts(w: World) -> list[str]:
    return [r.body["cache_salt"] for pod in [*w.prefill, *w.decode] for r in pod.requests if "messages" in r.body]


async def test_two_keys_have_two_caches_and_one_key_has_one() -> None:
    async with reading(decode=1, isolate_tenants=True, p={"scale_out": True}) as w:
        talks = [Talk(w, headers={"Authorization": f"Bearer {key}"}) for key in KEYS]
        found = []
        for talk in talks:
            for pod in (*w.prefill, *w.decode):
                pod.state.journal.records.clear()
            await talk.say(LONG)
            assert (last(w).route, last(w).turn) == ("pd", 1)
            assert last(w).prefill_cached_tokens == 0, "what the other has cached is not this one's"
            await talk.say("Go on.")
            assert (last(w).route, last(w).turn) == ("local", 2)
            assert len(set(salts(w))) == 1, "the same on both legs and all turns"
            assert len(salts(w)) == 3
            found.append(salts(w)[0])
            sent = b"".join(r.raw for pod in (*w.prefill, *w.decode) for r in pod.requests)
            assert not any(key.encode() in sent for key in KEYS)
        assert found[0] != found[1]
        assert all(len(salt) == 64 and set(salt) <= set("0123456789abcdef") for salt in found)
        assert len({record.conversation for record in w.watcher.records}) == 2


async def test_a_clients_own_salt_still_separates_and_does_not_leave() -> None:
    async with reading(decode=1, isolate_tenants=True) as w:
        header = {"Authorization": f"Bearer {KEYS[0]}"}
        talks = [Talk(w, headers=header, more=more) for more in ({}, {"cache_salt": "own"}, {"cache_salt": "other"})]
        for talk in talks:
            await talk.say(LONG)
            assert last(w).prefill_cached_tokens == 0
        assert len(set(salts(w))) == 3
        assert not {"own", "other"} & set(salts(w))
        again = Talk(w, headers=header, more={"cache_salt": "own"})
        await again.say(LONG)
        assert (last(w).prefill_cached_tokens or 0) > 50
        assert len(set(salts(w))) == 3


async def test_a_readback_stays_in_its_tenants_cache() -> None:
    async with reading(isolate_tenants=True) as w:
        talk = Talk(w, headers={"Authorization": f"Bearer {KEYS[0]}"})
        holder = await moving(w, talk)
        await talk.say("Go on.")
        assert last(w).route == "readback"
        assert asked(holder).body["cache_salt"] == asked(w.prefill[0]).body["cache_salt"]
        assert (asked(holder).cached_tokens or 0) > 200


async def test_without_isolation_nobody_is_given_a_salt() -> None:
    async with reading(decode=1) as w:
        for key in KEYS:
            await Talk(w, headers={"Authorization": f"Bearer {key}"}).say(LONG)
        assert (last(w).prefill_cached_tokens or 0) > 50, "a prefix is shared by all"
        assert not any("cache_salt" in r.body for pod in (*w.prefill, *w.decode) for r in pod.requests)
