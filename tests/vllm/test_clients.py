"""The official `openai` client, and the small endpoints and errors, in front of real pods."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from gateway.wire.contract import Api
from tests.vllm.support import (
    MODEL,
    PATHS,
    Client,
    Json,
    VllmCluster,
    WatchedGateway,
    ask,
    gateway_before,
    normalised,
    words,
)

pytestmark = pytest.mark.vllm

MESSAGES: list[Any] = [{"role": "user", "content": words("client", 80)}]
PROMPT = words("client", 80)
GREEDY: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 16}


@pytest.fixture
async def gateway(vllm_cluster: VllmCluster) -> AsyncIterator[WatchedGateway]:
    async with gateway_before(vllm_cluster, "pd") as running:
        yield running


@pytest.fixture
async def right(vllm_cluster: VllmCluster, client: Client) -> dict[Api, str]:
    """What the plain pod says to the same questions."""
    asked: dict[Api, Json] = {Api.CHAT: {"messages": MESSAGES}, Api.COMPLETIONS: {"prompt": PROMPT}}
    return {api: (await client.generate(vllm_cluster.plain, api, GREEDY | body)).text for api, body in asked.items()}


async def test_the_async_client(gateway: WatchedGateway, right: dict[Api, str]) -> None:
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as official:
        chat = await official.chat.completions.create(messages=MESSAGES, **GREEDY)
        assert chat.choices[0].message.content == right[Api.CHAT]
        assert chat.usage is not None
        assert chat.usage.completion_tokens == 16

        stream = await official.chat.completions.create(messages=MESSAGES, stream=True, **GREEDY)
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == right[Api.CHAT]
        assert all(chunk.usage is None for chunk in chunks)

        text = await official.completions.create(prompt=PROMPT, **GREEDY)
        assert text.choices[0].text == right[Api.COMPLETIONS]

        pieces = await official.completions.create(
            prompt=PROMPT, stream=True, stream_options={"include_usage": True}, **GREEDY
        )
        events = [event async for event in pieces]
        assert "".join(event.choices[0].text for event in events if event.choices) == right[Api.COMPLETIONS]
        assert events[-1].usage is not None
        assert events[-1].usage.completion_tokens == 16

        models = await official.models.list()
        assert [model.id for model in models.data] == [MODEL]
    assert {record.route for record in gateway.saw.records if record.route} == {"pd"}
    assert gateway.saw.faults == []


async def test_the_sync_client(gateway: WatchedGateway, right: dict[Api, str]) -> None:
    def talk() -> None:
        with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as official:
            chat = official.chat.completions.create(messages=MESSAGES, **GREEDY)
            assert chat.choices[0].message.content == right[Api.CHAT]
            stream = official.chat.completions.create(messages=MESSAGES, stream=True, **GREEDY)
            assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == right[Api.CHAT]
            text = official.completions.create(prompt=PROMPT, **GREEDY)
            assert text.choices[0].text == right[Api.COMPLETIONS]
            pieces = official.completions.create(prompt=PROMPT, stream=True, **GREEDY)
            assert "".join(piece.choices[0].text for piece in pieces) == right[Api.COMPLETIONS]
            assert [model.id for model in official.models.list().data] == [MODEL]

    await asyncio.to_thread(talk)
    assert gateway.saw.faults == []


async def test_the_client_raises_vllms_errors(gateway: WatchedGateway) -> None:
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as official:
        with pytest.raises(openai.NotFoundError, match="`nobody` does not exist"):
            await official.chat.completions.create(messages=MESSAGES, model="nobody")
        with pytest.raises(openai.BadRequestError, match="min_tokens"):
            await official.chat.completions.create(
                messages=MESSAGES, model=MODEL, max_tokens=4, extra_body={"min_tokens": 5}
            )


async def test_a_tool_loop_with_the_official_client(gateway: WatchedGateway) -> None:
    """A call, its result and the next turn: the shapes that the client makes of an assistant's turn go back."""
    tool: Any = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    history: list[Any] = [
        *MESSAGES,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "a river"},
    ]
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as official:
        answer = await official.chat.completions.create(messages=history, tools=[tool], **GREEDY)
    assert answer.choices[0].message.content
    assert gateway.saw.last.route == "pd"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"model": MODEL, "prompt": PROMPT, "return_token_strs": True}),
        ("/tokenize", {"model": MODEL, "messages": MESSAGES}),
        ("/detokenize", {"model": MODEL, "tokens": [300, 400, 500]}),
        ("/detokenize", {"model": MODEL, "tokens": "none"}),
    ],
)
async def test_small_endpoints_answer_as_the_plain_pod_does(
    vllm_cluster: VllmCluster, client: Client, gateway: WatchedGateway, path: str, body: Json
) -> None:
    told, right = await client.post(gateway, path, body), await client.post(vllm_cluster.plain, path, body)
    assert (told.status, told.raw) == (right.status, right.raw)


@pytest.mark.parametrize("path", ["/version", "/v1/models"])
async def test_pages_answer_as_the_plain_pod_does(
    vllm_cluster: VllmCluster, client: Client, gateway: WatchedGateway, path: str
) -> None:
    told = await client.http.get(gateway.url + path)
    right = await client.http.get(vllm_cluster.plain.url + path)
    assert told.status_code == right.status_code == 200
    assert _timeless(told.json()) == _timeless(right.json())


def _timeless(page: Any) -> Any:
    """Without what differs between two starts of one pod."""
    if isinstance(page, dict):
        return {name: _timeless(value) for name, value in page.items() if name not in ("id", "created")}
    return [_timeless(item) for item in page] if isinstance(page, list) else page


REFUSED: dict[str, Json | bytes] = {
    "unknown model": {"model": "nobody"},
    "prompt too long": {"messages": [{"role": "user", "content": "river " * 9000}], "prompt": "river " * 9000},
    "max_tokens too large": {"max_tokens": 100_000},
    "max_tokens below one": {"max_tokens": -1},
    "temperature out of range": {"temperature": -3},
    "temperature no number": {"temperature": "hot"},
    "no prompt": {"messages": None, "prompt": None},
    "n of a greedy request": {"n": 2},
    "unknown tool": {"tools": [], "tool_choice": "auto"},
    "not JSON": b'{"model": "tiny", ',
    "no object": b"[]",
}
NO_TOOLS = (Api.COMPLETIONS, "unknown tool")


@pytest.mark.parametrize(("api", "name"), [(api, name) for api in PATHS for name in REFUSED if (api, name) != NO_TOOLS])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_errors_are_the_plain_pods(
    vllm_cluster: VllmCluster, client: Client, gateway: WatchedGateway, api: Api, name: str, stream: bool
) -> None:
    wrong = REFUSED[name]
    body = wrong if isinstance(wrong, bytes) else ask(api, name, cache_salt=uuid.uuid4().hex, stream=stream) | wrong
    told, right = [await client.post(whom, PATHS[api], body) for whom in (gateway, vllm_cluster.plain)]
    assert (told.status, told.streamed) == (right.status, right.streamed)
    if isinstance(wrong, bytes):
        assert list(told.body["error"]) == list(right.body["error"]), "its own words in vLLM's shape"
        assert told.body["error"]["code"] == right.body["error"]["code"] == 400
    else:
        assert told.raw == right.raw


IMPOSSIBLE: Json = {
    "tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}],
    "tool_choice": "required",
    "allowed_token_ids": list(range(3, 97)),
}
"""The grammar wants a new line where no allowed token has one: the engine fails this request, and only this."""


@pytest.mark.parametrize(
    "stream",
    [
        pytest.param(False, id="whole"),
        pytest.param(True, id="streamed"),
    ],
)
async def test_a_request_that_fails_on_every_pod_fails_as_on_the_plain_pod(
    vllm_cluster: VllmCluster, client: Client, gateway: WatchedGateway, stream: bool
) -> None:
    for _ in range(3):
        body = ask(Api.CHAT, "impossible", cache_salt=uuid.uuid4().hex, stream=stream) | IMPOSSIBLE
        told, right = [
            await client.http.post(whom.url + PATHS[Api.CHAT], json=body) for whom in (gateway, vllm_cluster.plain)
        ]
        assert told.status_code == right.status_code == (200 if stream else 500)
        assert normalised(told.content) == normalised(right.content)
