"""Requests that run whole on one pod: through the gateway they answer as on the plain pod and reach one pod only.

And why: what vLLM 0.32 makes of them when they are forced through P and D by hand, which is what `seen` in
`contract.WHOLE` says.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from gateway.wire.contract import WHOLE, Api
from gateway.wire.fields import parse
from gateway.wire.legs import decode_body, prefill_body
from tests.vllm.support import PATHS, Answer, Client, Json, VllmCluster, ask, gateway_before, normalised, until_empty

pytestmark = pytest.mark.vllm

FREED_WITHIN_S = 4.0
SAMPLED: Json = {"temperature": 0.8, "seed": 11, "max_tokens": 12}
TWO_OF_A_LENGTH = [list(range(300, 380)), list(range(500, 580))]


@dataclass(frozen=True)
class Example:
    """One request of a kind. `status` is the plain pod's. By hand through P and D: `right` says whether D then answers
    as the plain pod, `freed` whether P's blocks are free at once, None where P hands nothing over."""

    row: str
    api: Api
    fields: Json
    status: int = 200
    right: bool = True
    freed: bool | None = True


EXAMPLES = [
    Example("n", Api.CHAT, {"n": 2, **SAMPLED}),
    Example("n", Api.COMPLETIONS, {"n": 3, **SAMPLED}),
    Example("n", Api.CHAT, {"n": 2}, status=400),
    Example("best_of", Api.CHAT, {"best_of": 3}),
    Example("best_of", Api.COMPLETIONS, {"best_of": 3}),
    Example("use_beam_search", Api.CHAT, {"use_beam_search": True, "n": 2, "max_tokens": 6}, freed=None),
    Example("use_beam_search", Api.COMPLETIONS, {"use_beam_search": True, "n": 2, "max_tokens": 6}, freed=None),
    Example("prompt_logprobs", Api.CHAT, {"prompt_logprobs": 1, "max_tokens": 6}),
    Example("prompt_logprobs", Api.COMPLETIONS, {"prompt_logprobs": 0, "max_tokens": 6}),
    Example("echo with logprobs", Api.COMPLETIONS, {"echo": True, "logprobs": 1, "max_tokens": 6}),
    Example("echo", Api.CHAT, {"echo": True, "logprobs": True, "max_tokens": 6}),
    Example("echo", Api.CHAT, {"echo": True, "max_tokens": 6}),
    Example("prompt_embeds", Api.COMPLETIONS, {"prompt": None, "prompt_embeds": "AAAA"}, status=400, freed=None),
    Example("max_tokens 0", Api.COMPLETIONS, {"max_tokens": 0}, status=400),
    Example("max_tokens 0", Api.COMPLETIONS, {"max_tokens": 0, "echo": True}),
    Example("truncate_prompt_tokens -1", Api.CHAT, {"truncate_prompt_tokens": -1}),
    Example("truncate_prompt_tokens -1", Api.COMPLETIONS, {"truncate_prompt_tokens": -1}),
    Example("batched prompt", Api.COMPLETIONS, {"prompt": ["The river is", "The market is"]}, right=False, freed=False),
    Example("batched prompt", Api.COMPLETIONS, {"prompt": TWO_OF_A_LENGTH}, right=False, freed=False),
]
CASES = [pytest.param(example, id=f"{example.row}-{example.api}-{number}") for number, example in enumerate(EXAMPLES)]


def test_every_row_has_an_example() -> None:
    needed = {(row.name, api) for row in WHOLE for api in row.apis if api in PATHS}
    assert {(example.row, example.api) for example in EXAMPLES} == needed


def test_every_row_says_what_was_seen() -> None:
    assert [row.name for row in WHOLE if not row.seen] == []


def _body(example: Example) -> Json:
    return ask(example.api, f"whole {example.row}", cache_salt=uuid.uuid4().hex) | example.fields


@pytest.mark.parametrize("example", CASES)
async def test_it_answers_as_on_the_plain_pod_and_reaches_one_pod(
    vllm_cluster: VllmCluster, client: Client, example: Example
) -> None:
    body = _body(example)
    right = await client.post(vllm_cluster.plain, PATHS[example.api], body)
    async with gateway_before(vllm_cluster, "pd") as gateway:
        before = await _requests(client, vllm_cluster)
        told = await client.post(gateway, PATHS[example.api], body)
        after = await _requests(client, vllm_cluster)
        assert (told.status, right.status) == (example.status, example.status), right.raw[:600]
        assert normalised(told.raw) == normalised(right.raw)
        assert gateway.saw.faults == []
        assert gateway.saw.last.prefill is None
        assert gateway.saw.last.attempts == 1
    reached = [url for url in after if after[url] > before[url]]
    assert reached == ([] if right.status == 400 else [gateway.saw.last.answering])


async def _requests(client: Client, cluster: VllmCluster) -> dict[str, int]:
    pods = [cluster.prefill, *cluster.decode]
    return {pod.url: await client.requests_ended(pod) for pod in pods}


async def test_a_beam_search_forced_onto_d_forgets_the_blocks_on_p(vllm_cluster: VllmCluster, client: Client) -> None:
    """P itself hands nothing over for a beam search; with a leg that is none, D answers right and never tells P."""
    await until_empty(client, vllm_cluster.prefill)
    body = ask(Api.CHAT, "beam", max_tokens=6)
    leg = await client.post(
        vllm_cluster.prefill, PATHS[Api.CHAT], prefill_body(Api.CHAT, parse(msgspec.json.encode(body)))
    )
    beam = {**body, "use_beam_search": True, "n": 2}
    told = await client.generate(vllm_cluster.decode[0], Api.CHAT, {**beam, "kv_transfer_params": leg.handover})
    right = await client.generate(vllm_cluster.plain, Api.CHAT, beam)
    assert _said(told) == _said(right)
    with pytest.raises(AssertionError, match="not within"):
        await until_empty(client, vllm_cluster.prefill, FREED_WITHIN_S)


@pytest.mark.parametrize("example", CASES)
async def test_what_was_seen_when_it_is_forced_through_both_pods(
    vllm_cluster: VllmCluster, client: Client, example: Example
) -> None:
    """Batches use prompts of one length: with a longer second one the engine of D dies (an assertion in NIXL's
    `_apply_prefix_caching`: D needs more blocks than it was handed)."""
    await until_empty(client, vllm_cluster.prefill)
    body = _body(example)
    fields = parse(msgspec.json.encode(body))
    leg = await client.post(vllm_cluster.prefill, PATHS[example.api], prefill_body(example.api, fields))
    if example.freed is None:
        assert leg.status == example.status
        assert leg.chunks[0].get("kv_transfer_params") is None
        return
    handover = msgspec.Raw(msgspec.json.encode(leg.handover))
    told = await client.post(vllm_cluster.decode[0], PATHS[example.api], decode_body(fields, handover, ask_usage=False))
    right = await client.post(vllm_cluster.plain, PATHS[example.api], body)
    assert told.status == right.status
    assert (_said(told) == _said(right)) == example.right
    if example.freed:
        await until_empty(client, vllm_cluster.prefill, FREED_WITHIN_S)
    else:
        with pytest.raises(AssertionError, match="not within"):
            await until_empty(client, vllm_cluster.prefill, FREED_WITHIN_S)


def _said(answer: Answer) -> Any:
    """What was said, without usage: D counts what it was handed in its own way."""
    body = msgspec.json.decode(normalised(msgspec.json.encode(answer.body)))
    return {name: value for name, value in body.items() if name not in ("usage", "kv_transfer_params")}
