"""A pod whose process was replaced has lost its KV; a pod that only could not be reached has not."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import pytest

from gateway.core.pods import Pod
from gateway.ops.config import load
from gateway.ops.serve import running
from loadtest.pod.simulated import SimulatedPod
from tests.net.world import LONG, Watcher, World, assistant, user, world

NO_PROBES: dict[str, Any] = {"health.interval_s": 600}
"""After the first, which find the pods up."""


def seen(w: World, pod: SimulatedPod) -> Pod:
    """The pod as the gateway sees it."""
    found = w.gateway.parts.fleet.get(pod.url)
    assert found is not None
    return found


async def replace(w: World, pod: SimulatedPod) -> SimulatedPod:
    """A new process on the same port, so fast that nobody was refused."""
    await w.kill(pod)
    return await w.restart(pod)


def follow_up(reply: str) -> list[dict[str, str]]:
    return [user(), assistant(reply), user("and then? " + LONG)]


async def test_a_pod_that_comes_up_is_asked_what_it_is() -> None:
    async with world(prefill=1, decode=1, pod={"block_size": 16, "num_blocks": 500, "max_model_len": 4000}) as w:
        facts = seen(w, w.decode[0]).facts
        assert (facts.block_size, facts.num_blocks, facts.prefix_caching) == (16, 500, True)
        assert (facts.models, facts.max_model_len) == (("sim",), 4000)
        assert facts.version.startswith("0.")
        assert facts.instance
        assert facts.seen_at > 0


async def test_a_restart_between_two_probes_is_seen_although_nobody_was_refused() -> None:
    async with world(prefill=1, decode=1, **NO_PROBES) as w:
        before = seen(w, w.decode[0]).facts.instance
        new = await replace(w, w.decode[0])
        await w.gateway.health.look(seen(w, new))
        assert seen(w, new).epoch == 1
        assert seen(w, new).facts.instance not in ("", before)
        assert seen(w, new).up
        [(url, detail)] = w.watcher.restarts
        assert url == new.url
        assert detail.startswith("its process started at 20")
        await w.gateway.health.look(seen(w, new))
        assert seen(w, new).epoch == 1, "once is enough"
        page = (await w.get("/metrics")).body.decode()
        assert f'ppd_pod_restarts_total{{pod="{new.url}"}} 1.0' in page
        assert f'ppd_pod_restarts_total{{pod="{w.prefill[0].url}"}} 0.0' in page


async def test_after_such_a_restart_the_next_turn_goes_through_p() -> None:
    async with world(prefill=1, decode=1, policy="local", **NO_PROBES) as w:
        first = await w.chat([user()])
        new = await replace(w, w.decode[0])
        await w.gateway.health.look(seen(w, new))
        await w.chat(follow_up(first.text))
        assert [record.route for record in w.watcher.records] == ["pd", "pd"]
        assert "restarted" in (w.watcher.records[1].reason or "")


async def test_probes_that_fail_for_a_while_lose_nothing() -> None:
    async with world(prefill=1, decode=1, policy="local") as w:
        first = await w.chat([user()])
        pod = w.decode[0]
        pod.fault("refuse_5xx", path="/health", times=4)
        await w.watcher.until(lambda: not w.watcher.pods[pod.url])
        await w.all_up()
        await w.chat(follow_up(first.text))
        assert [record.route for record in w.watcher.records] == ["pd", "local"]
        assert (seen(w, pod).epoch, w.watcher.restarts) == (0, [])


async def test_a_closed_port_before_the_same_process_loses_nothing() -> None:
    """A Kubernetes Service without a ready pod behind it refuses connections, too."""
    async with world(prefill=1, decode=1, policy="local", **NO_PROBES) as w:
        first = await w.chat([user()])
        pod = seen(w, w.decode[0])
        w.gateway.parts.lost(pod, "refused")
        assert not pod.up
        await w.gateway.health.look(pod)
        await w.chat(follow_up(first.text))
        assert [record.route for record in w.watcher.records] == ["pd", "local"]
        assert (pod.up, pod.epoch, w.watcher.restarts) == (True, 0, [])


async def test_a_closed_port_is_a_restart_when_the_pod_does_not_tell_its_start_time() -> None:
    async with world(prefill=1, decode=1, **NO_PROBES) as w:
        pod = seen(w, w.decode[0])
        w.decode[0].fault("refuse_5xx", status=404, path="/metrics", times=-1)
        w.gateway.parts.lost(pod, "refused")
        await w.gateway.health.look(pod)
        assert (pod.up, pod.epoch, len(w.watcher.restarts)) == (True, 1, 1)


async def test_a_pod_is_lost_while_it_is_being_looked_at_and_does_not_come_up_for_that() -> None:
    async with world(prefill=1, decode=1, **NO_PROBES) as w:
        pod, health = seen(w, w.decode[0]), w.gateway.health
        learn = health._learn

        async def learn_and_lose(pod: Pod, losses: int) -> None:
            await learn(pod, losses)
            w.gateway.parts.lost(pod, "refused")

        health._learn = learn_and_lose  # type: ignore[method-assign]
        await health.look(pod)
        assert not pod.up


async def test_a_pod_that_was_not_there_yet_is_not_restarted_when_it_comes() -> None:
    async with AsyncExitStack() as stack:
        early = await stack.enter_async_context(SimulatedPod(role="decode"))
        async with SimulatedPod(role="decode") as gone:
            late_url, port = gone.url, gone.port
        watcher = Watcher()
        flags = {"decode": [early.url, late_url], "port": 0, "health.interval_s": 0.05, "selftest": False}
        await stack.enter_async_context(running(load(None, {}, flags), watcher))
        await watcher.until(lambda: watcher.pods.get(early.url, False))
        await stack.enter_async_context(SimulatedPod(role="decode", port=port))
        await watcher.until(lambda: watcher.pods.get(late_url, False))
        assert watcher.restarts == []


async def test_another_engine_in_p_s_hand_over_is_another_process() -> None:
    async with world(prefill=1, decode=1, **NO_PROBES) as w:
        await w.chat([user()])
        await w.chat([user("hello")])
        assert seen(w, w.prefill[0]).epoch == 0
        new = await replace(w, w.prefill[0])
        await w.chat([user()])
        assert seen(w, new).epoch == 1
        [(url, detail)] = w.watcher.restarts
        assert url == new.url
        assert new.state.engine_id in detail
        await w.gateway.health.look(seen(w, new))
        await w.chat([user()])
        assert seen(w, new).epoch == 1, "what else tells of the same restart does not count again"


async def test_a_restart_seen_by_the_start_time_is_not_seen_again_by_the_engine() -> None:
    async with world(prefill=1, decode=1, **NO_PROBES) as w:
        await w.chat([user()])
        new = await replace(w, w.prefill[0])
        await w.gateway.health.look(seen(w, new))
        await w.chat([user()])
        assert (seen(w, new).epoch, len(w.watcher.restarts)) == (1, 1)


async def test_another_engine_in_d_s_own_answer_is_another_process() -> None:
    async with world(prefill=1, decode=1, pod={"bidirectional": True}, **NO_PROBES) as w:
        await w.chat([user()])
        assert set(w.gateway.parts.engines) == {w.prefill[0].url, w.decode[0].url}
        w.gateway.parts.engines[w.decode[0].url] = b"another"
        await w.chat([user()])
        assert (seen(w, w.decode[0]).epoch, seen(w, w.prefill[0]).epoch) == (1, 0)


async def test_another_engine_has_the_pod_looked_at_now() -> None:
    async with world(prefill=1, decode=1, **NO_PROBES) as w:
        parts, pod = w.gateway.parts, seen(w, w.decode[0])
        parts.met_engine(pod, b"one")
        parts.met_engine(pod, None)
        parts.met_engine(pod, b"one")
        assert (pod.epoch, parts.suspects) == (0, set())
        parts.met_engine(pod, b"two")
        assert (pod.epoch, parts.suspects) == (1, {pod.url})


async def test_a_restart_that_something_else_told_of_explains_the_closed_port_before_it() -> None:
    async with world(prefill=1, decode=1, **NO_PROBES) as w:
        pod = seen(w, w.decode[0])
        w.gateway.parts.lost(pod, "refused")
        w.gateway.parts.restarted(pod, "its KV events began anew")
        await w.gateway.health.look(pod)
        assert (pod.up, pod.epoch, len(w.watcher.restarts)) == (True, 1, 1)


@pytest.mark.parametrize("counted", [True, False])
async def test_a_replaced_pod_is_introduced_anew(counted: bool) -> None:
    async with world(prefill=1, decode=1, **NO_PROBES) as w:
        pod = seen(w, w.decode[0])
        await w.kill(w.decode[0])
        if counted:
            w.gateway.parts.lost(pod, "refused")
        w.decode.clear()
        await w.add("decode", port=int(pod.url.rpartition(":")[2]), model="other")
        await w.gateway.health.look(pod)
        assert pod.facts.models == ("other",)
        assert w.gateway.health.model_names() == {"sim", "other"}
        assert (pod.epoch, len(w.watcher.restarts)) == (1, 1)
