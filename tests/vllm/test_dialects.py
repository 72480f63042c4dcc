"""The official `openai` (Responses) and `anthropic` clients against real pods through the gateway: three turns,
streamed and not, with tools; the client gets what a plain pod says."""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import msgspec
import openai
import pytest

from gateway.wire.contract import PREFILL_LEG, Api
from gateway.wire.endpoints import ENDPOINTS
from gateway.wire.fields import parse
from gateway.wire.legs import prefill_body
from tests.vllm.support import (
    JSON_CONTENT,
    MODEL,
    Client,
    Json,
    Reaches,
    VllmCluster,
    WatchedGateway,
    gateway_before,
    until_empty,
    words,
)

pytestmark = pytest.mark.vllm

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
SCHEMA: Json = {"type": "object", "properties": {}, "additionalProperties": False}
A_TOOL: Any = {"name": "look", "description": "d", "input_schema": SCHEMA}
R_TOOL: Any = {"type": "function", "name": "look", "description": "d", "parameters": SCHEMA}
GREEDY: Any = {"extra_body": {"temperature": 0}}
_OWN = re.compile(rb'"(id|item_id|call_id)":"[^"]+"|"(created_at|sequence_number)":\d+')
_COUNTS = re.compile(
    rb'"(cache_creation_input_tokens|cache_read_input_tokens|input_tokens|cached_tokens|cache_write_tokens)":\d+'
)


@pytest.fixture
async def gateway(vllm_cluster: VllmCluster) -> AsyncIterator[WatchedGateway]:
    async with gateway_before(vllm_cluster, "local") as running:
        yield running


def plain(body: bytes) -> bytes:
    """Without ids and times."""
    return _OWN.sub(lambda found: b'"%s":"*"' % (found[1] or found[2]), body)


async def raw(client: Client, whom: Reaches, path: str, body: Json) -> bytes:
    response = await client.http.post(whom.url + path, json=body, headers=JSON_CONTENT)
    assert response.status_code == 200, response.text
    return response.content


def body_of(path: str, *, stream: bool, forced: bool, salt: str) -> Json:
    """A request unlike any other, with a tool that must be called or without."""
    history = [{"role": "user", "content": words(f"dialect {path}", 90)}]
    common: Json = {"model": MODEL, "temperature": 0, "stream": stream, "cache_salt": salt}
    if path == MESSAGES:
        tools: Json = {"tools": [A_TOOL], "tool_choice": {"type": "tool", "name": "look"}} if forced else {}
        return common | {"messages": history, "max_tokens": 24} | tools
    tools = {"tools": [R_TOOL], "tool_choice": {"type": "function", "name": "look"}} if forced else {}
    return common | {"input": history, "max_output_tokens": 24} | tools


@pytest.mark.parametrize("path", [MESSAGES, RESPONSES])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("forced", [False, True])
async def test_the_client_gets_byte_for_byte_what_a_plain_pod_says(
    gateway: WatchedGateway, vllm_cluster: VllmCluster, client: Client, path: str, stream: bool, forced: bool
) -> None:
    """Cold through P and D, then again with everything cached on P: the counts are those of one plain pod, too.

    How many tokens an event holds is the pod's mood, so the events of a stream are compared by their text.
    """
    body = body_of(path, stream=stream, forced=forced, salt=uuid.uuid4().hex)
    expected = [await raw(client, vllm_cluster.plain, path, body) for _ in range(2)]
    got = [await raw(client, gateway, path, body) for _ in range(2)]
    assert [record.route for record in gateway.saw.records] == ["pd", "pd"]
    for ours, theirs in zip(got, expected, strict=True):
        assert b"remote_engine_id" not in ours
        assert counts(ours) == counts(theirs)
        if stream:
            for mine, its in zip(shape(ours), shape(theirs), strict=True):
                assert mine == its
            assert (
                ours.rstrip()
                .rpartition(b"\n\n")[2]
                .startswith(b"event: message_stop\n" if path == MESSAGES else b"event: response.completed\n")
            )
        else:
            assert plain(ours) == plain(theirs)
    assert gateway.saw.faults == []
    await until_empty(client, vllm_cluster.prefill)


def counts(body: bytes) -> list[bytes]:
    return [found[0] for found in _COUNTS.finditer(body)]


def shape(stream: bytes) -> tuple[list[bytes], bytes]:
    """The names of the events, neighbours once, and the last event but one that carries usage."""
    names = [event.partition(b"\n")[0] for event in stream.split(b"\n\n") if event]
    kept = [name for at, name in enumerate(names) if at == 0 or names[at - 1] != name]
    ends = [event for event in stream.split(b"\n\n") if b'"usage":{"input' in event]
    return kept, plain(ends[-1])


async def test_three_turns_with_the_anthropic_client(gateway: WatchedGateway, vllm_cluster: VllmCluster) -> None:
    history: list[Any] = [{"role": "user", "content": words("anthropic", 120)}]
    async with (
        anthropic.AsyncAnthropic(base_url=gateway.url, api_key="none", max_retries=0) as official,
        anthropic.AsyncAnthropic(base_url=vllm_cluster.plain.url, api_key="none", max_retries=0) as alone,
    ):
        for turn, streamed in ((1, False), (2, True), (3, False)):
            asked: Any = {
                "model": MODEL,
                "max_tokens": 24,
                "system": "Be brief.",
                "messages": history,
                **GREEDY,
            }
            right = await alone.messages.create(**asked)
            if streamed:
                async with official.messages.stream(**asked) as stream:
                    answer = await stream.get_final_message()
            else:
                answer = await official.messages.create(**asked)
            assert [block.text for block in answer.content] == [block.text for block in right.content]
            assert answer.stop_reason == right.stop_reason
            assert answer.usage.output_tokens == right.usage.output_tokens
            record = gateway.saw.last
            assert (record.turn, record.route) == (turn, "pd" if turn == 1 else "local")
            if turn > 1:
                assert (answer.usage.cache_read_input_tokens or 0) > 100
            history += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": f"and {turn}?"}]
        counted = await official.messages.count_tokens(model=MODEL, messages=history)
        assert counted == await alone.messages.count_tokens(model=MODEL, messages=history)
    assert gateway.saw.faults == []


async def test_a_tool_loop_with_the_anthropic_client(gateway: WatchedGateway, vllm_cluster: VllmCluster) -> None:
    history: list[Any] = [
        {"role": "user", "content": words("anthropic tools", 60)},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "look", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "a river"}]},
    ]
    asked: Any = {"model": MODEL, "max_tokens": 16, "messages": history, "tools": [A_TOOL], **GREEDY}
    async with (
        anthropic.AsyncAnthropic(base_url=gateway.url, api_key="none", max_retries=0) as official,
        anthropic.AsyncAnthropic(base_url=vllm_cluster.plain.url, api_key="none", max_retries=0) as alone,
    ):
        answer = await official.beta.messages.create(**asked)
        assert answer.content == (await alone.beta.messages.create(**asked)).content
        assert gateway.saw.last.route == "pd"
        with pytest.raises(anthropic.NotFoundError, match="`nobody` does not exist"):
            await official.messages.create(**{**asked, "model": "nobody"})
        with pytest.raises(anthropic.BadRequestError):
            await official.messages.create(**{**asked, "max_tokens": -1})


async def test_three_turns_with_the_responses_client(gateway: WatchedGateway, vllm_cluster: VllmCluster) -> None:
    history: list[Any] = [{"role": "user", "content": words("responses", 120)}]
    async with (
        openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as official,
        openai.AsyncOpenAI(base_url=f"{vllm_cluster.plain.url}/v1", api_key="none", max_retries=0) as alone,
    ):
        for turn, streamed in ((1, True), (2, False), (3, True)):
            asked: Any = {"model": MODEL, "max_output_tokens": 24, "temperature": 0, "input": history}
            right = await alone.responses.create(**asked)
            if streamed:
                events = [event async for event in await official.responses.create(stream=True, **asked)]
                assert events[0].type == "response.created"
                assert events[-1].type == "response.completed"
                answer = events[-1].response
                said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
                assert said == right.output_text
            else:
                answer = await official.responses.create(**asked)
            assert answer.output_text == right.output_text
            assert answer.status == right.status
            record = gateway.saw.last
            assert (record.turn, record.route) == (turn, "pd" if turn == 1 else "local")
            assert answer.usage is not None
            if turn > 1:
                assert answer.usage.input_tokens_details.cached_tokens > 100
            history += [item.model_dump(exclude_none=True) for item in answer.output]
            history.append({"role": "user", "content": f"and {turn}?"})
    assert gateway.saw.faults == []


async def test_a_tool_loop_with_the_responses_client(gateway: WatchedGateway, vllm_cluster: VllmCluster) -> None:
    asked: Any = {"model": MODEL, "max_output_tokens": 60, "temperature": 0, "tools": [R_TOOL]}
    history: list[Any] = [{"role": "user", "content": "hi"}]
    forced: Any = {"type": "function", "name": "look"}
    async with (
        openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as official,
        openai.AsyncOpenAI(base_url=f"{vllm_cluster.plain.url}/v1", api_key="none", max_retries=0) as alone,
    ):
        first = await official.responses.create(input=history, tool_choice=forced, **asked)
        right = await alone.responses.create(input=history, tool_choice=forced, **asked)
        assert [(item.type, getattr(item, "arguments", None)) for item in first.output] == [
            (item.type, getattr(item, "arguments", None)) for item in right.output
        ]
        call = first.output[0].model_dump(exclude_none=True)
        result = {"type": "function_call_output", "call_id": call.get("call_id", "c"), "output": "a river"}
        answer = await official.responses.create(input=[*history, call, result], **asked)
        assert answer.output_text == (await alone.responses.create(input=[*history, call, result], **asked)).output_text
        assert gateway.saw.last.turn == 2
        with pytest.raises(openai.NotFoundError, match="not found"):
            await official.responses.create(input="on", previous_response_id="resp_none", **asked)
        with pytest.raises(openai.NotFoundError, match="not found"):
            await official.responses.retrieve("resp_none")
        with pytest.raises(openai.NotFoundError, match="not found"):
            await official.responses.cancel("resp_none")


LEGS: list[tuple[Api, str, Json]] = [
    (Api.MESSAGES, "stream", {"stream": True}),
    (Api.MESSAGES, "max_tokens", {"max_tokens": 9}),
    (Api.MESSAGES, "stop_sequences", {"stop_sequences": ["e", "a", "i", "s"]}),
    (Api.MESSAGES, "output_config", {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}),
    (Api.MESSAGES, "tool_choice", {"tools": [A_TOOL], "tool_choice": {"type": "any"}}),
    (Api.RESPONSES, "stream", {"stream": True}),
    (Api.RESPONSES, "max_output_tokens", {"max_output_tokens": 9}),
    (Api.RESPONSES, "ignore_eos", {"logit_bias": {"2": 100}}),
    (Api.RESPONSES, "store", {"store": True}),
    (Api.RESPONSES, "stop", {"stop": ["e", "a", "i"]}),
    (Api.RESPONSES, "stop_token_ids", {"stop_token_ids": [5]}),
    (Api.RESPONSES, "structured_outputs", {"structured_outputs": {"choice": ["blue", "green"]}}),
    (Api.RESPONSES, "text", {"text": {"format": {"type": "json_schema", "name": "s", "schema": SCHEMA}}}),
    (Api.RESPONSES, "top_logprobs", {"top_logprobs": 2, "include": ["message.output_text.logprobs"]}),
    (Api.RESPONSES, "include", {"include": ["message.output_text.logprobs"]}),
    (Api.RESPONSES, "enable_response_messages", {"enable_response_messages": True}),
    (Api.RESPONSES, "tool_choice", {"tools": [R_TOOL], "tool_choice": "required"}),
]
"""Per row of the contract a value that would do harm on P."""


def test_every_row_of_the_contract_is_tried() -> None:
    rows = {(api, row.field) for row in PREFILL_LEG for api in row.apis if api in (Api.MESSAGES, Api.RESPONSES)}
    assert {(api, field) for api, field, _ in LEGS} == {row for row in rows if row[1] != "kv_transfer_params"}


@pytest.mark.parametrize(("api", "field", "fields"), LEGS, ids=lambda value: str(value) if len(value) < 30 else "")
async def test_the_leg_fills_p_whatever_the_client_asked(
    vllm_cluster: VllmCluster, client: Client, gateway: WatchedGateway, api: Api, field: str, fields: Json
) -> None:
    path = f"/v1/{api}"
    body = body_of(path, stream=False, forced=False, salt=uuid.uuid4().hex) | fields
    sent = prefill_body(api, parse(msgspec.json.encode(body)))
    response = await client.http.post(vllm_cluster.prefill.url + path, content=sent, headers=JSON_CONTENT)
    assert response.status_code == 200, response.text
    prefilled = ENDPOINTS[path].dialect.read_prefill(response.content)
    assert prefilled.handover is not None
    assert prefilled.finish_reason == "length"
    assert prefilled.usage is not None
    assert prefilled.usage.output_tokens == 1
    got = await raw(client, gateway, path, body)
    expected = await raw(client, vllm_cluster.plain, path, body)
    assert gateway.saw.last.route == "pd"
    assert gateway.saw.faults == []
    if not body["stream"]:
        assert uncounted(got) == uncounted(expected)


def uncounted(body: bytes) -> bytes:
    return _COUNTS.sub(b"*", plain(body))


async def test_claude_code_s_probe_and_a_pods_own_word_for_an_endpoint_it_lacks(
    gateway: WatchedGateway, client: Client
) -> None:
    assert (await client.http.head(gateway.url + "/")).status_code == 200
    response = await client.http.post(f"{gateway.url}/v1/embeddings", json={"model": MODEL, "input": "x"})
    assert response.status_code in (400, 404)
    assert (await client.http.post(f"{gateway.url}/reset_prefix_cache")).status_code == 404
