"""Prompts of the simulated pod against those of the real one: how they are rendered, and ids that are sent along."""

from __future__ import annotations

from typing import Any

import pytest

from loadtest.pod import SimulatedPod
from loadtest.pod.probes import shape_of_answer
from tests.vllm.support import MODEL, Client, Json, VllmCluster

pytestmark = pytest.mark.vllm

HELLO = [{"role": "user", "content": "hello there"}]
RENDERED: dict[str, tuple[str, Json]] = {
    "chat": ("chat/completions", {"messages": HELLO}),
    "limits": ("chat/completions", {"messages": HELLO, "max_tokens": 4, "temperature": 0}),
    "ids": (
        "chat/completions",
        {"messages": HELLO, "kv_transfer_params": {"prompt_token_ids": [300, 301], "do_remote_decode": True}},
    ),
    "completion": ("completions", {"prompt": [300, 301], "seed": 3, "stop": ["x"], "logprobs": 1}),
    "batch": ("completions", {"prompt": ["hello there", "you"], "max_tokens": 4, "stream": True}),
    "unknown model": ("completions", {"prompt": "hello", "model": "other"}),
    "messages": ("messages", {"messages": HELLO, "max_tokens": 4, "temperature": 0}),
    "messages, streamed": (
        "messages",
        {
            "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
            "system": "Be brief.",
            "max_tokens": 16,
            "stop_sequences": ["x"],
            "stream": True,
        },
    ),
    "messages, unknown model": ("messages", {"messages": HELLO, "max_tokens": 4, "model": "other"}),
    "messages without a limit": ("messages", {"messages": HELLO}),
    "response": ("responses", {"input": "hello there", "max_output_tokens": 4, "ignore_eos": True}),
    "response, streamed": ("responses", {"input": HELLO, "instructions": "Be brief.", "stop": ["x"], "stream": True}),
    "response, ids": ("responses", {"input": HELLO, "kv_transfer_params": {"prompt_token_ids": [300, 301]}}),
    "response, unknown model": ("responses", {"input": HELLO, "model": "other"}),
    "response that goes on": ("responses", {"input": HELLO, "previous_response_id": "resp_of_nobody"}),
}


@pytest.mark.parametrize("name", RENDERED)
async def test_render(vllm_cluster: VllmCluster, client: Client, name: str) -> None:
    """Stock pods answer 403; pods with `--enable-scale-out` what the engine would be given."""
    of, body = RENDERED[name]
    path = f"/v1/{of}/render"
    real = await client.post(vllm_cluster.plain, path, {"model": MODEL} | body)
    async with SimulatedPod(model=MODEL, scale_out=real.status != 403) as pod:
        simulated = await client.post(pod, path, {"model": MODEL} | body)
    shapes = [shape_of_answer(answer.status, answer.headers, answer.raw) for answer in (real, simulated)]
    assert shapes[0] == shapes[1]
    if real.status != 200:
        assert real.raw == simulated.raw


SENT_ALONG: dict[str, tuple[Any, Json]] = {
    "good": ([300] * 40, {}),
    "no messages": ([300] * 40, {"messages": []}),
    "empty": ([], {}),
    "negative": ([-1], {}),
    "boolean": ([True], {}),
    "text": ("x", {}),
    "out of vocabulary": ([2_000_000_000], {}),
    "too many": ([300] * 9000, {}),
    "the whole context": ([300] * 8192, {}),
    "echo": ([300] * 40, {"echo": True}),
    "echo and nonsense": ("x", {"echo": True}),
    "null": (None, {}),
}


@pytest.mark.parametrize("name", SENT_ALONG)
@pytest.mark.parametrize("api", ["chat/", ""], ids=["chat", "completions"])
async def test_prompt_ids_sent_along(vllm_cluster: VllmCluster, client: Client, name: str, api: str) -> None:
    ids, more = SENT_ALONG[name]
    body: Json = {
        "model": MODEL,
        "max_tokens": 4,
        "temperature": 0,
        "return_token_ids": True,
        "kv_transfer_params": {"prompt_token_ids": ids},
        "messages": [{"role": "user", "content": "hello there"}],
        **more,
    }
    if not api:
        body["prompt"] = [301, 302]
    said: list[tuple[Any, ...]] = []
    async with SimulatedPod(model=MODEL) as pod:
        for whom in (vllm_cluster.plain, pod):
            answer = await client.post(whom, f"/v1/{api}completions", body)
            taken = answer.status == 200 and answer.prompt_token_ids == ids
            said.append((answer.status, taken, answer.body.get("error")))
    assert said[0] == said[1]
    assert said[0][1] is (api == "chat/" and name in ("good", "no messages"))
