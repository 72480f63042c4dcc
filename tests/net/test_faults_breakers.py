"""A pod that fails and fails: who still asks it, who tries it again, and how often a request is tried at all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.core.breakers import BreakerState
from gateway.core.pods import Pod
from tests.net.leftovers import clean_world
from tests.net.test_disconnects import eventually
from tests.net.world import World, user

QUICK: dict[str, Any] = {"breaker.failures": 3, "breaker.open_s": 60, "health.interval_s": 60}


def seen(w: World, url: str) -> Pod:
    pod = w.gateway.parts.fleet.get(url)
    assert pod is not None
    return pod


async def cool(w: World, pod: Pod) -> None:
    """End the cool-down."""
    pod.breaker._until = 0.0
    w.gateway.parts.wake_breakers()


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "reset_before_headers"},
        {"kind": "refuse_5xx", "status": 503},
        {"kind": "finish_error"},
        {"kind": "malformed_head"},
        {"kind": "reset_after_events", "events": 5},
    ],
    ids=lambda fault: str(fault["kind"]),
)
async def test_a_pod_that_fails_three_times_in_a_row_gets_nothing_more(fault: dict[str, Any]) -> None:
    async with clean_world(prefill=1, decode=2, **QUICK) as w:
        bad = w.decode[0]
        seen(w, w.decode[1].url).take(10**6)
        bad.fault(**fault, times=-1)
        for _ in range(6):
            await w.chat([user()], stream=True)
        pod = seen(w, bad.url)
        assert pod.breaker.state is BreakerState.OPEN
        before = len(bad.requests)
        for _ in range(5):
            assert (await w.chat([user()], stream=True)).status == 200
        assert len(bad.requests) == before
        assert [(state, url) for url, state, _ in w.watcher.breakers] == [("open", bad.url)]
        seen(w, w.decode[1].url).give_back(10**6)


async def test_after_the_cool_down_one_request_tries_and_closes_it() -> None:
    async with clean_world(prefill=0, decode=2, **QUICK) as w:
        bad, other = w.decode
        seen(w, other.url).take(10**6)
        bad.fault("refuse_5xx", status=503, times=3)
        for _ in range(3):
            assert (await w.chat([user()])).status == 200
        await cool(w, seen(w, bad.url))
        before = len(bad.requests)
        bad.fault("hold")
        asked = [asyncio.create_task(w.chat([user()])) for _ in range(10)]
        await eventually(lambda: sum(task.done() for task in asked) == 9)
        bad.clear_faults()
        replies = await asyncio.gather(*asked)
        assert {reply.status for reply in replies} == {200}
        assert len(bad.requests) == before + 1, "the others went elsewhere while one tried"
        assert [state for _, state, _ in w.watcher.breakers] == ["open", "half_open", "closed"]
        seen(w, other.url).give_back(10**6)


async def test_the_only_decode_pod_is_asked_whatever_it_did() -> None:
    async with clean_world(prefill=0, decode=1, **QUICK) as w:
        w.decode[0].fault("refuse_5xx", status=503, times=3)
        assert [(await w.chat([user()])).status for _ in range(4)] == [503, 503, 503, 200]
        assert [state for _, state, _ in w.watcher.breakers] == ["open", "closed"]


async def test_a_prompt_that_every_engine_answers_with_500_opens_no_breaker_and_is_tried_twice() -> None:
    async with clean_world(prefill=0, decode=3, **QUICK) as w:
        for pod in w.decode:
            pod.fault("refuse_5xx", status=500, times=-1)
        for _ in range(10):
            assert (await w.chat([user()])).status == 500
        assert sum(len(pod.requests) for pod in w.decode) <= 20
        assert [record.attempts for record in w.watcher.records[:5]] == [2] * 5
        assert not w.watcher.breakers


@pytest.mark.parametrize("status", [400, 404, 422, 429])
async def test_what_a_client_did_wrong_opens_no_breaker(status: int) -> None:
    async with clean_world(prefill=1, decode=1, **QUICK) as w:
        w.decode[0].fault("refuse_5xx", status=status, times=20)
        for _ in range(5):
            assert (await w.chat([user()])).status == status
        assert not w.watcher.breakers
        w.decode[0].clear_faults()


async def test_a_client_that_leaves_blames_nobody() -> None:
    async with clean_world(prefill=0, decode=1, **QUICK) as w:
        w.decode[0].fault("hang_before_headers", times=5)
        for _ in range(5):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await w.chat([user()])
        w.decode[0].clear_faults()
        assert seen(w, w.decode[0].url).breaker.failures == 0


async def test_a_restarted_pod_begins_with_a_closed_breaker() -> None:
    async with clean_world(prefill=0, decode=2, **{**QUICK, "health.interval_s": 0.05}) as w:
        bad = w.decode[0]
        pod = seen(w, bad.url)
        for _ in range(3):
            w.gateway.parts.blame(pod, "timeout")
        assert pod.breaker.state is BreakerState.OPEN
        await w.kill(bad)
        await w.watcher.until(lambda: not w.watcher.pods[bad.url])
        await w.restart(bad)
        await w.watcher.until(lambda: w.watcher.pods[bad.url])
        assert pod.breaker.state is BreakerState.CLOSED


async def test_admin_and_metrics_show_it() -> None:
    async with clean_world(prefill=0, decode=2, **QUICK) as w:
        url = w.decode[0].url
        for _ in range(3):
            w.gateway.parts.blame(seen(w, url), "timeout")
        page = (await w.get("/admin/pods")).json["pods"]
        assert {pod["url"]: pod["breaker"] for pod in page} == {url: "open", w.decode[1].url: "closed"}
        metrics = (await w.get("/metrics")).body.decode()
        assert f'ppd_pod_breaker{{pod="{url}",state="open"}} 1.0' in metrics
        assert f'ppd_pod_breaker{{pod="{url}",state="closed"}} 0.0' in metrics


async def test_retries_are_no_more_than_the_budget() -> None:
    async with clean_world(prefill=0, decode=2, **{**QUICK, "breaker.failures": 0}) as w:
        for pod in w.decode:
            pod.fault("refuse_5xx", status=503, times=-1)
        replies = await asyncio.gather(*(w.chat([user()]) for _ in range(40)))
        assert {reply.status for reply in replies} == {503}
        assert sum(len(pod.requests) for pod in w.decode) == 40 + 10
        assert w.watcher.fault_kinds.count("retry_denied") == 30, "the other ten had their second attempt"
        metrics = (await w.get("/metrics")).body.decode()
        assert 'ppd_retries_total{result="made"} 10.0' in metrics
        assert 'ppd_retries_total{result="denied"} 30.0' in metrics


async def test_a_request_that_nobody_has_seen_costs_no_retry() -> None:
    async with clean_world(prefill=0, decode=2, **{**QUICK, "breaker.failures": 0}) as w:
        budget = w.gateway.parts.budget
        await w.kill(w.decode[0])
        seen(w, w.decode[1].url).take(10**6)
        assert (await w.chat([user()])).status == 200
        assert (await w.record(1)).attempts == 2
        assert budget.allowed == 0
        seen(w, w.decode[1].url).give_back(10**6)
