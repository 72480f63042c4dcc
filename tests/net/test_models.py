"""Several models behind one gateway: every request goes to pods that serve its model."""

from __future__ import annotations

import pytest

from gateway.core.pods import Fleet, Pod, PodFacts, Role
from tests.net.world import user, world


def pod(url: str, role: Role, *models: str) -> Pod:
    return Pod(url, role, up=True, facts=PodFacts(models=models))


def urls(fleet: Fleet) -> list[str]:
    return [each.url for each in fleet]


MIXED = (("prefill", "other"), ("decode", "other"), ("replica", "third"))
"""Pods of further models, by role."""


def test_pods_that_serve_the_same_are_one_fleet() -> None:
    fleet = Fleet([pod("p", Role.PREFILL, "a", "lora"), pod("d", Role.DECODE, "lora", "a")])
    assert fleet.serving("a") is fleet
    assert fleet.serving("nobody") is fleet
    assert fleet.serving("") is fleet


def test_pods_are_grouped_by_what_they_serve() -> None:
    fleet = Fleet(
        [
            pod("p1", Role.PREFILL, "a"),
            pod("p2", Role.PREFILL, "b", "b-lora", "p-only"),
            pod("d1", Role.DECODE, "a"),
            pod("d2", Role.DECODE, "b"),
            pod("d3", Role.DECODE, "b", "b-lora"),
            pod("new", Role.DECODE),
        ]
    )
    assert urls(fleet.serving("a")) == ["p1", "d1"]
    assert urls(fleet.serving("b")) == ["p2", "d2", "d3"]
    assert urls(fleet.serving("b-lora")) == ["p2", "d3"]
    assert fleet.serving("b").assignment == "1P_2D"
    assert fleet.serving("p-only") is fleet
    assert fleet.serving("nobody") is fleet


def test_a_group_follows_its_pods_up_down_and_into_another_group() -> None:
    d1, d2 = pod("d1", Role.DECODE, "a"), pod("d2", Role.DECODE, "b")
    fleet = Fleet([d1, d2])
    group = fleet.serving("a")
    assert group.up(Role.DECODE) == [d1]
    fleet.set_up(d1, False)
    assert group.up(Role.DECODE) == []
    fleet.set_up(d1, True)
    d2.facts = PodFacts(models=("a", "b"))
    assert fleet.serving("a").up(Role.DECODE) == [d1, d2]
    d2.facts = PodFacts(models=("a",))
    assert fleet.serving("a") is fleet
    assert fleet.serving("b") is fleet


def test_who_may_bring_word_to_whom() -> None:
    a, b, both = pod("a", Role.DECODE, "a"), pod("b", Role.DECODE, "b"), pod("both", Role.DECODE, "a", "b")
    unknown = pod("new", Role.DECODE)
    assert not a.shares_model(b)
    assert a.shares_model(both)
    assert a.shares_model(unknown)


@pytest.mark.parametrize("stream", [False, True])
async def test_each_model_has_its_own_p_and_d(stream: bool) -> None:
    async with world(prefill=1, decode=1, others=MIXED) as w:
        for model, place in (("sim", 0), ("other", 1)):
            for turn in (1, 2):
                messages = [user(), {"role": "assistant", "content": "hm"}, user("go on")] if turn == 2 else [user()]
                reply = await w.chat(messages, model=model, stream=stream)
                assert reply.status == 200, reply.body
                record = w.watcher.records[-1]
                assert record.answering == w.decode[place].url
                if record.route == "pd":
                    assert record.prefill == w.prefill[place].url
        assert not w.replica[0].requests


async def test_a_model_of_a_replica_goes_there() -> None:
    async with world(prefill=1, decode=1, others=MIXED) as w:
        assert (await w.chat([user()], model="third")).status == 200
        assert (w.watcher.records[-1].route, w.watcher.records[-1].answering) == ("replica", w.replica[0].url)
        names = [card["id"] for card in (await w.get("/v1/models")).json["data"]]
        assert names == ["sim", "other", "third"]


async def test_a_model_nobody_serves_is_a_pods_own_404() -> None:
    async with world(prefill=1, decode=1, others=MIXED) as w:
        reply = await w.chat([user()], model="nobody")
        assert reply.status == 404
        assert "`nobody` does not exist" in reply.json["error"]["message"]


async def test_a_failure_stays_within_the_model() -> None:
    async with world(prefill=1, decode=1, others=MIXED) as w:
        await w.kill(w.decode[1])
        reply = await w.chat([user()], model="other")
        assert reply.status in (502, 503)
        assert not w.decode[0].requests
        assert (await w.chat([user()])).status == 200


async def test_what_is_passed_through_goes_to_the_right_model_too() -> None:
    async with world(prefill=1, decode=1, others=MIXED, pod={"extras": True}) as w:
        for model, place in (("sim", 0), ("other", 1)):
            reply = await w.post("/v1/embeddings", {"model": model, "input": "x"})
            assert reply.json["model"] == model
            assert w.watcher.records[-1].answering == w.decode[place].url
            counted = await w.post("/v1/messages/count_tokens", {"model": model, "messages": [user()]})
            assert counted.status == 200
