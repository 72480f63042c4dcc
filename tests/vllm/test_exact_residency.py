"""What the gateway believes to be cached against what the pods' own `cached_tokens` say, under eviction.

No prefill pod is configured, so every turn runs whole on a decode pod, which then tells how much it really had.
"""

from __future__ import annotations

import random
import uuid
from typing import Any

import httpx
import pytest

from gateway.core.residency import Source
from gateway.wire.contract import Api
from tests.vllm.conftest import NUM_BLOCKS
from tests.vllm.support import (
    BLOCK_TOKENS,
    MODEL,
    PATIENCE_S,
    Client,
    VllmCluster,
    WatchedGateway,
    gateway_before,
    until,
)

pytestmark = pytest.mark.vllm

TURNS = 200
CONVERSATIONS = 40


async def heard(gateway: WatchedGateway) -> None:
    """Wait until the views of all pods are complete."""
    parts = gateway.running.gateway.parts

    async def complete() -> bool:
        caches = [parts.residency.cache(pod) for pod in parts.fleet]
        return all(cache.views and all(view.complete for view in cache.views.values()) for cache in caches)

    await until(complete, PATIENCE_S, "all views are complete", pause_s=0.01)


async def test_the_exact_view_is_what_the_pod_says_on_every_turn(
    vllm_cluster: VllmCluster, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(42)
    salt = uuid.uuid4().hex
    prompts: list[list[int]] = []
    async with httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False) as http:
        for pod in vllm_cluster.decode:  # events are flushed by a scheduler step, so that views begin complete
            body = {"model": MODEL, "prompt": [5] * 40, "max_tokens": 1, "cache_salt": salt}
            (await http.post(pod.url + "/v1/completions", json=body)).raise_for_status()
    shared = [rng.randrange(300, 4000) for _ in range(100)]
    async with gateway_before(vllm_cluster, "local", prefill=[], conversations__max=1000) as gateway:
        await heard(gateway)
        for _ in range(TURNS):
            if len(prompts) < CONVERSATIONS and rng.random() < 0.4:
                prompts.append([*shared, *(rng.randrange(300, 4000) for _ in range(rng.randrange(200, 900)))])
                number = len(prompts) - 1
            else:
                number = rng.randrange(len(prompts))
                prompts[number].extend(rng.randrange(300, 4000) for _ in range(rng.randrange(1, 80)))
            request: dict[str, Any] = {
                "model": MODEL,
                "prompt": prompts[number],
                "max_tokens": rng.randrange(1, 40),
                "temperature": 0,
                "cache_salt": salt,
                "return_token_ids": True,
                "conversation_id": f"exact {salt} {number}",
            }
            answer = await client.generate(gateway, Api.COMPLETIONS, request)
            prompts[number].extend(answer.token_ids)
        records = gateway.saw.records
        residency = gateway.running.gateway.parts.residency
        accuracy = [residency.cache(pod).accuracy for pod in gateway.running.gateway.parts.fleet]
        async with httpx.AsyncClient(trust_env=False) as http:
            page = (await http.get(gateway.url + "/admin/residency")).json()
    later = [record for record in records if record.turn is not None and record.turn > 1]
    assert len(later) > TURNS / 2
    wrong = [
        f"turn {record.turn} on {record.answering}: {record.residency[Source.EVENTS]} cached {record.cached_tokens}"
        for record in later
        if abs(record.residency[Source.EVENTS].error_tokens) > BLOCK_TOKENS
    ]
    assert wrong == []
    evicted = [r for r in later if (r.cached_tokens or 0) < (r.prompt_tokens or 0) // 2]
    assert len(evicted) > 10, "the KV space is small enough to evict"
    sums = {source: [0, 0, 0] for source in Source}
    for found in accuracy:
        for source, of_pod in found.items():
            for index, number in enumerate((of_pod.turns, of_pod.exact, of_pod.error_tokens)):
                sums[source][index] += number
    lines = [
        f"{source:7s} turns {turns:4d}  within one block {exact:4d}  mean error {error / max(1, turns):6.1f} tokens"
        for source, (turns, exact, error) in sums.items()
    ]
    with capsys.disabled():
        print(f"\n{NUM_BLOCKS} blocks of {BLOCK_TOKENS}, {len(evicted)} of {len(later)} later turns evicted")  # noqa: T201
        print("\n".join(lines))  # noqa: T201
    assert sums[Source.EVENTS][2] <= sums[Source.LEDGER][2]
    assert len(page["pods"]) == len(vllm_cluster.decode)
