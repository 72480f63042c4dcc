"""Clients that leave and pods that die: nothing runs on, nothing stays pinned, no conversation is lost.

P keeps a finished prompt's blocks until D has pulled them or the lease ends. D tells P only of what has reached D's
scheduler, so a client that leaves between the two must not take the answering leg along before that.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import httpx
import msgspec
import pytest

from gateway.net.records import Outcome
from gateway.wire.contract import Api
from loadtest.vllm_cpu.pod import Pod
from tests.vllm.support import (
    JSON_CONTENT,
    PATHS,
    PATIENCE_S,
    Client,
    Dialogue,
    Json,
    VllmCluster,
    WatchedGateway,
    ask,
    gateway_before,
    lease_of,
    until,
    until_empty,
    warm_up,
    words,
)

pytestmark = pytest.mark.vllm

ABORTED_WITHIN_S = 2.0
METRICS_LAG_S = 2.0
FREED_WITHIN_S = 3.0
LONG_ANSWER = {"max_tokens": 3000, "ignore_eos": True}


@asynccontextmanager
async def impatient(gateway: WatchedGateway, api: Api, body: Json) -> AsyncIterator[httpx.Response]:
    """A streamed request; leaving the block closes the connection, finished or not."""
    limits = httpx.Limits(max_keepalive_connections=0)
    async with (
        httpx.AsyncClient(timeout=PATIENCE_S, limits=limits, trust_env=False) as http,
        http.stream(
            "POST", gateway.url + PATHS[api], content=msgspec.json.encode(body), headers=JSON_CONTENT
        ) as response,
    ):
        yield response


async def leave_when(gateway: WatchedGateway, api: Api, body: Json, moment: Callable[[], Awaitable[bool]]) -> None:
    """Send a request and close the connection once `moment` is true, before any answer has come."""

    async def stay() -> None:
        async with impatient(gateway, api, body) as response:
            await response.aread()

    async def now() -> bool:
        assert not staying.done(), "the answer came before the client could leave"
        return await moment()

    staying = asyncio.create_task(stay())
    await until(now, PATIENCE_S, "the moment to leave", pause_s=0.001)
    staying.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await staying


async def nothing_runs(client: Client, cluster: VllmCluster) -> bool:
    pods = [cluster.prefill, *cluster.decode]
    return all([await client.metric(pod, "num_requests_running") == 0 for pod in pods])


async def settle(client: Client, cluster: VllmCluster) -> None:
    """Let what earlier tests left behind run out."""
    await until_empty(client, cluster.prefill)
    await until(lambda: nothing_runs(client, cluster), PATIENCE_S, "no pod runs a request")


async def leases_run_out(client: Client, cluster: VllmCluster) -> float:
    return await client.metric(cluster.prefill, "nixl_num_kv_expired_reqs_total")


async def outcome(gateway: WatchedGateway) -> Outcome:
    async def ended() -> bool:
        return bool(gateway.saw.records)

    await until(ended, PATIENCE_S, "the gateway has noticed that the client is gone")
    return gateway.saw.last.outcome


@pytest.mark.parametrize("policy", ["pd", "local"])
@pytest.mark.parametrize("api", list(PATHS))
async def test_a_client_that_leaves_a_stream_stops_both_pods(
    vllm_cluster: VllmCluster, client: Client, policy: str, api: Api
) -> None:
    await settle(client, vllm_cluster)
    dialogue, salt = Dialogue(api), uuid.uuid4().hex
    async with gateway_before(vllm_cluster, policy) as gateway:
        if policy == "local":
            dialogue.say(words("leaves 1", 80))
            dialogue.hear((await client.generate(gateway, api, dialogue.body(cache_salt=salt))).text)
            gateway.saw.records.clear()
        dialogue.say(words("leaves 2", 80))
        async with impatient(gateway, api, dialogue.body(cache_salt=salt, stream=True, **LONG_ANSWER)) as response:
            pieces = response.aiter_bytes()
            for _ in range(3):
                assert await anext(pieces)
            await until(
                lambda: _running(client, vllm_cluster, 1), PATIENCE_S, "the decode pod says that it runs one request"
            )
        await until(
            lambda: nothing_runs(client, vllm_cluster), ABORTED_WITHIN_S + METRICS_LAG_S, "both pods run nothing"
        )
        assert await outcome(gateway) is Outcome.CANCELLED
        assert gateway.saw.last.route == policy
        await until_empty(client, vllm_cluster.prefill, METRICS_LAG_S)


async def _running(client: Client, cluster: VllmCluster, count: int) -> bool:
    return sum([await client.metric(pod, "num_requests_running") for pod in cluster.decode]) == count


async def test_a_client_that_leaves_an_unstreamed_answer_stops_both_pods(
    vllm_cluster: VllmCluster, client: Client
) -> None:
    await settle(client, vllm_cluster)
    body = ask(Api.CHAT, "waits", cache_salt=uuid.uuid4().hex, **LONG_ANSWER)
    async with gateway_before(vllm_cluster, "pd") as gateway:
        request = asyncio.create_task(client.post(gateway, PATHS[Api.CHAT], body))
        await until(lambda: _running(client, vllm_cluster, 1), PATIENCE_S, "the decode pod runs the request")
        request.cancel()
        await until(
            lambda: nothing_runs(client, vllm_cluster), ABORTED_WITHIN_S + METRICS_LAG_S, "both pods run nothing"
        )
        assert await outcome(gateway) is Outcome.CANCELLED


async def test_a_client_that_leaves_during_the_prefill_leg_leaves_no_blocks_on_p(
    vllm_cluster: VllmCluster, client: Client
) -> None:
    await settle(client, vllm_cluster)
    asked = [await client.requests_ended(pod) for pod in vllm_cluster.decode]
    long_prompt = [300 + 7 * place % 3000 for place in range(7500)]
    body = ask(Api.COMPLETIONS, "long", cache_salt=uuid.uuid4().hex, stream=True) | {"prompt": long_prompt}

    async def p_computes() -> bool:
        return await client.metric(vllm_cluster.prefill, "kv_cache_usage_perc") > 0

    async with gateway_before(vllm_cluster, "pd") as gateway:
        await leave_when(gateway, Api.COMPLETIONS, body, p_computes)
        assert await outcome(gateway) is Outcome.CANCELLED
        assert gateway.saw.last.prefill_s is None, "the prefill leg was not over"
        await until_empty(client, vllm_cluster.prefill)
        await until(lambda: nothing_runs(client, vllm_cluster), PATIENCE_S, "no pod runs a request")
    assert [await client.requests_ended(pod) for pod in vllm_cluster.decode] == asked


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_a_client_that_leaves_between_the_legs_frees_p_before_the_lease_ends(
    vllm_cluster: VllmCluster, client: Client, stream: bool
) -> None:
    await settle(client, vllm_cluster)
    expired = await leases_run_out(client, vllm_cluster)
    body = ask(Api.CHAT, "between", 400, cache_salt=uuid.uuid4().hex, stream=stream, **LONG_ANSWER)
    async with gateway_before(vllm_cluster, "pd") as gateway:

        async def p_has_answered() -> bool:
            return bool(gateway.saw.begun) and gateway.saw.begun[-1].prefill_s is not None

        await leave_when(gateway, Api.CHAT, body, p_has_answered)
        assert await outcome(gateway) is Outcome.CANCELLED
        assert gateway.saw.last.ttft_s is None, "D had not said anything yet"
        await until_empty(client, vllm_cluster.prefill, lease_of(vllm_cluster.prefill) / 2)
        await until(lambda: nothing_runs(client, vllm_cluster), PATIENCE_S, "no pod runs a request")
    assert await leases_run_out(client, vllm_cluster) == expired


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"max_tokens": 100_000}, id="the engine's limits"),
        pytest.param({"top_logprobs": 3}, id="fields at odds"),
        pytest.param({"stop": 5}, id="a wrong type"),
    ],
)
async def test_a_request_that_only_d_refuses_leaves_no_blocks_on_p(
    vllm_cluster: VllmCluster, client: Client, fields: Json
) -> None:
    """P does not see the field at fault, works, and pins the blocks; D answers 400."""
    await settle(client, vllm_cluster)
    expired = await leases_run_out(client, vllm_cluster)
    body = ask(Api.CHAT, "refused", cache_salt=uuid.uuid4().hex) | fields
    async with gateway_before(vllm_cluster, "pd") as gateway:
        told = await client.post(gateway, PATHS[Api.CHAT], body)
        right = await client.post(vllm_cluster.plain, PATHS[Api.CHAT], body)
        assert told.status == right.status == 400
        assert told.raw == right.raw
        await until_empty(client, vllm_cluster.prefill, lease_of(vllm_cluster.prefill) / 2)
    assert await leases_run_out(client, vllm_cluster) == expired


@pytest.fixture
def mortal(vllm_cluster: VllmCluster) -> Iterator[list[Pod]]:
    """The decode pods, to be killed at will: those that are down in the end are started again."""
    yield vllm_cluster.decode
    for pod in vllm_cluster.decode:
        if not pod.alive():
            pod.restart()
            warm_up(vllm_cluster.prefill, pod)


async def test_a_killed_decode_pod_loses_no_conversation(
    vllm_cluster: VllmCluster, client: Client, mortal: list[Pod]
) -> None:
    dialogue, salt = Dialogue(Api.CHAT), uuid.uuid4().hex
    async with gateway_before(vllm_cluster, "local") as gateway:
        for turn in (1, 2, 3):
            dialogue.say(words(f"killed {turn}", 120))
            told = await client.generate(gateway, Api.CHAT, dialogue.body(cache_salt=salt, return_token_ids=True))
            right = await client.generate(
                vllm_cluster.plain, Api.CHAT, dialogue.body(cache_salt=uuid.uuid4().hex, return_token_ids=True)
            )
            assert told.token_ids == right.token_ids, f"turn {turn}"
            dialogue.hear(told.text)
            if turn == 1:
                next(pod for pod in mortal if pod.url == gateway.saw.last.answering).kill()
        assert [record.route for record in gateway.saw.records] == ["pd", "pd", "local"]
        first, second, third = (record.answering for record in gateway.saw.records)
        assert first != second == third
        await starts_anew(gateway, vllm_cluster, next(pod for pod in mortal if pod.url == first))


async def test_after_a_restart_nothing_goes_straight_to_a_pod_that_holds_nothing(
    vllm_cluster: VllmCluster, client: Client, mortal: list[Pod]
) -> None:
    """Eight conversations on two decode pods, one killed and started again while they are silent."""
    salt = uuid.uuid4().hex
    talks = [Dialogue(Api.CHAT) for _ in range(8)]
    homes: list[str | None] = []
    async with gateway_before(vllm_cluster, "local") as gateway:

        async def turn(number: int) -> tuple[str | None, str | None]:
            talks[number].say(words(f"silent {number} {len(talks[number].messages)}", 80))
            body = talks[number].body(cache_salt=salt, conversation_id=f"{salt} {number}", return_token_ids=True)
            told = await client.generate(gateway, Api.CHAT, body)
            right = await client.generate(
                vllm_cluster.plain, Api.CHAT, talks[number].body(cache_salt=uuid.uuid4().hex, return_token_ids=True)
            )
            assert told.token_ids == right.token_ids
            talks[number].hear(told.text)
            return gateway.saw.last.route, gateway.saw.last.answering

        for number in range(len(talks)):
            homes.append((await turn(number))[1])
        killed = next(pod for pod in mortal if pod.url == homes[0])
        assert homes.count(killed.url) < len(homes)
        killed.kill()
        await starts_anew(gateway, vllm_cluster, killed)
        for number, home in enumerate(homes):
            assert await turn(number) == ("pd" if home == killed.url else "local", home)
        for number, home in enumerate(homes):
            assert await turn(number) == ("local", home)


async def starts_anew(gateway: WatchedGateway, cluster: VllmCluster, killed: Pod) -> None:
    """Start a killed pod again: the gateway finds another process there, once, whatever tells it so."""
    fleet = gateway.running.gateway.parts.fleet
    seen = {pod.url: fleet.get(pod.url) for pod in cluster.decode}
    before = {url: pod.facts.instance for url, pod in seen.items() if pod is not None}
    await asyncio.to_thread(killed.restart)
    await asyncio.to_thread(warm_up, cluster.prefill, killed)

    async def back() -> bool:
        return killed.url in gateway.saw.up

    await until(back, PATIENCE_S, "the gateway finds the pod up again")
    after = {url: (pod.epoch, pod.facts.instance != before[url]) for url, pod in seen.items() if pod is not None}
    assert after == {pod.url: (1, True) if pod is killed else (0, False) for pod in cluster.decode}
