"""The self-test: a pod that cannot be shown to keep KV gets no later turn without a prefill pod."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from gateway.core.pods import Pod, PodFacts
from gateway.net.selftest import Proof, SelfTests, judge
from gateway.wire.usage import read_usage
from loadtest.pod.journal import Record
from loadtest.pod.simulated import SimulatedPod
from tests.net.test_restarts import NO_PROBES, follow_up, replace, seen
from tests.net.world import COMPLETIONS, World, _lower, user, world

CACHING_FLAG = "--enable-prefix-caching"
DETAILS_FLAG = "--enable-prompt-tokens-details"


async def outcome(w: World, count: int = 1) -> tuple[str, str, bool, str]:
    """The count-th outcome (from 1) the gateway told of: pod, outcome, direct, detail."""
    await w.watcher.until(lambda: len(w.watcher.tests) >= count)
    return w.watcher.tests[count - 1]


def asked(pod: SimulatedPod) -> Sequence[Record]:
    """The self-test's requests that reached a pod."""
    return [
        record for record in pod.requests if _lower(record.headers).get("x-request-id", "").startswith("ppd-selftest-")
    ]


def drive(w: World) -> SelfTests:
    """Self-tests that a test drives itself, in a world that had them off; retries are due at once."""
    w.gateway.parts.settings = dataclasses.replace(w.gateway.parts.settings, selftest=True)
    w.gateway.health.selftests.first_retry_s = 0.0
    return w.gateway.health.selftests


async def run(selftests: SelfTests, pod: Pod) -> None:
    """One test from begin to end, if one is due."""
    test = selftests.consider(pod)
    if test is not None:
        await test


async def second_turn(w: World) -> tuple[str | None, str]:
    """Route and reason of a conversation's second turn."""
    first = await w.chat([user()])
    await w.chat(follow_up(first.text))
    record = await w.record(2)
    return record.route, record.reason or ""


async def test_a_pod_that_keeps_its_prompts_passes() -> None:
    async with world(prefill=1, decode=1, selftest=True, pod={"block_size": 16}) as w:
        pod = w.decode[0]
        assert (await outcome(w))[:3] == (pod.url, "ok", True)
        first, second = asked(pod)
        assert first.path == second.path == COMPLETIONS
        assert first.body == second.body
        assert first.body["max_tokens"] == 1
        assert len(first.body["prompt"]) == 3 * 16 + 1
        assert "48 of 49 tokens" in seen(w, pod).proof
        assert (await second_turn(w))[0] == "local"


async def test_a_self_test_shares_nothing_with_anybody() -> None:
    async with world(prefill=1, decode=2, replica=1, selftest=True) as w:
        await outcome(w, 3)
        bodies = [asked(pod)[0].body for pod in [*w.decode, *w.replica]]
        assert len({body["cache_salt"] for body in bodies}) == 3
        assert not asked(w.prefill[0])


async def test_without_prefix_caching_later_turns_go_through_p_and_say_why() -> None:
    async with world(prefill=1, decode=1, selftest=True, pod={"prefix_caching": False}) as w:
        _, found, direct, detail = await outcome(w)
        assert (found, direct) == ("caching_off", False)
        assert CACHING_FLAG in detail
        assert DETAILS_FLAG not in detail
        assert (await second_turn(w))[0] == "pd"


async def test_without_prompt_token_details_later_turns_go_through_p_and_say_why() -> None:
    async with world(prefill=1, decode=1, selftest=True, pod={"prompt_tokens_details": False}) as w:
        _, found, direct, detail = await outcome(w)
        assert (found, direct) == ("details_off", False)
        assert DETAILS_FLAG in detail
        assert CACHING_FLAG not in detail
        route, reason = await second_turn(w)
        assert route == "pd"
        assert DETAILS_FLAG in reason


async def test_the_operator_may_do_without_proof() -> None:
    flags: dict[str, Any] = {"selftest": True, "direct_without_proof": True}
    async with world(prefill=1, decode=1, pod={"prompt_tokens_details": False}, **flags) as w:
        assert (await outcome(w))[1:3] == ("details_off", True)
        assert (await second_turn(w))[0] == "local"


async def test_the_operator_may_not_do_without_a_cache() -> None:
    flags: dict[str, Any] = {"selftest": True, "direct_without_proof": True}
    async with world(prefill=1, decode=1, pod={"prefix_caching": False}, **flags) as w:
        assert (await outcome(w))[1:3] == ("caching_off", False)


async def test_without_a_prefill_pod_straight_is_still_better_than_nothing() -> None:
    async with world(prefill=1, decode=1, selftest=True, pod={"prompt_tokens_details": False}) as w:
        await outcome(w)
        first = await w.chat([user()])
        await w.kill(w.prefill[0])
        await w.watcher.until(lambda: not w.watcher.pods[w.prefill[0].url])
        await w.chat(follow_up(first.text))
        record = await w.record(2)
        assert record.route == "local"
        assert DETAILS_FLAG in (record.reason or "")


async def test_a_pod_is_tested_again_after_its_restart_and_straight_until_then() -> None:
    async with world(prefill=1, decode=1, **NO_PROBES) as w:
        selftests, pod = drive(w), seen(w, w.decode[0])
        pod.facts = msgspec.structs.replace(pod.facts, prefix_caching=False)
        await run(selftests, pod)
        assert not pod.direct
        await run(selftests, pod)
        assert len(asked(w.decode[0])) == 2, "a verdict that stays is not asked for twice"
        new = await replace(w, w.decode[0])
        await w.gateway.health.look(pod)
        assert (pod.direct, pod.proof) == (True, "not tested since its restart")
        await run(selftests, pod)
        assert pod.proof.startswith("ok: ")
        assert len(asked(new)) == 2


@pytest.mark.parametrize("fault", [{"kind": "refuse_5xx", "status": 503}, {"kind": "refuse_5xx", "status": 401}])
async def test_a_test_that_fails_takes_nothing_away_and_is_tried_again(fault: dict[str, Any]) -> None:
    async with world(prefill=1, decode=1, **NO_PROBES) as w:
        selftests, pod = drive(w), seen(w, w.decode[0])
        w.decode[0].fault(**fault, times=2)
        await run(selftests, pod)
        await run(selftests, pod)
        assert pod.direct
        assert str(fault["status"]) in pod.proof
        assert [found for _, found, _, _ in w.watcher.tests] == ["failed"], "said once"
        await run(selftests, pod)
        assert [found for _, found, _, _ in w.watcher.tests] == ["failed", "ok"]


async def test_a_failed_test_is_not_tried_again_at_once() -> None:
    async with world(prefill=1, decode=1, **NO_PROBES) as w:
        selftests, pod = drive(w), seen(w, w.decode[0])
        selftests.first_retry_s = 600.0
        w.decode[0].fault("refuse_5xx", status=503)
        await run(selftests, pod)
        await run(selftests, pod)
        assert len(asked(w.decode[0])) == 1


async def test_a_busy_pod_is_left_alone() -> None:
    async with world(prefill=1, decode=1, **NO_PROBES) as w:
        selftests, pod = drive(w), seen(w, w.decode[0])
        idle, pod.facts = pod.facts, msgspec.structs.replace(pod.facts, waiting=3)
        await run(selftests, pod)
        assert (pod.direct, len(w.decode[0].requests), w.watcher.tests) == (True, 0, [])
        pod.facts = idle
        await run(selftests, pod)
        assert pod.proof.startswith("ok: ")


async def test_a_pod_that_keeps_nothing_again_and_again_is_believed_until_it_does() -> None:
    async with world(prefill=1, decode=1, pod={"prefix_caching": False}, **NO_PROBES) as w:
        selftests, pod = drive(w), seen(w, w.decode[0])
        pod.facts = msgspec.structs.replace(pod.facts, prefix_caching=True)
        directs = []
        for _ in range(3):
            await run(selftests, pod)
            directs.append(pod.direct)
        assert directs == [True, True, False]
        assert [found for _, found, _, _ in w.watcher.tests] == ["nothing_kept", "nothing_kept"]
        w.decode[0].state.running.engine.pool.caching = True
        await run(selftests, pod)
        assert pod.direct


async def test_a_verdict_on_a_process_that_is_gone_is_dropped() -> None:
    async with world(prefill=1, decode=1, **NO_PROBES) as w:
        selftests, pod = drive(w), seen(w, w.decode[0])
        w.decode[0].fault("slow_headers", seconds=0.01)
        test = selftests.consider(pod)
        assert test is not None
        w.gateway.parts.restarted(pod, "for the test")
        await test
        assert (pod.proof, w.watcher.tests) == ("not tested since its restart", [])


async def test_no_test_runs_when_it_is_off() -> None:
    async with world(prefill=1, decode=1, **NO_PROBES) as w:
        await run(SelfTests(w.gateway.parts), seen(w, w.decode[0]))
        assert not w.decode[0].requests


async def test_the_pods_page_and_the_metrics_show_what_was_found() -> None:
    async with world(prefill=1, decode=1, selftest=True, pod={"prompt_tokens_details": False}) as w:
        await outcome(w)
        shown = {pod["url"]: pod for pod in (await w.get("/admin/pods")).json["pods"]}
        decode, prefill = shown[w.decode[0].url], shown[w.prefill[0].url]
        assert (decode["role"], decode["up"], decode["epoch"], decode["direct"]) == ("decode", True, 0, False)
        assert DETAILS_FLAG in decode["why"]
        assert decode["instance"]
        assert decode["facts"]["prefix_caching"] is True
        assert decode["facts"]["block_size"] > 0
        assert (prefill["direct"], prefill["why"]) == (None, None)
        page = (await w.get("/metrics")).body.decode()
        assert f'ppd_pod_direct{{pod="{w.decode[0].url}"}} 0.0' in page
        assert f'ppd_pod_direct{{pod="{w.prefill[0].url}"}}' not in page


def usage(cached: int | None) -> Any:
    details = b"null" if cached is None else b'{"cached_tokens":%d}' % cached
    return read_usage(msgspec.Raw(b'{"prompt_tokens":97,"completion_tokens":1,"prompt_tokens_details":%s}' % details))


@pytest.mark.parametrize(
    ("prefix_caching", "cached", "proof", "flags"),
    [
        (True, 96, Proof.OK, []),
        (None, 96, Proof.OK, []),
        (True, None, Proof.DETAILS_OFF, [DETAILS_FLAG]),
        (None, None, Proof.DETAILS_OFF, [DETAILS_FLAG]),
        (False, 0, Proof.CACHING_OFF, [CACHING_FLAG]),
        (False, None, Proof.CACHING_OFF, [CACHING_FLAG, DETAILS_FLAG]),
        (True, 0, Proof.NOTHING_KEPT, []),
        (None, 0, Proof.NOTHING_KEPT, [CACHING_FLAG]),
    ],
)
def test_a_verdict_names_the_flags_that_are_missing(
    prefix_caching: bool | None, cached: int | None, proof: Proof, flags: list[str]
) -> None:
    verdict = judge(usage(None if cached is None else 0), usage(cached), PodFacts(prefix_caching=prefix_caching))
    assert verdict.proof is proof
    assert [flag for flag in (CACHING_FLAG, DETAILS_FLAG) if flag in verdict.reason] == flags


def test_an_answer_without_usage_is_no_proof() -> None:
    assert judge(None, None, PodFacts(prefix_caching=True)).proof is Proof.DETAILS_OFF
