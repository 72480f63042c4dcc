"""What the gateway expects of the pods' caches, against pods that say what they hold and against what they then say.

Pods are simulated and evict as vLLM does. `heard` waits until the gateway has every event that a pod has published.
"""

from __future__ import annotations

import random

import pytest

from gateway.core.residency import Verdict
from tests.net.caches import EVENTS, LEDGER, SIZE, Talk, cache, heard, listening, shares, view
from tests.net.world import COMPLETIONS, LONG, world

# Turns through the gateway and the pod's own word


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_whatever_is_evicted_every_local_turn_finds_what_was_expected(seed: int) -> None:
    """Ten conversations that take turns at random in a cache that holds about four of them."""
    choose = random.Random(seed)
    async with listening(d={"num_blocks": 120}) as w:
        talks = [Talk(w, f"talk {number}") for number in range(10)]
        records = []
        for _ in range(90):
            talk = choose.choice(talks)
            if len(talk.messages) > 9:
                talk.messages.clear()
            words = f"{talk.name}, {choose.random()}: {LONG[: choose.randrange(40, 500)]}"
            records.append(await talk.say(words, choose.randrange(1, 40)))
        local = [record for record in records if record.route == "local"]
        for record in local:
            assert record.expected_tokens is not None
            assert record.cached_tokens is not None
            most = min(record.expected_tokens, (record.prompt_tokens or 0) - 1) // SIZE * SIZE
            assert record.cached_tokens == most
            assert record.residency[EVENTS] == Verdict(0, "exact")
        reasons = [record.reason or "" for record in records if record.route == "pd" and (record.turn or 0) > 1]
        assert len(local) > 25
        assert any("tokens are left on" in reason for reason in reasons), "some were evicted in part"
        assert sum("nothing resident on" in reason for reason in reasons) > 10, "many altogether"
        assert view(w).complete
        assert (view(w).gaps, view(w).lost) == (0, 0)
        assert view(w).resident_blocks == w.decode[0].summary["cached_blocks"]
        assert w.watcher.faults == []


async def test_an_evicted_conversation_goes_through_p_and_the_reason_says_how_much_is_left() -> None:
    async with listening(d={"num_blocks": 60}) as w:
        first, d = Talk(w, "first"), w.decode[0]
        await first.say(shares("first", 3))
        told = await first.say("Go on.")
        assert (told.route, told.residency[EVENTS].word) == ("local", "exact")
        context = (told.prompt_tokens or 0) + (told.output_tokens or 0)
        await Talk(w, "second").say(shares("second", 4))
        record = await first.say("And on.")
        kept = SIZE * (-(-(record.prompt_tokens or 0) // SIZE) - d.transfers[-1].num_blocks)
        assert 0 < kept < context / 2, "what D did not pull it still had"
        whole = context // SIZE * SIZE
        assert record.route == "pd"
        assert record.reason == f"turn 3: only {kept} of {whole} tokens are left on {d.url} (events)"
        assert (await first.say("And on.")).route == "local"


async def test_a_conversation_that_was_evicted_altogether_goes_through_p() -> None:
    async with listening(d={"num_blocks": 60}) as w:
        first = Talk(w, "first")
        await first.say("Be short.")
        await Talk(w, "second").say(shares("second", 4))
        await Talk(w, "third").say(shares("third", 4))
        record = await first.say("Go on.")
        assert record.route == "pd"
        assert record.reason == f"turn 2: nothing resident on {w.decode[0].url} (events)"


@pytest.mark.parametrize(("share", "route"), [(0.0, "local"), (1.0, "pd")])
async def test_how_much_must_be_left_is_the_operators_choice(share: float, route: str) -> None:
    async with listening(d={"num_blocks": 60}, min_resident_share=share) as w:
        first = Talk(w, "first")
        await first.say(shares("first", 3))
        await Talk(w, "second").say(shares("second", 4))
        record = await first.say("Go on.")
        assert record.route == route
        if route == "local":
            assert record.residency[EVENTS] == Verdict(0, "exact")
            assert 0 < (record.cached_tokens or 0) < (record.prompt_tokens or 0) / 2


async def test_of_two_pods_the_one_with_more_of_it_takes_the_turn() -> None:
    async with listening(decode=2) as w:
        talk = Talk(w, "talk")
        old = (await talk.say(shares("talk", 2))).answering
        await talk.say("Go on.")
        fleet = w.gateway.parts.fleet
        home = fleet.get(old)
        assert home is not None
        fleet.set_draining(home, True)
        new = (await talk.say("And on.")).answering
        assert new != old
        fleet.set_draining(home, False)
        assert (await talk.say("And on.")).answering == new
        assert w.pod(new).reset_prefix_cache()
        await Talk(w, "other").world.post(COMPLETIONS, {"model": "sim", "prompt": "x " * 40}, url=new)
        await heard(w)
        record = await talk.say("And on.")
        assert (record.answering, record.route) == (old, "local")
        assert record.residency[EVENTS] == Verdict(0, "exact")


async def test_a_branch_is_known_through_its_parent() -> None:
    async with listening() as w:
        talk = Talk(w)
        await talk.say(shares("talk", 2))
        await talk.say("What then?")
        del talk.messages[-2:]
        record = await talk.say("No, what else?")
        assert (record.kind, record.route, record.turn) == ("branch", "local", 2)
        assert record.conversation != w.watcher.records[0].conversation
        assert (record.expected_tokens or 0) > 150
        assert record.residency[EVENTS].word == "exact", "the first words of its own turn may be the same too"


# Without events


async def test_without_events_the_ledger_alone_answers() -> None:
    async with listening(kv_events="off") as w:
        talk, d = Talk(w, "talk"), w.decode[0]
        assert d.events.subscribers == 0
        await talk.say(shares("talk", 2), max_tokens=100)
        record = await talk.say("Go on.")
        assert record.route == "local"
        assert record.residency == {LEDGER: Verdict(record.residency[LEDGER].error_tokens, "exact")}
        assert abs((record.expected_tokens or 0) - (record.cached_tokens or 0)) <= SIZE
        assert cache(w, d).views == {}
        assert cache(w, d).ghost.capacity_tokens == SIZE * int(str(d.summary["blocks"]))


async def test_pods_that_publish_nothing_are_the_ledgers() -> None:
    async with world(pod={"block_size": SIZE}) as w:
        talk = Talk(w, "talk")
        await talk.say(shares("talk", 2))
        record = await talk.say("Go on.")
        assert list(record.residency) == [LEDGER]
        assert record.residency[LEDGER].word == "exact"
        assert all(not cache(w, pod).views for pod in w.decode)


async def test_the_ledger_learns_how_much_room_there_really_is() -> None:
    """Requests that go past the gateway take most of a pod's cache."""
    async with listening(kv_events="off", d={"num_blocks": 60}) as w:
        talk, d = Talk(w, "talk"), w.decode[0]
        await talk.say(shares("talk", 3))
        assert cache(w, d).ghost.room_tokens == 60 * SIZE
        body = {"model": "sim", "prompt": "past the gateway " * 220, "max_tokens": 1}
        assert (await w.post(COMPLETIONS, body, url=d.url)).status == 200
        record = await talk.say("Go on.")
        assert record.route == "local"
        assert record.residency[LEDGER].word == "over"
        room = cache(w, d).ghost.room_tokens
        assert room == (60 * SIZE + (record.cached_tokens or 0)) / 2, "half-way to what the pod showed"
        page = (await w.get("/metrics")).body.decode()
        assert f'ppd_ledger_room_tokens{{pod="{d.url}"}} {room}' in page


# What an operator sees


async def test_the_pages_show_what_was_predicted_and_what_was_true() -> None:
    async with listening(d={"replay": False}) as w:
        talk, d = Talk(w, "talk"), w.decode[0]
        for words in (shares("talk", 2), "Go on.", "And on."):
            record = await talk.say(words)
        assert d.reset_prefix_cache()
        short = await talk.say("And on.")
        off = short.residency[EVENTS].error_tokens
        assert off == (short.expected_tokens or 0) // SIZE * SIZE > 150

        page = (await w.get("/admin/residency")).json
        (shown,) = [pod for pod in page["pods"] if pod["pod"] == d.url]
        assert shown["predictions"]["events"] == {
            "turns": 3,
            "exact": 2,
            "over": 1,
            "under": 0,
            "error_tokens": off,
            "predicted_tokens": sum(r.cached_tokens or 0 for r in w.watcher.records[1:3]) + off,
            "cached_tokens": sum(r.cached_tokens or 0 for r in w.watcher.records[1:3]),
            "mean_error_tokens": round(off / 3, 1),
        }
        assert shown["predictions"]["ledger"]["turns"] == 3
        assert shown["predictions"]["ledger"]["over"] == 1
        (events,) = shown["events"]
        assert events["complete"] is True
        assert events["resident_blocks"] == d.summary["cached_blocks"]
        assert events["batches"] == view(w).batches
        assert (events["rank"], events["gaps"], events["gaps_lost"]) == (0, 0, 0)
        assert shown["ledger"]["conversations"] == 1
        (prefill,) = [pod for pod in page["pods"] if pod["role"] == "prefill"]
        assert prefill["events"] == []
        assert record.conversation not in (await w.get("/admin/residency")).body.decode()

        metrics = (await w.get("/metrics")).body.decode()
        for line in (
            f'ppd_residency_predictions_total{{pod="{d.url}",source="events",verdict="exact"}} 2.0',
            f'ppd_residency_predictions_total{{pod="{d.url}",source="events",verdict="over"}} 1.0',
            f'ppd_residency_predictions_total{{pod="{d.url}",source="ledger",verdict="over"}} 1.0',
            f'ppd_residency_error_tokens_total{{pod="{d.url}",source="events"}} {float(off)}',
            f'ppd_kv_view_complete{{pod="{d.url}"}} 1.0',
            f'ppd_kv_resident_blocks{{pod="{d.url}"}} {float(int(str(d.summary["cached_blocks"])))}',
            f'ppd_kv_event_batches{{pod="{d.url}"}} {float(view(w).batches)}',
            f'ppd_kv_event_gaps_lost{{pod="{d.url}"}} 0.0',
        ):
            assert line in metrics.splitlines()


async def test_a_turn_through_p_is_compared_with_what_was_expected_of_p() -> None:
    async with listening(policy="pd") as w:
        talk = Talk(w, "talk")
        first = await talk.say(shares("talk", 2))
        assert (first.residency, first.prefill_residency) == ({}, {})
        record = await talk.say("Go on.")
        assert record.route == "pd"
        assert record.residency == {}, "what D reports after a hand-over says nothing of its cache"
        assert record.prefill_residency[LEDGER].word == "exact"
        line = f'ppd_residency_predictions_total{{pod="{w.prefill[0].url}",source="ledger",verdict="exact"}} 1.0'
        assert line in (await w.get("/metrics")).body.decode().splitlines()
