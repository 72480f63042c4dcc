"""The simulated pod against the real one: same status, headers, key order, nulls, event order and error bodies.

Each probe of `loadtest.pod.probes` is sent to both; what is compared is its shape. A difference is a defect of the
simulator (or news about vLLM): mend `loadtest/pod`, not the probe.
"""

import json
import random
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
import pytest

from loadtest.pod import SimulatedPod
from loadtest.pod.agent_probes import AGENT_PROBES, RESPONSES, shape_of_events
from loadtest.pod.probes import LEG_ONE, PROBES, Probe, shape_of_answer

pytestmark = pytest.mark.vllm
SAME_WORDS = {
    "unknown_model",
    "greedy_n2",
    "json_broken",
    "max_tokens_zero",
    "completion_prompt_too_long",
    "stop_empty",
}
"""Probes whose error message is compared word for word (the model's name apart)."""


@pytest.fixture
async def pods(vllm_cluster: Any) -> AsyncIterator[tuple[dict[str, str], dict[str, str]]]:
    """URLs by place, real and simulated."""
    real = {
        "prefill": vllm_cluster.prefill.url,
        "decode": vllm_cluster.decode[0].url,
        "plain": vllm_cluster.plain.url,
    }
    async with (
        SimulatedPod(role="prefill", block_size=32) as prefill,
        SimulatedPod(role="decode", block_size=32) as decode,
        SimulatedPod(block_size=32) as plain,
    ):
        yield real, {"prefill": prefill.url, "decode": decode.url, "plain": plain.url}


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=120) as found:
        yield found


async def served_model(client: httpx.AsyncClient, urls: Mapping[str, str]) -> str:
    answer = await client.get(urls["plain"] + "/v1/models")
    name: str = answer.json()["data"][0]["id"]
    return name


async def send(client: httpx.AsyncClient, urls: Mapping[str, str], probe: Probe) -> httpx.Response:
    """Send one probe; for a hand-over, leg 1 first."""
    payload = probe.payload(await served_model(client, urls))
    where = probe.where
    if where == "handover":
        body = json.loads(payload)
        leg = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
        limit = "max_output_tokens" if probe.path == RESPONSES else "max_tokens"
        leg |= {limit: 1, "kv_transfer_params": LEG_ONE}
        first = await client.post(urls["prefill"] + probe.path, json=leg)
        body["kv_transfer_params"] = first.json()["kv_transfer_params"]
        payload, where = json.dumps(body).encode(), "decode"
    return await client.request(
        probe.method,
        urls[where] + probe.path,
        content=payload if probe.method == "POST" else None,
        headers={"Content-Type": "application/json", **probe.headers},
    )


def shape(answer: httpx.Response) -> dict[str, Any]:
    if answer.text.startswith("event: "):
        return {"status": answer.status_code, "body": shape_of_events(answer.text)}
    return shape_of_answer(answer.status_code, answer.headers, answer.content)


@pytest.mark.parametrize("probe", [*PROBES, *AGENT_PROBES], ids=lambda probe: probe.name)
async def test_the_simulator_answers_in_the_shape_of_vllm(pods, client, probe):
    real, simulated = pods
    expected, found = await send(client, real, probe), await send(client, simulated, probe)
    assert shape(found) == shape(expected), f"real: {expected.text[:2000]}\nsimulated: {found.text[:2000]}"
    if probe.name in SAME_WORDS:
        name = await served_model(client, real)
        assert found.json()["error"]["message"].replace("sim.", f"{name}.") == expected.json()["error"]["message"]


async def metric_types(client: httpx.AsyncClient, url: str) -> dict[str, str]:
    page = (await client.get(url + "/metrics")).text
    rows = [line.split() for line in page.splitlines() if line.startswith("# TYPE vllm:")]
    return {row[2]: row[3] for row in rows}


@pytest.mark.parametrize("where", ["plain", "decode"])
async def test_every_metric_of_the_simulator_is_one_of_vllms(pods, client, where):
    real, simulated = pods
    expected = await metric_types(client, real[where])
    found = await metric_types(client, simulated[where])
    assert found
    assert {name: expected.get(name) for name in found} == found


async def test_both_count_cached_tokens_by_whole_blocks(pods, client):
    """The second of two equal prompts of 64 tokens: one block of 32, since the last block is always computed."""
    counts = []
    for urls in pods:
        body = {"prompt": [300 + i % 7 for i in range(64)], "max_tokens": 1, "cache_salt": "whole-blocks"}
        for _ in range(2):
            answer = await client.post(urls["plain"] + "/v1/completions", json=body)
        counts.append(answer.json()["usage"]["prompt_tokens_details"])
    assert counts[0] == counts[1]
    assert counts[0]["cached_tokens"] == 32


async def test_a_hand_over_reports_the_prefill_pods_own_hits(pods, client):
    counts = []
    for urls in pods:
        model, seen = await served_model(client, urls), []
        for _ in range(2):
            body = {"model": model, "prompt": [400 + i % 5 for i in range(100)], "max_tokens": 2, "temperature": 0}
            first = await client.post(
                urls["prefill"] + "/v1/completions", json=body | {"max_tokens": 1, "kv_transfer_params": LEG_ONE}
            )
            body["kv_transfer_params"] = first.json()["kv_transfer_params"]
            second = await client.post(urls["decode"] + "/v1/completions", json=body)
            seen.append(second.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
        counts.append(seen[1])
    assert counts == [96, 96], "whole blocks of 32 on the prefill pod"


async def test_kv_of_another_prompt_answers_wrongly_and_poisons_the_decode_pod(pods, client):
    """Nobody compares tokens: 200, a wrong text, and the same wrong KV for whoever comes later."""
    seen = []
    for urls in pods:
        start = random.randrange(1000)
        prompt = [300 + (start + 7 * i) % 3000 for i in range(100)]
        body = {"prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
        leg = body | {"prompt": [prompt[0] + 1, *prompt[1:]], "max_tokens": 1, "kv_transfer_params": LEG_ONE}
        params = (await client.post(urls["prefill"] + "/v1/completions", json=leg)).json()["kv_transfer_params"]
        right, wrong, later = [
            (await client.post(urls[where] + "/v1/completions", json=body | more)).json()["choices"][0]["text"]
            for where, more in (("plain", {}), ("decode", {"kv_transfer_params": params}), ("decode", {}))
        ]
        seen.append((wrong == right, later == right))
    assert seen == [(False, False), (False, False)]


async def test_parameters_can_be_used_twice_while_the_blocks_are_untouched(pods, client):
    seen = []
    for urls in pods:
        start = random.randrange(1000)
        body = {"prompt": [300 + (start + 11 * i) % 3000 for i in range(100)], "max_tokens": 2, "temperature": 0}
        leg = body | {"max_tokens": 1, "kv_transfer_params": LEG_ONE}
        params = (await client.post(urls["prefill"] + "/v1/completions", json=leg)).json()["kv_transfer_params"]
        answers = [
            await client.post(urls["decode"] + "/v1/completions", json=body | {"kv_transfer_params": params})
            for _ in range(2)
        ]
        seen.append([answer.status_code for answer in answers])
    assert seen == [[200, 200], [200, 200]]


async def test_a_stop_string_in_leg_one_costs_the_parameters_unless_the_length_ends_it_too(pods, client):
    seen = []
    for urls in pods:
        body = {"prompt": [300, 301, 302, 303], "max_tokens": 1, "temperature": 0, "ignore_eos": True}
        first = (await client.post(urls["prefill"] + "/v1/completions", json=body)).json()["choices"][0]["text"]
        body |= {"kv_transfer_params": LEG_ONE, "stop": first[0]}
        answers = [
            await client.post(urls["prefill"] + "/v1/completions", json=body | {"max_tokens": limit})
            for limit in (1, 5)
        ]
        seen.append([answer.json()["kv_transfer_params"] is not None for answer in answers])
    assert seen == [[True, False], [True, False]]
