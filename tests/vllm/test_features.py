"""What a client may ask for works through P and D as it does on one plain vLLM: same fields, same bytes, same usage.

Both sides are asked the same with the same `cache_salt`, fresh for every test, so that both are cold together.
"""

from __future__ import annotations

import uuid
from typing import Any

import msgspec
import pytest

from gateway.wire.contract import Api
from tests.vllm.support import (
    PATHS,
    Answer,
    Client,
    Dialogue,
    Json,
    VllmCluster,
    ask,
    gateway_before,
    normalised,
    stream_events,
    words,
)

pytestmark = pytest.mark.vllm

SCHEMA = {
    "type": "object",
    "properties": {"size": {"enum": ["small", "big"]}},
    "required": ["size"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "for a thing", "parameters": SCHEMA, "strict": True}}
    for name in ("paint", "fold")
]
NAMED: Json = {"type": "function", "function": {"name": "fold"}}
JSON_SCHEMA: Json = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
SAMPLED: Json = {"temperature": 0.8, "seed": 11}
END_OF_TEXT, NEW_LINE, SPACE = 2, 201, 223
TERSE: Json = {
    "allowed_token_ids": [END_OF_TEXT, *range(3, 97), NEW_LINE, SPACE, *range(4092, 4096)],
    "logit_bias": {str(NEW_LINE): -100, str(SPACE): -100},
}
"""Printable single characters and tool marks, white space only where the grammar wants it: a model with random
weights would otherwise fill any JSON with blank lines and never close it."""

CHAT_FEATURES: dict[str, Json] = {
    "nothing special": {},
    "tools auto": {"tools": TOOLS},
    "tools required": {"tools": TOOLS, "tool_choice": "required", **TERSE, "max_tokens": 80},
    "tool named": {"tools": TOOLS, "tool_choice": NAMED, **TERSE, "max_tokens": 80},
    "tool named, cut short": {"tools": TOOLS, "tool_choice": NAMED, **TERSE, "max_tokens": 12},
    "tools none": {"tools": TOOLS, "tool_choice": "none"},
    "response_format": {"response_format": JSON_SCHEMA, **TERSE},
    "stop": {"stop": ["e", "o"]},
    "stop, kept": {"stop": ["e", "o"], "include_stop_str_in_output": True},
    "logprobs": {"logprobs": True, "top_logprobs": 2, "max_tokens": 8},
    "max_completion_tokens": {"max_completion_tokens": 7, "max_tokens": 20},
    "min_tokens": {"min_tokens": 12, "stop": [" "], "logit_bias": {str(END_OF_TEXT): 5}},
    "end of text at once": {"logit_bias": {str(END_OF_TEXT): 100}},
    "n": {"n": 2, **SAMPLED, "max_tokens": 12},
    "sampled": SAMPLED,
    "token ids": {"return_token_ids": True, "max_tokens": 6},
    "prompt text": {"return_prompt_text": True, "max_tokens": 6},
}
COMPLETION_FEATURES: dict[str, Json] = {
    "nothing special": {},
    "no max_tokens": {"max_tokens": None},
    "response_format": {"response_format": JSON_SCHEMA, **TERSE},
    "choice": {"structured_outputs": {"choice": ["blue", "green"]}},
    "stop": {"stop": ["e", "o"]},
    "logprobs": {"logprobs": 2, "max_tokens": 8},
    "logprobs as token ids": {"logprobs": 1, "return_tokens_as_token_ids": True, "max_tokens": 8},
    "min_tokens": {"min_tokens": 12, "stop": [" "], "logit_bias": {str(END_OF_TEXT): 5}},
    "n": {"n": 2, **SAMPLED, "max_tokens": 12},
    "echo": {"echo": True, "max_tokens": 6},
    "sampled": SAMPLED,
    "token ids": {"return_token_ids": True, "max_tokens": 6},
}
FEATURES = [
    pytest.param(api, fields, id=f"{api}-{name}")
    for api, features in ((Api.CHAT, CHAT_FEATURES), (Api.COMPLETIONS, COMPLETION_FEATURES))
    for name, fields in features.items()
]


async def both(client: Client, cluster: VllmCluster, gateway: Any, api: Api, body: Json) -> tuple[Answer, Answer]:
    """The gateway's answer and the plain pod's."""
    told = await client.post(gateway, PATHS[api], body)
    right = await client.post(cluster.plain, PATHS[api], body)
    return told, right


@pytest.mark.parametrize(("api", "fields"), FEATURES)
async def test_an_answer_in_one_piece_is_the_plain_pods_byte_for_byte(
    vllm_cluster: VllmCluster, client: Client, api: Api, fields: Json
) -> None:
    body = ask(api, "feature", cache_salt=uuid.uuid4().hex) | fields
    async with gateway_before(vllm_cluster, "pd") as gateway:
        told, right = await both(client, vllm_cluster, gateway, api, body)
        assert right.status == 200, right.raw[:600]
        assert told.status == 200, told.raw[:600]
        assert normalised(told.raw) == normalised(right.raw)
        assert gateway.saw.last.route == ("local" if "n" in fields else "pd")
        assert gateway.saw.faults == []


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
async def test_a_forced_tool_is_called_through_both_legs(
    vllm_cluster: VllmCluster, client: Client, choice: str | Json
) -> None:
    """The examples above do what their names say."""
    body = ask(Api.CHAT, "feature", tools=TOOLS, tool_choice=choice, **TERSE) | {"max_tokens": 120}
    async with gateway_before(vllm_cluster, "pd") as gateway:
        answer = await client.generate(gateway, Api.CHAT, body)
        assert gateway.saw.last.route == "pd"
    function = answer.body["choices"][0]["message"]["tool_calls"][0]["function"]
    assert choice == "required" or function["name"] == "fold"
    assert msgspec.json.decode(function["arguments"])["size"] in ("small", "big")


@pytest.mark.parametrize("api", list(PATHS))
async def test_json_is_complete_through_both_legs(vllm_cluster: VllmCluster, client: Client, api: Api) -> None:
    async with gateway_before(vllm_cluster, "pd") as gateway:
        answer = await client.generate(gateway, api, ask(api, "json", response_format=JSON_SCHEMA, **TERSE))
        assert gateway.saw.last.route == "pd"
    assert answer.finish_reason == "stop"
    assert msgspec.json.decode(answer.text)["size"] in ("small", "big")


@pytest.mark.parametrize(("api", "fields"), FEATURES)
async def test_a_stream_is_the_plain_pods_event_for_event(
    vllm_cluster: VllmCluster, client: Client, api: Api, fields: Json
) -> None:
    body = ask(api, "feature", cache_salt=uuid.uuid4().hex, stream=True) | fields
    async with gateway_before(vllm_cluster, "pd") as gateway:
        told, right = await both(client, vllm_cluster, gateway, api, body)
        assert right.status == 200, right.raw[:600]
        assert told.status == 200, told.raw[:600]
        assert told.headers["content-type"] == right.headers["content-type"]
        assert_same_stream(told, right)
        assert not any("usage" in chunk for chunk in told.chunks)
        assert gateway.saw.faults == []


def assert_same_stream(told: Answer, right: Answer) -> None:
    """Byte for byte, unless a pod put several tokens into one event or n choices in another order: then each choice
    must say the same, in events of the same kinds."""
    ours, theirs = stream_events(normalised(told.raw)), stream_events(normalised(right.raw))
    if [_said(chunk) for chunk in told.chunks] == [_said(chunk) for chunk in right.chunks]:
        assert ours == theirs
    assert ours[-1] == theirs[-1] == b"data: [DONE]"
    for index in _indices(right):
        assert _merged(told, index) == _merged(right, index)
    assert told.usage == right.usage


def _said(chunk: Json) -> list[tuple[int, str]]:
    """Which choices an event speaks for, and what each says."""
    parts = [(choice["index"], choice.get("delta", choice)) for choice in chunk["choices"]]
    words = [(index, [part.get(name) for name in ("text", "content", "tool_calls")]) for index, part in parts]
    return [(index, normalised(msgspec.json.encode(said)).decode()) for index, said in words]


def _indices(answer: Answer) -> list[int]:
    return sorted({choice["index"] for chunk in answer.chunks for choice in chunk["choices"]})


def _merged(answer: Answer, index: int) -> dict[str, Any]:
    """All events of one choice as one: strings and lists joined, keys in the order in which they first came."""
    whole: dict[str, Any] = {}
    for chunk in answer.chunks:
        event = msgspec.json.decode(normalised(msgspec.json.encode(chunk)))
        choices = event.pop("choices")
        for choice in choices:
            if choice["index"] == index:
                _join(whole, {**event, "choice": {**choice, "index": [choice["index"]]}})
    whole["choice"].pop("index")
    return whole


def _join(whole: dict[str, Any], part: dict[str, Any]) -> None:
    for key, value in part.items():
        before = whole.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            _join(before, value)
        elif key == "tool_calls" and before:
            _join_tool_calls(before, value)
        elif before and (isinstance(value, list) or key in ("content", "text", "arguments")):
            whole[key] = before + (value or "")
        elif value is not None or key not in whole:
            whole[key] = value


def _join_tool_calls(before: list[Any], value: list[Any]) -> None:
    for call in value:
        known = next((old for old in before if old["index"] == call["index"]), None)
        if known is None:
            before.append(call)
        else:
            _join(known, call)


@pytest.mark.parametrize("api", list(PATHS))
@pytest.mark.parametrize("how", ["whole", "streamed", "continuous"])
async def test_usage_is_the_plain_pods_cold_and_warm(
    vllm_cluster: VllmCluster, client: Client, api: Api, how: str
) -> None:
    """Twice the same request: the second finds the prompt in P's cache, as it does in the plain pod's."""
    options = {"include_usage": True, **({"continuous_usage_stats": True} if how == "continuous" else {})}
    stream: Json = {} if how == "whole" else {"stream": True, "stream_options": options}
    body = ask(api, f"usage {how}", max_tokens=4, cache_salt=uuid.uuid4().hex, **stream)
    cached = []
    async with gateway_before(vllm_cluster, "pd") as gateway:
        for _ in ("cold", "warm"):
            told, right = await both(client, vllm_cluster, gateway, api, body)
            assert gateway.saw.last.route == "pd"
            if how == "continuous":
                assert told.chunks[-1]["usage"] == right.chunks[-1]["usage"]
                assert told.chunks[-1]["choices"] == []
                assert all("usage" in chunk for chunk in told.chunks)
                cached.append(told.chunks[-1]["usage"]["prompt_tokens_details"]["cached_tokens"])
            else:
                assert told.usage == right.usage
                assert list(told.usage or {}) == list(right.usage or {}), "in the same order"
                cached.append(told.cached_tokens)
            if len(told.chunks) == len(right.chunks):
                assert normalised(told.raw) == normalised(right.raw)
    assert cached[0] == 0
    assert cached[1] >= 64


@pytest.mark.parametrize("api", list(PATHS))
async def test_usage_of_a_local_turn_is_the_plain_pods(vllm_cluster: VllmCluster, client: Client, api: Api) -> None:
    dialogue, salt = Dialogue(api), uuid.uuid4().hex
    async with gateway_before(vllm_cluster, "local") as gateway:
        for turn, route in ((1, "pd"), (2, "local"), (3, "local")):
            dialogue.say(words(f"local usage {turn}", 100))
            told, right = await both(client, vllm_cluster, gateway, api, dialogue.body(cache_salt=salt))
            assert told.usage == right.usage
            assert gateway.saw.last.route == route
            dialogue.hear(right.text)


@pytest.mark.parametrize("api", list(PATHS))
async def test_without_include_usage_the_finish_event_carries_the_fingerprint(
    vllm_cluster: VllmCluster, client: Client, api: Api
) -> None:
    body = ask(api, "fingerprint", max_tokens=4, cache_salt=uuid.uuid4().hex, stream=True)
    async with gateway_before(vllm_cluster, "pd", decode=vllm_cluster.decode[:1]) as gateway:
        for _ in ("not known yet", "known from the first"):
            told, right = await both(client, vllm_cluster, gateway, api, body)
            for answer in (told, right):
                *before, last = [bool(chunk.get("system_fingerprint")) for chunk in answer.chunks]
                assert last
                assert not any(before)
            assert told.chunks[-1]["choices"][0]["finish_reason"] == "length"
            assert told.chunks[-1]["system_fingerprint"].startswith("vllm-0.32")
