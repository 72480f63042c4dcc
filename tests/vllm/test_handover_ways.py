"""The ways to hand over, on real pods: NIXL pull, NIXL push, and Mooncake over TCP with both legs at once.

Each way has pods of its own (one P, one D) for as long as its tests run.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.wire.contract import Api
from loadtest.vllm_cpu import environment
from loadtest.vllm_cpu.cluster import Cluster
from loadtest.vllm_cpu.errors import BuildError
from loadtest.vllm_cpu.pod import Pod
from loadtest.vllm_cpu.spec import Handover, Role
from tests.vllm.support import (
    PATHS,
    PATIENCE_S,
    Client,
    Dialogue,
    VllmCluster,
    WatchedGateway,
    gateway_before,
    until,
    words,
)

pytestmark = pytest.mark.vllm

LEASE_S = 12


@pytest.fixture(scope="module", params=list(Handover))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmCluster]:
    """One prefill and one decode pod that hand over in one way; `plain` is P, which is right about text."""
    try:
        environment.ensure()
    except BuildError as error:
        pytest.skip(f"NO REAL vLLM: {error}")
    way = Handover(request.param)
    options: dict[str, object] = {} if way is Handover.MOONCAKE else {"kv_lease_duration": LEASE_S}
    with Cluster.start(
        prefill=1,
        decode=1,
        directory=tmp_path_factory.mktemp(f"vllm-{way}"),
        handover=way,
        connector_options=options,
        engine_arguments=["--num-gpu-blocks-override", "400"],
    ) as cluster:
        (prefill,), (decode,) = cluster.of_role(Role.PREFILL), cluster.of_role(Role.DECODE)
        yield VllmCluster(prefill, [decode], prefill)


def way_of(pods: VllmCluster) -> Handover:
    return pods.prefill.spec.handover


@asynccontextmanager
async def before(pods: VllmCluster, policy: str = "pd", **flags: Any) -> AsyncIterator[WatchedGateway]:
    """A gateway that is told no more than it needs: push it finds out by itself."""
    if way_of(pods) is Handover.MOONCAKE:
        flags["mooncake_bootstraps"] = [f"{pods.prefill.url}={pods.prefill.spec.bootstrap_endpoint}"]
        flags["handover"] = "mooncake"
    async with gateway_before(pods, policy, **flags) as gateway:
        yield gateway


async def alone(client: Client, pod: Pod, api: Api, body: dict[str, Any]) -> str:
    """What the pod says when nothing of it is cached or handed over."""
    return (await client.generate(pod, api, {**body, "cache_salt": uuid.uuid4().hex})).text


async def used(client: Client, pod: Pod) -> float:
    return await client.metric(pod, "kv_cache_usage_perc")


async def until_nobody_holds_blocks(client: Client, pods: VllmCluster, timeout_s: float = LEASE_S + 8) -> None:
    for pod in (pods.prefill, *pods.decode):

        async def empty(pod: Pod = pod) -> bool:
            return await used(client, pod) == 0

        await until(empty, timeout_s, f"{pod.name} holds no blocks")


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("api", [Api.CHAT, Api.COMPLETIONS])
async def test_three_turns_say_what_one_pod_alone_says(
    pair: VllmCluster, client: Client, api: Api, stream: bool
) -> None:
    salt = uuid.uuid4().hex
    dialogue = Dialogue(api)
    async with before(pair) as gateway:
        for turn in range(3):
            dialogue.say(words(f"{salt} {turn}", 120))
            body = dialogue.body(cache_salt=salt)
            answer = await client.generate(gateway, api, {**body, "stream": stream})
            assert answer.text == await alone(client, pair.plain, api, body)
            assert gateway.saw.last.route == "pd"
            dialogue.hear(answer.text)
    assert not gateway.saw.faults
    await until_nobody_holds_blocks(client, pair)


async def test_many_at_once_under_one_request_id_each_get_their_own_answer(pair: VllmCluster, client: Client) -> None:
    """P finds what it pushes by the request's id, and a client may send one id as often as it likes."""
    salt = uuid.uuid4().hex
    bodies = []
    for number in range(8):
        dialogue = Dialogue(Api.CHAT)
        dialogue.say(words(f"one id {salt} {number}", 60 + 20 * number))
        bodies.append(dialogue.body(cache_salt=salt, max_tokens=12))
    async with before(pair) as gateway:
        answers = await asyncio.gather(
            *(client.generate(gateway, Api.CHAT, body, {"X-Request-Id": "the-same"}) for body in bodies)
        )
    for body, answer in zip(bodies, answers, strict=True):
        assert answer.text == await alone(client, pair.plain, Api.CHAT, body)
    await until_nobody_holds_blocks(client, pair)


async def test_how_the_pod_hands_over_is_found_out_and_shown(pair: VllmCluster, client: Client) -> None:
    dialogue = Dialogue(Api.CHAT)
    dialogue.say(words(uuid.uuid4().hex, 60))
    async with before(pair) as gateway:
        await client.generate(gateway, Api.CHAT, dialogue.body())
        page = (await client.http.get(f"{gateway.url}/admin/pods")).json()["pods"]
    assert {pod["url"]: pod["handover"] for pod in page} == {pair.prefill.url: way_of(pair), pair.decode[0].url: None}


async def test_a_client_that_leaves_early_leaves_no_blocks_behind(pair: VllmCluster, client: Client) -> None:
    async with before(pair) as gateway:
        for number, delay_s in enumerate((0.0, 0.02, 0.1, 0.3, 0.8)):
            dialogue = Dialogue(Api.CHAT)
            dialogue.say(words(f"leaves {uuid.uuid4().hex} {number}", 2500))
            asked = asyncio.create_task(
                client.http.post(gateway.url + PATHS[Api.CHAT], json=dialogue.body(stream=True, max_tokens=200))
            )
            await asyncio.sleep(delay_s)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
        await gateway.running.gateway.parts.finish_background()
        await until_nobody_holds_blocks(client, pair, PATIENCE_S)


async def test_a_request_that_d_refuses_leaves_no_blocks_behind(pair: VllmCluster, client: Client) -> None:
    """D alone finds fault with it: on P the field is not sent."""
    dialogue = Dialogue(Api.CHAT)
    dialogue.say(words(uuid.uuid4().hex, 200))
    async with before(pair) as gateway:
        answer = await client.post(gateway, PATHS[Api.CHAT], dialogue.body(min_tokens=99, max_tokens=9))
        assert answer.status == 400
        await gateway.running.gateway.parts.finish_background()
        await until_nobody_holds_blocks(client, pair)


async def test_a_restarted_p_is_proven_with_d_before_clients_use_the_pair(pair: VllmCluster, client: Client) -> None:
    """Last in this file: what P had cached is gone."""
    salt = uuid.uuid4().hex
    async with before(pair, pairs__probe=True) as gateway:
        dialogue = Dialogue(Api.CHAT)
        dialogue.say(words(f"before {salt}", 100))
        await client.generate(gateway, Api.CHAT, dialogue.body(cache_salt=salt))
        assert gateway.saw.last.route == "pd"
        await asyncio.to_thread(pair.prefill.kill)
        dialogue.say(words(f"meanwhile {salt}", 40))
        answer = await client.generate(gateway, Api.CHAT, dialogue.body(cache_salt=salt))
        assert gateway.saw.last.route == "local"
        dialogue.hear(answer.text)
        await asyncio.to_thread(pair.prefill.restart)

        async def probed() -> bool:
            return bool(gateway.saw.pairs)

        await until(probed, PATIENCE_S, "the pair is probed")
        assert gateway.saw.pairs == [(pair.prefill.url, pair.decode[0].url, True)]
        dialogue.say(words(f"after {salt}", 40))
        body = dialogue.body(cache_salt=salt)
        answer = await client.generate(gateway, Api.CHAT, body)
        assert gateway.saw.last.route == "pd"
        assert answer.text == await alone(client, pair.plain, Api.CHAT, body)
