"""A real pod without a connector as a replica: it serves conversations whole."""

from __future__ import annotations

import pytest

from gateway.wire.contract import Api
from tests.vllm.support import (
    BLOCK_TOKENS,
    PATIENCE_S,
    Client,
    Dialogue,
    VllmCluster,
    gateway_before,
    until,
    words,
)

pytestmark = pytest.mark.vllm


@pytest.mark.parametrize("stream", [False, True])
async def test_a_conversation_stays_on_a_replica_and_finds_its_kv_there(
    vllm_cluster: VllmCluster, client: Client, stream: bool
) -> None:
    replica = vllm_cluster.plain.url
    async with gateway_before(vllm_cluster, "local", replica=[replica]) as gateway:

        async def replica_up() -> bool:
            return replica in gateway.saw.up

        await until(replica_up, PATIENCE_S, "the replica is up")
        for pod in vllm_cluster.decode:
            gateway.running.roster.set_draining(pod.url, True)
        dialogue, known_tokens = Dialogue(Api.CHAT), 0
        for turn in (1, 2, 3):
            dialogue.say(words(f"replica {stream} {turn}", 60))
            body = dialogue.body(stream=stream, stream_options={"include_usage": True} if stream else None)
            answer = await client.generate(gateway, Api.CHAT, body)
            alone = await client.generate(
                vllm_cluster.plain, Api.CHAT, {**body, "cache_salt": f"alone {stream} {turn}"}
            )
            assert answer.text == alone.text
            dialogue.hear(answer.text)
            seen = gateway.saw.last
            assert (seen.route, seen.answering, seen.turn) == ("replica", replica, turn)
            assert (seen.cached_tokens or 0) >= known_tokens
            known_tokens = (seen.prompt_tokens or 0) // BLOCK_TOKENS * BLOCK_TOKENS
