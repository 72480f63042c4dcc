"""The self-test and the facts, on real pods."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from gateway.wire.contract import Api
from tests.vllm.support import (
    BLOCK_TOKENS,
    MODEL,
    PATIENCE_S,
    Client,
    VllmCluster,
    ask,
    gateway_before,
    until,
)

pytestmark = pytest.mark.vllm


async def test_a_real_decode_pod_passes_its_self_test(vllm_cluster: VllmCluster, client: Client) -> None:
    pods = vllm_cluster.decode
    used = [await client.metric(pod, "kv_cache_usage_perc") for pod in pods]
    async with gateway_before(vllm_cluster, "local", selftest=True) as gateway:
        fleet = gateway.running.gateway.parts.fleet

        async def all_tested() -> bool:
            return all(fleet.get(pod.url).proof != "not tested" for pod in pods)  # type: ignore[union-attr]

        await until(all_tested, PATIENCE_S, "both decode pods are tested")
        shown = {pod["url"]: pod for pod in (await _page(client, gateway))["pods"]}
    for pod in pods:
        assert shown[pod.url]["direct"] is True
        assert shown[pod.url]["why"] == f"ok: {3 * BLOCK_TOKENS} of {3 * BLOCK_TOKENS + 1} tokens were kept"

    async def let_go() -> bool:
        now = [await client.metric(pod, "kv_cache_usage_perc") for pod in pods]
        return all(after <= before for after, before in zip(now, used, strict=True))

    await until(let_go, PATIENCE_S, "no block of the self-test stays pinned")


async def test_the_facts_of_a_real_pod(vllm_cluster: VllmCluster, client: Client) -> None:
    async with gateway_before(vllm_cluster, "local") as gateway:
        shown = {pod["url"]: pod for pod in (await _page(client, gateway))["pods"]}
    for pod in [vllm_cluster.prefill, *vllm_cluster.decode]:
        facts = shown[pod.url]["facts"]
        assert facts["block_size"] == BLOCK_TOKENS
        assert facts["num_blocks"] > 0
        assert facts["prefix_caching"] is True
        assert facts["models"] == [MODEL]
        assert facts["max_model_len"] > 0
        assert float(shown[pod.url]["instance"]) > 1e9, "a start time"
        assert shown[pod.url]["version"].startswith("0.32")
    assert len({pod["instance"] for pod in shown.values()}) >= 2


async def test_a_real_prefill_pod_names_the_same_engine_in_every_hand_over(
    vllm_cluster: VllmCluster, client: Client
) -> None:
    async with gateway_before(vllm_cluster, "pd", decode=vllm_cluster.decode[:1]) as gateway:
        parts = gateway.running.gateway.parts
        for number in range(2):
            await client.generate(gateway, Api.CHAT, ask(Api.CHAT, f"engine {number}"))
        assert len(parts.engines[vllm_cluster.prefill.url]) == len(str(uuid.uuid4()))
        assert [pod.epoch for pod in parts.fleet] == [0, 0]


async def _page(client: Client, gateway: Any) -> Any:
    return (await client.http.get(f"{gateway.url}/admin/pods")).json()
