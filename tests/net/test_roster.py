"""Pods that are added to a running gateway and removed from it, with traffic on."""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from gateway.core.pods import Pod, Role
from gateway.net import roster as roster_module
from gateway.net.roster import ADMIN, CONFIG, LOOK_S, Roster, UnknownPod
from loadtest.pod.simulated import SimulatedPod
from tests.net.leftovers import clean_world
from tests.net.world import LONG, World, assistant, user, world

SLOW: dict[str, Any] = {"profile": "h100-llama3.1-8b", "time_scale": 2.0}
"""Pods that take their time, so that something can happen during a stream."""


def roster(w: World) -> Roster:
    return w.running.roster


def seen(w: World, pod: SimulatedPod) -> Pod | None:
    return w.gateway.parts.fleet.get(pod.url)


async def joined(w: World, role: str, source: str = ADMIN, **options: Any) -> SimulatedPod:
    """One more pod, named by a source and up."""
    pod = await w.add(role, **options)
    roster(w).add(pod.url, Role(role), source=source)
    await w.watcher.until(lambda: bool(w.watcher.pods.get(pod.url)))
    return pod


def entries(w: World, url: str) -> list[str]:
    """Where the gateway still has anything under that URL."""
    parts, health, client = w.gateway.parts, w.gateway.health, w.gateway.parts.client
    places: Mapping[str, Any] = {
        "residency": parts.residency._caches,
        "handovers": {each.prefill for each in parts.handovers._waiting},
        "stranded": parts.handovers.stranded,
        "outliers": parts.outliers._seen,
        "fingerprints": parts.fingerprints,
        "engines": parts.engines,
        "losses": parts.losses,
        "explained": parts.explained,
        "unrendered": parts.unrendered,
        "suspects": parts.suspects,
        "guarded": parts.fleet._guarded,
        "fleet": parts.fleet._by_url,
        "probes": health._tasks,
        "wake": health._wake,
        "failures": health._failures,
        "introduced": health._introduced,
        "read_at": health._read_at,
        "models": health.models,
        "selftests": health.selftests._states,
        "running selftests": health.selftests._running,
        "connections": client._pools,
        "claims": roster(w)._claims,
        "held": roster(w)._held,
        "leaving": roster(w)._leaving,
    }
    return [name for name, place in places.items() if url in place]


async def test_a_pod_that_is_added_gets_traffic() -> None:
    async with clean_world(prefill=1, decode=1) as w:
        assert w.gateway.parts.fleet.assignment == "1P_1D"
        pod = await joined(w, "decode")
        assert w.gateway.parts.fleet.assignment == "1P_2D"
        for number in range(12):
            assert (await w.chat([user(f"{number} {LONG}")])).status == 200
        assert {record.answering for record in w.watcher.records} == {each.url for each in w.decode}
        assert pod in w.decode


async def test_a_removed_pod_leaves_nothing_behind() -> None:
    async with clean_world(prefill=1, decode=1, selftest=True, pod={"kv_events": True}) as w:
        tasks = len(asyncio.all_tasks())
        for role in ("prefill", "decode", "replica"):
            pod = await joined(w, role, kv_events=True)
            before = len(asyncio.all_tasks())
            for number in range(100):  # who of two idle pods takes a conversation is the toss of a coin
                assert (await w.chat([user(f"{role} {number} {LONG}")])).status == 200
                if pod.url in (w.watcher.records[-1].answering, w.watcher.records[-1].prefill):
                    break
            else:
                pytest.fail("it was never asked")
            await w.settled()
            assert before > tasks
            assert {"fleet", "residency", "connections", "probes", "claims"} <= set(entries(w, pod.url))
            assert roster(w).remove(pod.url, source=ADMIN)
            await roster(w).left(pod.url)
            assert entries(w, pod.url) == []
            assert w.watcher.removed[-1] == (pod.url, "admin let go of it")
            await w.kill(pod)
            getattr(w, role).remove(pod)
            page = (await w.get("/metrics")).body.decode()
            assert [line for line in page.splitlines() if pod.url in line] == []
        gc.collect()
        assert w.gateway.parts.fleet.assignment == "1P_1D"


async def test_what_a_late_request_leaves_of_a_removed_pod_is_cleared_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster_module, "LATE_S", 0.05)
    async with clean_world(prefill=1, decode=2) as w:
        pod = w.decode[0]
        gone = seen(w, pod)
        assert gone is not None
        roster(w).remove(pod.url, source=CONFIG)
        await roster(w).left(pod.url)
        answer = await w.gateway.parts.client.call("GET", pod.url, "/health", [], b"", 5)
        await answer.read(5)
        w.gateway.parts.residency.used(gone, b"k", 1)
        assert entries(w, pod.url) == ["residency", "connections"]
        await until(lambda: entries(w, pod.url) == [])
        assert roster(w)._late == {}


async def test_a_stream_at_a_pod_that_leaves_runs_to_its_end_while_new_ones_go_elsewhere() -> None:
    async with clean_world(prefill=1, decode=1) as w:
        old = w.decode[0]
        old.fault("hold", events=5)
        stream = asyncio.ensure_future(w.chat([user()], stream=True, max_tokens=60, ignore_eos=True))
        await until(lambda: len(old.requests) == 1)
        new = await joined(w, "decode")
        assert roster(w).remove(old.url, source=CONFIG)
        assert [pod.url for pod, why in roster(w).draining() if why == "leaving"] == [old.url]
        assert (await w.chat([user("another one")])).status == 200
        assert w.watcher.records[-1].answering == new.url
        assert seen(w, old) is not None, "its stream still runs"
        old.clear_faults()
        reply = await stream
        assert len(reply.chunks) > 50
        assert reply.events[-1] == b"data: [DONE]"
        await roster(w).left(old.url)
        assert seen(w, old) is None


async def test_the_next_turn_of_a_conversation_leaves_a_pod_that_leaves() -> None:
    async with clean_world(prefill=1, decode=2, pod=SLOW) as w:
        first = await w.chat([user()])
        home = w.pod(w.watcher.records[0].answering)
        other = next(pod for pod in w.decode if pod is not home)
        held = asyncio.ensure_future(w.chat([user("a long one")], stream=True, max_tokens=100, ignore_eos=True))
        roster(w).remove(home.url, source=CONFIG)
        turns = [user(), assistant(first.text), user("go on " + LONG)]
        assert (await w.chat(turns)).status == 200
        second = w.watcher.records[-1]
        assert (second.turn, second.answering) == (2, other.url)
        await held


async def test_what_does_not_end_in_time_is_cut_and_an_answer_not_begun_is_given_by_another_pod() -> None:
    async with clean_world(prefill=1, decode=1, pod=SLOW, pod_drain_s=0.05) as w:
        old = w.decode[0]
        stream = asyncio.ensure_future(w.chat([user()], stream=True, max_tokens=2000, ignore_eos=True))
        await _running_on(w, old)
        await joined(w, "decode", **SLOW)
        roster(w).remove(old.url, source=CONFIG)
        await roster(w).left(old.url)
        reply = await stream
        assert b'"error"' in reply.events[-1]
        assert w.watcher.removed == [(old.url, "config let go of it; requests cut off after 0.05 s: 1")]
        assert entries(w, old.url) == []


async def test_without_drain_a_pod_goes_at_once() -> None:
    async with clean_world(prefill=1, decode=2, pod=SLOW) as w:
        unstreamed = asyncio.ensure_future(w.chat([user()], max_tokens=100, ignore_eos=True))
        old = await _busy_one(w)
        roster(w).remove(old.url, source=CONFIG, drain=False)
        await roster(w).left(old.url)
        assert entries(w, old.url) == []
        assert (await unstreamed).status == 200, "nothing had been sent, so another pod answers"
        assert w.watcher.records[0].attempts == 2


async def test_a_pod_of_two_sources_stays_until_both_let_go() -> None:
    async with world(prefill=1, decode=2) as w:
        url = w.decode[0].url
        roster(w).add(url, Role.DECODE, source="dns")
        assert roster(w).sources(url) == (CONFIG, "dns")
        assert not roster(w).remove(url, source=CONFIG)
        assert not roster(w).remove(url, source="file"), "which never named it"
        assert w.gateway.parts.fleet.assignment == "1P_2D"
        assert roster(w).of("dns") == {url: Role.DECODE}
        assert roster(w).remove(url, source="dns")
        await roster(w).left(url)
        assert w.gateway.parts.fleet.assignment == "1P_1D"


async def test_a_pod_that_is_named_again_before_it_left_stays_as_it_is() -> None:
    async with world(prefill=1, decode=2) as w:
        pod = seen(w, w.decode[0])
        assert pod is not None
        pod.take(1)
        roster(w).remove(pod.url, source=CONFIG)
        assert pod.draining
        roster(w).add(pod.url, Role.DECODE, source=ADMIN)
        pod.give_back(1)
        await roster(w).left(pod.url)
        assert seen(w, w.decode[0]) is pod
        assert not pod.draining
        assert pod.up


async def test_a_pod_stays_while_anything_needs_it() -> None:
    async with world(prefill=1, decode=2) as w:
        pod = seen(w, w.prefill[0])
        assert pod is not None
        parts = w.gateway.parts
        pod.readbacks = 1
        roster(w).remove(pod.url, source=CONFIG)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(roster(w).left(pod.url)), 2 * LOOK_S)
        waiting = parts.handovers.begin(pod.url, time.monotonic())
        pod.readbacks = 0
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(roster(w).left(pod.url)), 2 * LOOK_S)
        parts.handovers.over(waiting)
        await roster(w).left(pod.url)
        assert parts.fleet.assignment == "0P_2D"


async def test_whatever_sources_say_in_whatever_order_nothing_is_left_in_the_end() -> None:
    rolls = random.Random(7)
    urls = [f"http://127.0.0.1:{port}" for port in range(1, 6)]
    sources = ("dns", "file", ADMIN)
    async with clean_world(prefill=1, decode=1, pod_drain_s=0.01) as w:
        tasks, said = asyncio.all_tasks(), roster(w)
        claims: dict[str, dict[str, Role]] = {url: {} for url in urls}
        for _ in range(400):
            url, source, role = rolls.choice(urls), rolls.choice(sources), rolls.choice(list(Role))
            match rolls.randrange(5):
                case 0 | 1:
                    said.add(url, role, source=source)
                    claims[url][source] = role
                case 2:
                    assert said.remove(url, source=source, drain=rolls.random() < 0.5) == (
                        set(claims[url]) == {source}
                    ), (url, source)
                    claims[url].pop(source, None)
                case 3 if claims[url]:
                    said.set_draining(url, rolls.random() < 0.5, source=source)
                case _:
                    await asyncio.sleep(0)
            for each in urls:
                assert said.sources(each) == tuple(claims[each])
        for url in urls:
            for source in sources:
                said.remove(url, source=source)
            await said.left(url)
            assert entries(w, url) == []
        await until(lambda: asyncio.all_tasks() <= tasks)
        assert {pod.url for pod in w.gateway.parts.fleet} == {w.prefill[0].url, w.decode[0].url}


async def test_another_role_is_another_pod_once_the_first_is_empty() -> None:
    async with clean_world(prefill=1, decode=2) as w:
        url = w.decode[0].url
        before = seen(w, w.decode[0])
        roster(w).add(url, Role.REPLICA, source=CONFIG)
        await roster(w).left(url)
        after = seen(w, w.decode[0])
        assert after is not None
        assert after is not before
        assert (after.role, after.draining) == (Role.REPLICA, False)
        assert w.watcher.removed == [(url, "becomes a replica pod")]
        await w.watcher.until(lambda: bool(w.watcher.pods.get(url)))
        assert w.gateway.parts.fleet.assignment == "1P_1D"


async def test_the_source_that_came_first_says_the_role() -> None:
    async with world(prefill=1, decode=2) as w:
        url = w.decode[0].url
        roster(w).add(url, Role.REPLICA, source="dns")
        assert roster(w).sources(url) == (CONFIG, "dns")
        assert w.gateway.parts.fleet.assignment == "1P_2D"
        roster(w).remove(url, source=CONFIG)
        await roster(w).left(url)
        pod = seen(w, w.decode[0])
        assert pod is not None
        assert pod.role is Role.REPLICA


async def test_a_pod_is_drained_while_anyone_wants_it_drained() -> None:
    async with world(prefill=1, decode=2) as w:
        pod = seen(w, w.decode[0])
        assert pod is not None
        roster(w).set_draining(pod.url, True)
        roster(w).set_draining(pod.url, True, source="kubernetes")
        assert {each.url: why for each, why in roster(w).draining()} == {pod.url: "drained by admin, kubernetes"}
        roster(w).set_draining(pod.url, False)
        assert pod.draining
        roster(w).set_draining(pod.url, False, source="kubernetes")
        assert not pod.draining
        with pytest.raises(UnknownPod):
            roster(w).set_draining("http://nobody:1", True)


async def test_requests_all_the_while_none_fails() -> None:
    async with clean_world(prefill=1, decode=2) as w:
        stop = False

        async def talk(name: int) -> None:
            turns = [user(f"{name} {LONG}")]
            while not stop:
                reply = await w.chat(turns)
                assert reply.status == 200, reply.body
                turns = [*turns, assistant(reply.text), user(f"go on {len(turns)}")][:12]

        talking = [asyncio.ensure_future(talk(name)) for name in range(4)]
        for _ in range(6):
            for role in ("decode", "prefill"):
                pod = await joined(w, role)
                group: list[SimulatedPod] = getattr(w, role)
                oldest = group[0]
                count = len(w.watcher.records)
                await w.watcher.until(lambda count=count: len(w.watcher.records) > count + 5)  # type: ignore[misc]
                source = roster(w).sources(oldest.url)[0]
                roster(w).remove(oldest.url, source=source)
                await roster(w).left(oldest.url)
                await w.kill(oldest)
                group.remove(oldest)
                assert entries(w, oldest.url) == []
                assert pod in group
        stop = True
        await asyncio.gather(*talking)
        assert {record.outcome for record in w.watcher.records} == {"ok"}
        assert {record.attempts for record in w.watcher.records} == {1}


async def until(condition: Callable[[], bool]) -> None:
    """For what no observer is told of."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def _busy_one(w: World) -> SimulatedPod:
    """The decode pod that has a request, once one has."""
    await until(lambda: any(int(pod.summary["running"]) for pod in w.decode))
    return next(pod for pod in w.decode if int(pod.summary["running"]))


async def _running_on(w: World, pod: SimulatedPod) -> None:
    await until(lambda: int(pod.summary["running"]) > 0)
