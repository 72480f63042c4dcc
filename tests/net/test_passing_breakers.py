"""What is passed through counts for a pod's breaker, and goes to no pod whose breaker is open."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.breakers import BreakerState
from tests.net.leftovers import clean_world
from tests.net.test_faults_breakers import cool, seen
from tests.net.world import World

TOKENIZE = "/tokenize"
BODY = {"model": "sim", "prompt": "one two three"}
QUICK: dict[str, Any] = {
    "breaker.failures": 3,
    "breaker.open_s": 60,
    "health.interval_s": 60,
}


async def tokenize(w: World) -> int:
    return (await w.post(TOKENIZE, BODY)).status


async def test_a_pod_that_fails_to_answer_is_asked_no_more_and_the_other_serves() -> None:
    async with clean_world(prefill=0, decode=2, **QUICK) as w:
        bad, good = w.decode
        seen(w, good.url).take(10**6)
        bad.fault("close_without_response", path=TOKENIZE, times=-1)
        assert [await tokenize(w) for _ in range(5)] == [200] * 5
        assert seen(w, bad.url).breaker.state is BreakerState.OPEN
        assert w.watcher.fault_kinds.count("pass_through_reset") == 3
        seen(w, good.url).give_back(10**6)


async def test_one_request_tries_a_pod_whose_cool_down_is_over_and_closes_its_breaker() -> None:
    async with clean_world(prefill=0, decode=2, **QUICK) as w:
        bad, good = w.decode
        seen(w, good.url).take(10**6)
        bad.fault("close_without_response", path=TOKENIZE, times=-1)
        for _ in range(4):
            await tokenize(w)
        pod = seen(w, bad.url)
        assert pod.breaker.state is BreakerState.OPEN
        bad.clear_faults()
        await cool(w, pod)
        assert await tokenize(w) == 200
        assert pod.breaker.state is BreakerState.CLOSED
        assert w.watcher.records[-1].answering == bad.url
        seen(w, good.url).give_back(10**6)


@pytest.mark.parametrize("status", [400, 500])
async def test_an_answer_of_the_engine_counts_neither_way(status: int) -> None:
    async with clean_world(prefill=0, decode=1, **QUICK) as w:
        w.decode[0].fault("refuse_5xx", status=status, path=TOKENIZE, times=-1)
        assert [await tokenize(w) for _ in range(5)] == [status] * 5
        assert seen(w, w.decode[0].url).breaker.state is BreakerState.CLOSED


async def test_where_every_pod_has_failed_too_often_they_are_asked_all_the_same() -> None:
    async with clean_world(prefill=0, decode=1, **QUICK) as w:
        w.decode[0].fault("close_without_response", path=TOKENIZE, times=-1)
        assert [await tokenize(w) for _ in range(4)] == [502] * 4
        assert seen(w, w.decode[0].url).breaker.state is BreakerState.OPEN
        w.decode[0].clear_faults()
        assert await tokenize(w) == 200
