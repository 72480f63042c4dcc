"""Readback of Messages and Responses on real pods: P reads what it is told it has, and the answer is right.

As in `test_readback`: the history is put on one decode pod, which is drained; the reference is the plain pod, cold.
These APIs tell no token ids, so texts and counts are compared (other tokens in the prompt make other words).
"""

from __future__ import annotations

import uuid
from typing import Any

import msgspec
import pytest

from gateway.core.pods import Role
from tests.vllm.support import (
    BLOCK_TOKENS,
    JSON_CONTENT,
    MODEL,
    Client,
    Json,
    Reaches,
    VllmCluster,
    gateway_before,
    words,
)
from tests.vllm.test_readback import allow

pytestmark = pytest.mark.vllm

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
BOTH = pytest.mark.parametrize("path", [MESSAGES, RESPONSES])
M_TOOL: Json = {"name": "look", "description": "d", "input_schema": {"type": "object", "properties": {}}}
R_TOOL: Json = {"type": "function", "name": "look", "description": "d", "parameters": {"type": "object"}}


def body_of(path: str, history: list[Json], **more: Any) -> Json:
    body: Json = {"model": MODEL, "temperature": 0, **more}
    if path == MESSAGES:
        return body | {"messages": history, "max_tokens": 24, "system": [{"type": "text", "text": "Be brief."}]}
    return body | {"input": history, "max_output_tokens": 24, "instructions": "Be brief."}


def text_of(path: str, raw: bytes, stream: bool) -> str:
    if stream:
        said = [msgspec.json.decode(event.partition(b"\ndata: ")[2]) for event in raw.split(b"\n\n") if event]
        if path == MESSAGES:
            return "".join(event["delta"]["text"] for event in said if event["type"] == "content_block_delta")
        return "".join(event["delta"] for event in said if event["type"] == "response.output_text.delta")
    whole = msgspec.json.decode(raw)
    if path == MESSAGES:
        return "".join(block["text"] for block in whole["content"])
    return "".join(part["text"] for item in whole["output"] for part in item["content"])


async def said(client: Client, whom: Reaches, path: str, body: Json) -> str:
    response = await client.http.post(whom.url + path, json=body, headers=JSON_CONTENT)
    assert response.status_code == 200, response.text
    return text_of(path, response.content, body.get("stream", False))


def a_loop(path: str) -> list[Json]:
    """A call and its result, as an agent sends them back."""
    if path == RESPONSES:
        call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
        return [call, {"type": "function_call_output", "call_id": "c", "output": words("result", 20)}]
    use = {"type": "tool_use", "id": "c", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": words("result", 20)}]}
    return [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]


@BOTH
@pytest.mark.parametrize("kind", ["whole", "streamed", "edited", "agent"])
async def test_a_moved_conversation_is_answered_as_one_plain_vllm_would(
    vllm_cluster: VllmCluster, client: Client, path: str, kind: str
) -> None:
    salt = uuid.uuid4().hex
    more: Json = {"stream": kind == "streamed"}
    if kind == "agent":
        more["tools"] = [M_TOOL if path == MESSAGES else R_TOOL]
    history: list[Json] = []
    async with gateway_before(vllm_cluster, "local", readback=True) as gateway:
        allow(gateway, Role.PREFILL, False)
        for turn, count in ((1, 220), (2, 60)):
            history.append({"role": "user", "content": words(f"readback {path} {kind} {turn}", count)})
            answer = await said(
                client, gateway, path, body_of(path, history, cache_salt=salt, conversation_id=salt, **more)
            )
            history.append({"role": "assistant", "content": answer})
        assert gateway.saw.last.route == "local"
        home = gateway.saw.last.answering
        allow(gateway, Role.PREFILL, True)
        allow(gateway, Role.DECODE, False, home)
        if kind == "edited":
            history[2]["content"] = words("quite another second question", 60)
        history.append({"role": "user", "content": words(f"readback {path} {kind} 3", 30)})
        if kind == "agent":
            history += a_loop(path)
        answer = await said(
            client, gateway, path, body_of(path, history, cache_salt=salt, conversation_id=salt, **more)
        )
        right = await said(
            client, vllm_cluster.plain, path, body_of(path, history, cache_salt=uuid.uuid4().hex, **more)
        )
        record = gateway.saw.last
    assert answer == right
    assert len(right) > 20
    assert record.answering != home
    assert (record.route, record.holder) == ("readback", home)
    assert record.readback_tokens is not None
    assert record.readback_tokens > 5 * BLOCK_TOKENS
    assert kind == "edited" or gateway.saw.faults == []
    assert (record.prefill_cached_tokens or 0) >= record.readback_tokens, "P read it instead of computing it"
