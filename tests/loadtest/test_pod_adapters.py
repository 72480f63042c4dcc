"""LoRA adapters of a simulated pod: loaded, listed, used, taken out. Words as vLLM 0.32 has them."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from loadtest.pod import SimulatedPod

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


@pytest.fixture
async def pod() -> AsyncIterator[SimulatedPod]:
    async with SimulatedPod(lora_updates=True) as made:
        yield made


async def models(client: Any, pod: SimulatedPod) -> list[tuple[str, str, str | None, int | None]]:
    cards = (await client.get(pod, "/v1/models")).json["data"]
    return [(card["id"], card["root"], card["parent"], card["max_model_len"]) for card in cards]


async def test_an_adapter_is_listed_and_answers_until_it_is_taken_out(client, pod):
    loaded = await client.post(pod, LOAD, {"lora_name": "a", "lora_path": "/adapters/a"})
    assert (loaded.status, loaded.raw) == (200, b"Success: LoRA adapter 'a' added successfully.")
    limit = pod.state.model.max_model_len
    assert await models(client, pod) == [("sim", "sim", None, limit), ("a", "/adapters/a", "sim", None)]
    answer = await client.chat(pod, model="a")
    assert (answer.status, answer.json["model"]) == (200, "a")
    assert (await client.post(pod, "/tokenize", {"model": "a", "prompt": "x"})).status == 200
    taken = await client.post(pod, UNLOAD, {"lora_name": "a"})
    assert (taken.status, taken.raw) == (200, b"Success: LoRA adapter 'a' removed successfully.")
    assert await models(client, pod) == [("sim", "sim", None, limit)]
    refused = await client.chat(pod, model="a")
    assert refused.status == 404
    assert refused.json["error"]["message"] == "The model `a` does not exist. Valid aliases: sim."


async def test_what_an_adapter_has_cached_is_its_own(client, pod):
    await client.post(pod, LOAD, {"lora_name": "a", "lora_path": "x"})
    body = {"prompt": list(range(3000, 3100)), "max_tokens": 1}
    seen = []
    for model in ("sim", "a", "a", "sim"):
        usage = (await client.complete(pod, **body, model=model)).json["usage"]
        seen.append(usage["prompt_tokens_details"]["cached_tokens"])
    assert seen == [0, 0, 96, 96]


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        (LOAD, {"lora_name": "", "lora_path": "x"}, 400, "Both 'lora_name' and 'lora_path' must be provided."),
        (
            LOAD,
            {"lora_name": "sim", "lora_path": "x"},
            400,
            "The lora adapter 'sim' conflicts with a served base model.",
        ),
        (
            LOAD,
            {"lora_name": "a", "lora_path": "x"},
            400,
            "The lora adapter 'a' has already been loaded. If you want to load the adapter in place, set "
            "'load_inplace' to True.",
        ),
        (UNLOAD, {"lora_name": "b"}, 404, "The lora adapter 'b' cannot be found."),
        (UNLOAD, {"lora_name": ""}, 400, "'lora_name' needs to be provided to unload a LoRA adapter."),
    ],
)
async def test_what_cannot_be_done_is_said(client, pod, path, body, status, message):
    await client.post(pod, LOAD, {"lora_name": "a", "lora_path": "x"})
    answer = await client.post(pod, path, body)
    assert (answer.status, answer.json["error"]["message"]) == (status, message)


async def test_in_place_an_adapter_is_replaced(client, pod):
    for path in ("x", "y"):
        body = {"lora_name": "a", "lora_path": path, "load_inplace": True}
        assert (await client.post(pod, LOAD, body)).status == 200
    assert [row[1] for row in await models(client, pod)] == ["sim", "y"]


async def test_a_field_that_is_missing_is_named(client, pod):
    answer = await client.post(pod, LOAD, {"lora_name": "a"})
    assert answer.status == 400
    assert "body.lora_path" in answer.json["error"]["message"]


async def test_a_stock_pod_has_no_such_endpoints(client, plain):
    assert (await client.post(plain, LOAD, {"lora_name": "a", "lora_path": "x"})).status == 404
