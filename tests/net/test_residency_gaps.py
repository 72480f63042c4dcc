"""What the gateway expects of caches whose announcements fall short: resets, gaps, restarts, meddling clients."""

from __future__ import annotations

from gateway.core.residency import Verdict
from tests.net.caches import EVENTS, LEDGER, SIZE, Talk, heard, listening, shares, view
from tests.net.world import COMPLETIONS, World


async def test_after_a_reset_of_an_idle_pod_one_turn_comes_short() -> None:
    async with listening() as w:
        talk, d = Talk(w, "talk"), w.decode[0]
        await talk.say(shares("talk", 2))
        assert d.reset_prefix_cache()
        record = await talk.say("Go on.")
        assert record.route == "local", "the pod has not said it yet"
        assert (record.expected_tokens or 0) > 150
        assert record.cached_tokens == 0
        assert record.residency[EVENTS].word == "over"
        assert view(w).complete, "now it has"
        record = await talk.say("And on.")
        assert record.route == "local"
        assert record.residency[EVENTS] == Verdict(0, "exact")


async def test_a_gap_that_cannot_be_filled_is_mended_conversation_by_conversation() -> None:
    async with listening(d={"replay": False}) as w:
        d = w.decode[0]
        talk, other = Talk(w, "talk", {"vllm_xargs": {"theirs": 1}}), Talk(w, "other")
        await talk.say(shares("talk", 2))
        await talk.say("Go on.")
        assert view(w).complete
        assert d.requests[-1].body["vllm_xargs"] == {"theirs": 1}

        d.events.drop(1)
        await other.say(shares("other", 1))
        await other.say("Go on.")
        assert not view(w).complete
        assert view(w).lost == 1
        assert w.watcher.fault_kinds == ["kv_events_lost"]

        record = await talk.say("And on.")
        assert record.route == "local"
        assert EVENTS not in record.residency, "nobody knew; the ledger answered"
        assert record.residency[LEDGER].word == "exact"
        assert d.requests[-1].body["vllm_xargs"] == {"theirs": 1, "kv_cache_report_mode": "full"}
        assert not view(w).complete

        record = await talk.say("And on.")
        assert record.residency[EVENTS] == Verdict(0, "exact"), "known again, from its first block"
        assert d.requests[-1].body["vllm_xargs"] == {"theirs": 1}
        assert view(w).lost == 1


async def test_what_two_conversations_share_and_both_report_is_there_once() -> None:
    """Else it would count as still there when it was evicted."""
    async with listening(d={"replay": False, "num_blocks": 100}) as w:
        d = w.decode[0]
        talks = [Talk(w, name) for name in ("one", "two")]
        for talk in talks:
            talk.messages.append({"role": "system", "content": shares("Be kind.", 2)})
            await talk.say(f"I am {talk.name}. " * 20)
        d.events.drop(1)
        await Talk(w, "other").say(shares("other", 1))
        await Talk(w, "other still").say("Hello. " * 20)
        assert view(w).lost == 1
        for talk in talks:
            await talk.say("Go on.")
            assert d.requests[-1].body["vllm_xargs"] == {"kv_cache_report_mode": "full"}
            assert (await talk.say("And on.")).residency[EVENTS] == Verdict(0, "exact")
        for words in ("past the gateway ", "and another one "):
            body = {"model": "sim", "prompt": words * 380, "max_tokens": 1}
            assert (await w.post(COMPLETIONS, body, url=d.url)).status == 200
        await heard(w)
        for talk in talks:
            assert view(w).resident_tokens(bytes.fromhex(_key(w, talk))) == 0
        assert view(w).resident_blocks == d.summary["cached_blocks"]


def _key(w: World, talk: Talk) -> str:
    """The conversation of a talk's last turn."""
    (record,) = [r for r in w.watcher.records if r.request_id == talk.last_id]
    assert record.conversation is not None
    return record.conversation


async def test_a_gap_that_a_replay_fills_costs_nothing() -> None:
    async with listening() as w:
        talk = Talk(w, "talk")
        await talk.say(shares("talk", 2))
        w.decode[0].events.drop(1)
        await Talk(w, "other").say(shares("other", 2))
        await Talk(w, "third").say("Hello, third one. " * 4)
        record = await talk.say("Go on.")
        assert record.residency[EVENTS] == Verdict(0, "exact")
        assert "vllm_xargs" not in w.decode[0].requests[-1].body
        assert view(w).complete
        assert w.watcher.faults == []


async def test_a_client_cannot_have_its_hits_announced() -> None:
    """They would count as further copies, and an eviction would not show."""
    async with listening() as w:
        talk = Talk(w, "talk", {"vllm_xargs": {"kv_cache_report_mode": "full", "theirs": 1}})
        await talk.say(shares("talk", 2))
        await talk.say("Go on.")
        assert [r.body["vllm_xargs"] for pod in (*w.prefill, *w.decode) for r in pod.requests] == [{"theirs": 1}] * 3
        assert w.watcher.fault_kinds == ["client_handover"] * 2


async def test_a_restarted_pod_has_nothing_whoever_said_so() -> None:
    async with listening() as w:
        talk, d = Talk(w, "talk"), w.decode[0]
        await talk.say(shares("talk", 2))
        assert (await talk.say("Go on.")).route == "local"
        ports = [int(str(end).rpartition(":")[2]) for end in (d.events.endpoint, d.events.replay_endpoint)]
        await w.kill(d)
        w.decode.clear()
        again = {"kv_events": True, "block_size": SIZE, "event_port": ports[0], "replay_port": ports[1]}
        new = await w.add("decode", port=d.port, **again)
        await w.watcher.until(lambda: bool(w.watcher.restarts) and w.watcher.pods[new.url])
        await new.until(lambda: new.events.subscribers == 1)
        record = await talk.say("And on.")
        assert record.route == "pd"
        assert record.reason == f"turn 3: decode pod {new.url} was restarted"
        record = await talk.say("And on.")
        assert record.route == "local"
        assert record.residency[EVENTS] == Verdict(0, "exact")
        assert view(w).resident_blocks == new.summary["cached_blocks"]
