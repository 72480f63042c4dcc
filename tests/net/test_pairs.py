"""Pairs of pods after a restart: one hand-over is tried before clients use them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.core.pods import Pod
from gateway.net.pairs import PairProbes
from loadtest.pod.journal import Record
from loadtest.pod.simulated import SimulatedPod
from tests.net.leftovers import clean_world
from tests.net.world import COMPLETIONS, LONG, World, _lower, user

PROBED = "ppd-pairprobe-"


@asynccontextmanager
async def pair_world(**options: Any) -> AsyncIterator[World]:
    """A world whose health probes a test drives itself: nothing is tried before `drive`."""
    flags = {"policy": "pd", "health.interval_s": 60, "pairs.probe": True, **options}
    async with clean_world(**flags) as w:
        w.gateway.health.pairs.first_retry_s = 0.0
        yield w


def seen(w: World, pod: SimulatedPod) -> Pod:
    found = w.gateway.parts.fleet.get(pod.url)
    assert found is not None
    return found


def restarted(w: World, *pods: SimulatedPod) -> None:
    """The gateway finds that these are new processes."""
    for pod in pods:
        facts = seen(w, pod).facts
        w.gateway.parts.restarted(seen(w, pod), "for the test")
        seen(w, pod).facts = facts


def probes(pod: SimulatedPod) -> Sequence[Record]:
    return [record for record in pod.requests if _lower(record.headers).get("x-request-id", "").startswith(PROBED)]


async def drive(w: World, count: int) -> list[tuple[str, str, bool, str]]:
    """Let probes run until so many have ended."""
    w.gateway.health.pairs.consider()
    await w.watcher.until(lambda: len(w.watcher.pairs) >= count)
    return w.watcher.pairs


@pytest.mark.parametrize("way", ["auto", "nixl", "mooncake"])
async def test_a_restarted_p_hands_one_prompt_to_each_d_and_is_used_again(way: str) -> None:
    async with pair_world(prefill=1, decode=2, handover=way) as w:
        restarted(w, w.prefill[0])
        await w.chat([user()])
        assert (await w.record(1)).route == "local", "nobody waits for the probe"
        if way == "mooncake":
            await w.gateway.health.look(seen(w, w.prefill[0]))
        told = await drive(w, 2)
        assert sorted((prefill, decode) for prefill, decode, _, _ in told) == sorted(
            (w.prefill[0].url, d.url) for d in w.decode
        )
        assert all(works for _, _, works, _ in told)
        for d in w.decode:
            (probe,) = probes(d)
            assert probe.path == COMPLETIONS
            assert probe.body["max_tokens"] == 1
            assert probe.body["kv_transfer_params"]["do_remote_prefill"]
            assert d.transfers[-1].ok
        assert len({probe.body["cache_salt"] for probe in probes(w.prefill[0])}) == 2
        await w.chat([user("something else " + LONG)])
        assert (await w.record(2)).route == "pd"


async def test_a_restarted_d_is_tried_with_each_p() -> None:
    async with pair_world(prefill=2, decode=2) as w:
        restarted(w, w.decode[0])
        await drive(w, 2)
        assert [len(probes(pod)) for pod in (*w.prefill, *w.decode)] == [1, 1, 2, 0]


async def test_traffic_goes_where_pairs_are_proven_meanwhile() -> None:
    async with pair_world(prefill=2, decode=1) as w:
        restarted(w, w.prefill[0])
        await w.chat([user()])
        record = await w.record(1)
        assert (record.route, record.prefill) == ("pd", w.prefill[1].url)


async def test_a_pair_that_fails_is_avoided_shown_and_tried_again() -> None:
    async with pair_world(prefill=1, decode=1) as w:
        restarted(w, w.prefill[0])
        w.decode[0].fault("refuse_5xx", status=503)
        w.gateway.health.pairs.first_retry_s = 600.0
        told = await drive(w, 1)
        assert told[0][2] is False
        assert "503" in told[0][3]
        shown = {pod["url"]: pod for pod in (await w.get("/admin/pods")).json["pods"]}
        assert list(shown[w.prefill[0].url]["pairs_held"]) == [w.decode[0].url]
        assert "503" in shown[w.decode[0].url]["pairs_held"][w.prefill[0].url]
        page = (await w.get("/metrics")).body.decode()
        assert "ppd_pairs_held 1" in page
        assert 'ppd_pair_probes_total{result="failed"} 1' in page
        await w.chat([user()])
        record = await w.record(3)
        assert record.route == "local"
        assert "since a restart" in (record.reason or "")
        w.gateway.health.pairs.consider()
        assert len(w.watcher.pairs) == 1, "not before it is due"
        for trial in w.gateway.parts.fleet.pairs.due(float("inf")):
            trial.due_at = 0.0
        assert (await drive(w, 2))[1][2] is True
        assert len(w.gateway.parts.fleet.pairs) == 0


async def test_a_probe_that_hangs_ends_in_time() -> None:
    async with pair_world(prefill=1, decode=1, **{"pairs.timeout_s": 0.05}) as w:
        restarted(w, w.prefill[0])
        w.gateway.health.pairs.first_retry_s = 600.0
        w.prefill[0].fault("hang_before_headers")
        told = await drive(w, 1)
        assert told[0][2] is False


async def test_few_probes_run_at_once_and_enough_of_them_do_for_the_rest() -> None:
    async with pair_world(prefill=1, decode=6, **{"pairs.enough": 3, "pairs.at_once": 1}) as w:
        restarted(w, w.prefill[0])
        await drive(w, 3)
        assert len(probes(w.prefill[0])) == 3
        assert len(w.gateway.parts.fleet.pairs) == 0


async def test_a_pod_that_is_down_is_not_tried() -> None:
    async with pair_world(prefill=1, decode=1) as w:
        restarted(w, w.prefill[0])
        w.gateway.parts.fleet.set_up(seen(w, w.decode[0]), False)
        w.gateway.health.pairs.consider()
        await asyncio.sleep(0)
        assert not w.prefill[0].requests
        w.gateway.parts.fleet.set_up(seen(w, w.decode[0]), True)
        assert (await drive(w, 1))[0][2] is True


async def test_pods_without_a_common_model_need_no_proof() -> None:
    async with pair_world(prefill=1, decode=1, others=[("decode", "another")]) as w:
        restarted(w, w.prefill[0])
        await drive(w, 1)
        assert len(w.gateway.parts.fleet.pairs) == 0
        assert [len(probes(d)) for d in w.decode] == [1, 0]


async def test_a_real_restart_is_followed_by_a_probe_without_anybodys_help() -> None:
    async with clean_world(prefill=1, decode=1, policy="pd", **{"pairs.probe": True}) as w:
        await w.chat([user()])
        await w.kill(w.prefill[0])
        await w.watcher.until(lambda: not w.watcher.pods[w.prefill[0].url])
        await w.restart(w.prefill[0])
        await w.watcher.until(lambda: bool(w.watcher.pairs))
        assert w.watcher.pairs[0][:3] == (w.prefill[0].url, w.decode[0].url, True)
        await w.chat([user("something else " + LONG)])
        assert (await w.record(2)).route == "pd"


async def test_no_pair_is_held_back_where_probes_are_off() -> None:
    async with pair_world(prefill=1, decode=1, **{"pairs.probe": False}) as w:
        restarted(w, w.prefill[0])
        await w.chat([user()])
        assert (await w.record(1)).route == "pd"
        PairProbes(w.gateway.parts).consider()
        assert not probes(w.prefill[0])


async def test_how_a_pod_hands_over_is_learned_from_the_probe_before_clients_come() -> None:
    async with pair_world(prefill=1, decode=1, pod={"transfer_mode": "push"}) as w:
        restarted(w, w.prefill[0])
        await drive(w, 1)
        assert w.gateway.parts.origins.shown(seen(w, w.prefill[0])) == "nixl-push"
