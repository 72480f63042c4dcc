"""Turn 2 and where its KV comes from, in the pods' own numbers.

`local`: the decode pod finds the history in its cache, nothing is transferred, the prefill pod hears nothing.
`pd`: the decode pod pulls what it lacks and no more.

Replies are drawn from words that are one token each, so that the history comes back as the very tokens that the
decode pod holds.
"""

from __future__ import annotations

import math
import uuid
from dataclasses import dataclass
from typing import Any

import pytest

from gateway.wire.contract import Api
from tests.vllm.support import (
    BLOCK_TOKENS,
    MODEL,
    PATHS,
    PATIENCE_S,
    Answer,
    Client,
    Dialogue,
    VllmCluster,
    WatchedGateway,
    gateway_before,
    until,
    words,
)

pytestmark = pytest.mark.vllm

REPLY_TOKENS = 40


@dataclass
class Meter:
    """Bytes that NIXL brought to a decode pod, and requests that the prefill pod has ended."""

    client: Client
    cluster: VllmCluster

    async def transferred(self) -> float:
        return await self.client.metric(self.cluster.decode[0], "nixl_bytes_transferred_sum")

    async def prefilled(self) -> int:
        return await self.client.requests_ended(self.cluster.prefill)


@pytest.fixture
def meter(vllm_cluster: VllmCluster, client: Client) -> Meter:
    return Meter(client, vllm_cluster)


async def one_token_words(client: Client, cluster: VllmCluster) -> list[int]:
    """Ids of tokens that are a space and a whole word: a row of them is tokenised back to itself."""
    text = " the of and to in is that for with not self return name value file path data string object list class type"
    body = {"model": MODEL, "prompt": text, "return_token_strs": True}
    said = (await client.post(cluster.plain, "/tokenize", body)).body
    known = {"Ġ" + word for word in text.split()}
    ids = sorted({token for token, form in zip(said["tokens"], said["token_strs"], strict=True) if form in known})
    assert len(ids) > 10
    return ids


async def turn(client: Client, gateway: WatchedGateway, dialogue: Dialogue, said: str, **fields: Any) -> Answer:
    dialogue.say(words(said, 150 if not dialogue.messages else 30))
    answer = await client.generate(gateway, dialogue.api, dialogue.body(max_tokens=REPLY_TOKENS, **fields))
    dialogue.hear(answer.text)
    return answer


def blocks_after(answer: Answer) -> int:
    """Whole blocks that the pod holds after an answer; the last token was written but never read."""
    assert answer.usage is not None
    return int((answer.usage["total_tokens"] - 1) // BLOCK_TOKENS)


@pytest.mark.parametrize("api", list(PATHS))
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_local_turn_finds_its_history_and_moves_nothing(
    vllm_cluster: VllmCluster, client: Client, meter: Meter, api: Api, stream: bool
) -> None:
    dialogue = Dialogue(api)
    fields = {
        "allowed_token_ids": await one_token_words(client, vllm_cluster),
        "cache_salt": uuid.uuid4().hex,
        **({"stream": True, "stream_options": {"include_usage": True}} if stream else {}),
    }
    async with gateway_before(vllm_cluster, "local", decode=vllm_cluster.decode[:1]) as gateway:
        first = await turn(client, gateway, dialogue, f"{api} {stream} local 1", **fields)
        transferred, prefilled = await meter.transferred(), await meter.prefilled()
        second = await turn(client, gateway, dialogue, f"{api} {stream} local 2", **fields)
        assert gateway.saw.last.route == "local"
    assert second.cached_tokens == blocks_after(first) * BLOCK_TOKENS
    assert first.usage is not None
    assert first.usage["total_tokens"] - second.cached_tokens <= BLOCK_TOKENS, "the history, up to one block"
    assert gateway.saw.last.cached_tokens == second.cached_tokens
    assert await meter.transferred() == transferred
    assert await meter.prefilled() == prefilled


@pytest.mark.parametrize("api", list(PATHS))
async def test_a_turn_through_p_moves_only_the_new_blocks(
    vllm_cluster: VllmCluster, client: Client, meter: Meter, api: Api
) -> None:
    dialogue = Dialogue(api)
    fields = {"allowed_token_ids": await one_token_words(client, vllm_cluster), "cache_salt": uuid.uuid4().hex}
    async with gateway_before(vllm_cluster, "pd", decode=vllm_cluster.decode[:1]) as gateway:
        before = await meter.transferred()
        first = await turn(client, gateway, dialogue, f"{api} pd 1", **fields)
        grown_by_first = await _growth(meter, before)
        prefilled = await meter.prefilled()
        second = await turn(client, gateway, dialogue, f"{api} pd 2", **fields)
        assert gateway.saw.last.route == "pd"
    grown_by_second = await _growth(meter, before + grown_by_first)
    assert first.usage is not None
    assert second.usage is not None
    block_bytes = grown_by_first / math.ceil(first.usage["prompt_tokens"] / BLOCK_TOKENS)
    new_blocks = math.ceil(second.usage["prompt_tokens"] / BLOCK_TOKENS) - blocks_after(first)
    assert grown_by_second <= new_blocks * block_bytes
    assert await meter.prefilled() == prefilled + 1


async def _growth(meter: Meter, before: float) -> float:
    async def grew() -> bool:
        return await meter.transferred() > before

    await until(grew, PATIENCE_S, "the decode pod counts its transfer")
    return await meter.transferred() - before
