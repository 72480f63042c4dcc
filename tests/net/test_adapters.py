"""Models that appear and go while the gateway runs: LoRA adapters that an operator loads into some of the pods."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from gateway.core.pods import Fleet, Pod, PodFacts, Role
from gateway.net import model_watch
from gateway.net.pod_facts import ModelList, Scout
from loadtest.pod.simulated import SimulatedPod
from tests.net.world import LONG, World, assistant, user, world

PODS = {"lora_updates": True, "extras": True}
SELDOM = {"health.facts_interval_s": 600.0}
"""Asks the pods for their models once, when they come up."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each pod was asked for its models."""
    counted: Counter[str] = Counter()
    real = Scout.models

    async def models(self: Scout, pod: Pod) -> ModelList | None:
        counted[pod.url] += 1
        return await real(self, pod)

    monkeypatch.setattr(Scout, "models", models)
    return counted


async def load(w: World, name: str, *pods: SimulatedPod, unload: bool = False) -> None:
    body = {"lora_name": name, "lora_path": f"/adapters/{name}"}
    for pod in pods:
        reply = await w.post("/v1/unload_lora_adapter" if unload else "/v1/load_lora_adapter", body, url=pod.url)
        assert reply.status == 200, reply.body


async def listed(w: World) -> list[str]:
    return [card["id"] for card in (await w.get("/v1/models")).json["data"]]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_first_request_that_names_a_new_adapter_goes_to_the_pods_that_have_it(stream: bool) -> None:
    async with world(prefill=2, decode=3, pod=PODS, **SELDOM) as w:
        assert await listed(w) == ["sim"]
        await load(w, "lora-1", w.prefill[1], w.decode[2])
        first = await w.chat([user()], model="lora-1", stream=stream, max_tokens=24)
        assert first.status == 200, first.body
        record = w.watcher.records[-1]
        assert (record.route, record.model) == ("pd", "lora-1")
        assert (record.prefill, record.answering) == (w.prefill[1].url, w.decode[2].url)
        assert await listed(w) == ["sim", "lora-1"]
        said = first.streamed_text if stream else first.text
        assert (await w.chat([user(), assistant(said), user("Go on.")], model="lora-1")).status == 200
        assert (w.watcher.records[-1].route, w.watcher.records[-1].answering) == ("local", w.decode[2].url)
        assert w.watcher.faults == []


async def test_an_adapter_that_nobody_named_yet_is_found_all_the_same() -> None:
    async with world(prefill=1, decode=2, pod=PODS, **{"health.facts_interval_s": 0.05}) as w:
        await load(w, "lora-1", *w.prefill, w.decode[1])
        fleet, having = w.gateway.parts.fleet, [w.prefill[0].url, w.decode[1].url]
        await w.watcher.until(lambda: len(w.watcher.models) == 2)
        assert sorted(w.watcher.models) == sorted((url, ("sim", "lora-1")) for url in having)
        assert [pod.url for pod in fleet.serving("lora-1")] == having
        await load(w, "lora-1", *w.prefill, w.decode[1], unload=True)
        await w.watcher.until(lambda: len(w.watcher.models) == 4)
        assert await listed(w) == ["sim"]
        assert fleet.serving("lora-1") is fleet
        reply = await w.chat([user()], model="lora-1")
        assert reply.status == 404
        assert "`lora-1` does not exist" in reply.json["error"]["message"]


async def test_an_adapter_taken_from_one_pod_is_asked_for_elsewhere_after_one_refusal() -> None:
    async with world(prefill=1, decode=2, pod=PODS, **SELDOM) as w:
        await load(w, "lora-1", *w.prefill, *w.decode)
        assert (await w.chat([user()], model="lora-1")).status == 200
        gone, left = w.pod(w.watcher.records[-1].answering), w.gateway.parts.model_watch
        await load(w, "lora-1", gone, unload=True)
        assert left is not None
        left._looked_at = -1e9
        statuses = [(await w.chat([user(), assistant("hm"), user("Go on.")], model="lora-1")).status]
        await w.watcher.until(lambda: (gone.url, ("sim",)) in w.watcher.models)
        statuses.append((await w.chat([user(), assistant("hm"), user("Go on.")], model="lora-1")).status)
        assert statuses == [404, 200]
        assert w.watcher.records[-1].answering != gone.url


async def test_names_that_nobody_serves_cost_a_pod_one_question(asked: Counter[str]) -> None:
    async with world(prefill=1, decode=2, pod=PODS, **SELDOM) as w:
        pods = [pod.url for pod in (*w.prefill, *w.decode)]
        assert asked == dict.fromkeys(pods, 1), "each was asked at the start"
        replies = await asyncio.gather(*(w.chat([user()], model=f"nobody-{n}") for n in range(40)))
        assert {reply.status for reply in replies} == {404}
        assert asked == dict.fromkeys(pods, 2)
        await w.chat([user()], model="nobody-again")
        assert asked == dict.fromkeys(pods, 2), "not again within the second"
        assert (await w.chat([user()])).status == 200
        assert asked == dict.fromkeys(pods, 2)


async def test_later_they_are_asked_again(asked: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_watch, "LOOK_AGAIN_S", 0.0)
    async with world(prefill=0, decode=1, pod=PODS, **SELDOM) as w:
        assert (await w.chat([user()], model="lora-1")).status == 404
        await load(w, "lora-1", *w.decode)
        assert (await w.chat([user()], model="lora-1")).status == 200
        before = asked[w.decode[0].url]
        assert (await w.chat([user()], model="lora-1")).status == 200
        assert asked[w.decode[0].url] == before, "a name that is known costs nothing"


async def test_a_pod_that_does_not_answer_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_watch, "PATIENCE_S", 0.05)
    async with world(prefill=0, decode=2, pod=PODS, **SELDOM) as w:
        w.decode[0].fault("hang_before_headers", path="/v1/models", times=-1)
        await load(w, "lora-1", w.decode[1])
        reply = await w.chat([user()], model="lora-1")
        assert reply.status == 200, "the other one has said by then that it has it"
        assert w.watcher.records[-1].answering == w.decode[1].url
        assert (await w.chat([user()], model="nobody")).status == 404
        assert await listed(w) == ["sim", "lora-1"]


async def test_a_list_that_cannot_be_read_leaves_what_was_known() -> None:
    async with world(prefill=0, decode=1, pod=PODS, **SELDOM) as w:
        w.decode[0].fault("refuse_5xx", path="/v1/models", times=1)
        assert (await w.chat([user()], model="nobody")).status == 404
        assert not w.decode[0].state.faults.strike("/v1/models", generates=False), "it was met"
        assert w.watcher.models == []
        assert await listed(w) == ["sim"]
        assert (await w.chat([user()])).status == 200
        assert w.watcher.records[-1].model == "sim"


async def test_what_is_passed_through_finds_a_new_model_too() -> None:
    async with world(prefill=0, decode=3, pod=PODS, **SELDOM) as w:
        await load(w, "lora-1", w.decode[2])
        reply = await w.post("/v1/embeddings", {"model": "lora-1", "input": LONG})
        assert reply.status == 200
        assert w.watcher.records[-1].answering == w.decode[2].url


async def test_a_restarted_pod_has_only_what_it_says_now() -> None:
    async with world(prefill=0, decode=1, pod=PODS) as w:
        await load(w, "lora-1", *w.decode)
        assert (await w.chat([user()], model="lora-1")).status == 200
        await w.kill(w.decode[0])
        await w.watcher.until(lambda: w.watcher.pods[w.decode[0].url] is False)
        await w.restart(w.decode[0])
        await w.all_up()
        assert await listed(w) == ["sim"]
        assert (await w.chat([user()], model="lora-1")).status == 404


def test_a_name_is_known_once_a_pod_says_it() -> None:
    d1, d2 = Pod("d1", Role.DECODE, up=True), Pod("d2", Role.DECODE, up=True)
    fleet = Fleet([d1, d2])
    assert fleet.knows("a"), "nobody says anything: all pods are asked for it"
    d1.facts = PodFacts(models=("a",))
    assert fleet.knows("a")
    assert fleet.knows("")
    assert not fleet.knows("b")
    d2.facts = PodFacts(models=("a", "b"))
    assert fleet.knows("b")
    fleet.remove(d2)
    fleet.serving("a")
    assert not fleet.knows("b")
