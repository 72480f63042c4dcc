"""Pull or push: the gateway learns it from the pod, and until it knows does what is right for both."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from gateway.core.pods import Pod
from gateway.net.settings import GatewaySettings
from gateway.wire.handovers import Way
from loadtest.pod.simulated import SimulatedPod
from tests.net.leftovers import clean_world
from tests.net.test_disconnects import eventually
from tests.net.test_faults_handover import ledger
from tests.net.world import CHAT, LONG, World, _lower, user

MARKED = re.compile(r"req-\d-[0-9a-f]{12}")
PUSHING = {"transfer_mode": "push"}


async def ask(w: World, number: int) -> None:
    body = {"model": "sim", "messages": [user(f"{number} {LONG}")], "max_tokens": 4}
    assert (await w.post(CHAT, body, {"X-Request-Id": f"req-{number}"})).status == 200


def ids(pod: SimulatedPod) -> list[str]:
    return [_lower(record.headers)["x-request-id"] for record in pod.requests]


def known(w: World) -> str | None:
    pod: Pod | None = w.gateway.parts.fleet.get(w.prefill[0].url)
    assert pod is not None
    return w.gateway.parts.origins.shown(pod)


async def test_a_pod_of_pull_keeps_the_request_id_from_its_second_hand_over_on() -> None:
    async with clean_world(prefill=1, decode=1, policy="pd") as w:
        assert known(w) is None
        for number in (1, 2, 3):
            await ask(w, number)
        first, *others = ids(w.prefill[0])
        assert MARKED.fullmatch(first), "it might have been one of push"
        assert others == ["req-2", "req-3"]
        assert ids(w.decode[0]) == ids(w.prefill[0])
        assert known(w) == "nixl"


async def test_where_p_pushes_every_hand_over_has_an_id_of_its_own() -> None:
    async with clean_world(prefill=1, decode=1, policy="pd", pod=PUSHING) as w:
        body = {"model": "sim", "messages": [user()], "max_tokens": 4}
        same = {"X-Request-Id": "req-1"}
        replies = await asyncio.gather(*(w.post(CHAT, body, same) for _ in range(8)))
        assert {reply.headers["x-request-id"] for reply in replies} == {"req-1"}
        seen = ids(w.prefill[0])
        assert len(set(seen)) == 8
        assert all(MARKED.fullmatch(each) for each in seen)
        assert sorted(ids(w.decode[0])) == sorted(seen)
        assert known(w) == "nixl-push"


async def test_a_second_prefill_for_one_request_has_another_id() -> None:
    async with clean_world(prefill=2, decode=2, policy="pd", handover="nixl-push", pod=PUSHING) as w:
        for pod in w.decode:
            pod.fault("refuse_5xx", status=503)
        await ask(w, 1)
        seen = [*ids(w.prefill[0]), *ids(w.prefill[1])]
        assert len(seen) == len(set(seen)) == 2


async def test_nobody_is_asked_to_release_what_p_pushes() -> None:
    async with clean_world(prefill=1, decode=1, policy="pd", pod=PUSHING) as w:
        w.decode[0].fault("refuse_5xx", status=503)
        await ask(w, 1)
        await w.settled()
        assert [record.outcome for record in w.decode[0].requests] == ["error", "ok"], "no word in between"
        assert ledger(w)[0] == 1, "it waits for the end of the lease"


async def test_a_pod_that_pushes_is_not_asked_to_read_back() -> None:
    async with clean_world(prefill=1, decode=1, policy="readback", readback=True, pod=PUSHING) as w:
        await ask(w, 1)
        pod = w.gateway.parts.fleet.get(w.prefill[0].url)
        assert pod is not None
        assert pod.reads_back is False


async def test_a_restarted_pod_may_hand_over_in_another_way() -> None:
    async with clean_world(prefill=1, decode=1, policy="pd") as w:
        await ask(w, 1)
        await w.kill(w.prefill[0])
        await w.watcher.until(lambda: not w.watcher.pods[w.prefill[0].url])
        await w.restart(w.prefill[0])
        await w.watcher.until(lambda: w.watcher.pods[w.prefill[0].url])
        await eventually(lambda: known(w) is None)


def test_auto_is_the_default_and_needs_nothing() -> None:
    defaults: Any = GatewaySettings()
    assert defaults.handover is Way.AUTO
    assert defaults.mooncake_bootstraps == {}
