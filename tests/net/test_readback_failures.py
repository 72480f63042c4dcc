"""A readback that does not work costs the readback, not the request."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.pods import Role
from gateway.net import prefill, readback
from tests.net.readback_world import (
    STREAMED,
    ReadsBack,
    Talk,
    allow,
    asked,
    last,
    moving,
    nobody_holds_blocks,
    on_one_pod,
    pods,
    reading,
)
from tests.net.world import LONG


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
