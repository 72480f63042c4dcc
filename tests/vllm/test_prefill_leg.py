"""The prefill leg on a real prefill pod: every row of `contract.PREFILL_LEG`, with a value that would do harm.

The derived body must be answered with 200, finish_reason "length", one token and a hand-over, and D must then say
what the plain pod says. `RAW` is what vLLM 0.32 makes of the same body with that one field left as the client sent
it; rows that read HARMLESS are there for older releases, or only save P work and bytes.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from gateway.wire.contract import PREFILL_LEG, Api, Row
from gateway.wire.fields import parse
from gateway.wire.legs import decode_body, prefill_body
from tests.vllm.support import PATHS, Answer, Client, Json, VllmCluster, ask

pytestmark = pytest.mark.vllm


class Raw(enum.StrEnum):
    """What happens on P when the field is not taken care of (vLLM 0.32.0)."""

    REFUSED = "a 400"
    STOPPED = 'finish_reason "stop" (0.32 still hands over, since the length was reached too)'
    STREAMED = "a stream, which carries no hand-over"
    LONGER = "more than one token"
    BIGGER = "a needlessly big answer"
    HARMLESS = "nothing"


SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "yy"]}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "look", "description": "look up", "parameters": SCHEMA}}
FORCED = {"type": "function", "function": {"name": "look"}}
END_OF_TEXT = 2

EXAMPLES: dict[str, tuple[Json | Callable[[Api, Answer], Json], Raw]] = {
    "stream": ({"stream": True}, Raw.STREAMED),
    "max_tokens": ({"max_tokens": 9}, Raw.LONGER),
    "max_completion_tokens": ({"max_completion_tokens": 9}, Raw.LONGER),
    "n": ({"n": 2, "temperature": 0.7, "seed": 3}, Raw.LONGER),
    "ignore_eos": ({"logit_bias": {str(END_OF_TEXT): 100}, "ignore_eos": False}, Raw.STOPPED),
    "stream_options": ({"stream": True, "stream_options": {"include_usage": True}}, Raw.REFUSED),
    "min_tokens": ({"min_tokens": 5}, Raw.REFUSED),
    "stop": (lambda api, first: {"stop": ["@", first.text[0]]}, Raw.STOPPED),
    "stop_token_ids": (lambda api, first: {"stop_token_ids": first.token_ids[:1]}, Raw.STOPPED),
    "response_format": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}},
        Raw.HARMLESS,
    ),
    "structured_outputs": ({"structured_outputs": {"choice": ["blue", "green"]}}, Raw.HARMLESS),
    "guided_json": ({"guided_json": SCHEMA}, Raw.HARMLESS),
    "guided_regex": ({"guided_regex": "[ab]+"}, Raw.HARMLESS),
    "guided_choice": ({"guided_choice": ["a", "b"]}, Raw.HARMLESS),
    "guided_grammar": ({"guided_grammar": 'root ::= "a"'}, Raw.HARMLESS),
    "logprobs": (lambda api, first: {"logprobs": True if api is Api.CHAT else 3}, Raw.BIGGER),
    "top_logprobs": ({"logprobs": True, "top_logprobs": 4}, Raw.REFUSED),
    "logprob_token_ids": (
        lambda api, first: {"logprobs": True if api is Api.CHAT else 1, "logprob_token_ids": [5, 6]},
        Raw.REFUSED,
    ),
    "prompt_logprobs": ({"prompt_logprobs": 1}, Raw.BIGGER),
    "best_of": ({"best_of": 3}, Raw.HARMLESS),
    "thinking_token_budget": ({"thinking_token_budget": 5}, Raw.REFUSED),
    "repetition_detection": (
        {"repetition_detection": {"max_pattern_size": 2, "min_pattern_size": 1, "min_count": 2}},
        Raw.HARMLESS,
    ),
    "return_token_ids": ({"return_token_ids": True}, Raw.BIGGER),
    "return_prompt_text": ({"return_prompt_text": True}, Raw.BIGGER),
    "tool_choice": ({"tools": [TOOL], "tool_choice": FORCED}, Raw.HARMLESS),
    "kv_transfer_params": ({"kv_transfer_params": {"do_remote_prefill": True}}, Raw.HARMLESS),
}

NEEDS_A_REASONING_PARSER = "thinking_token_budget"
"""vLLM refuses it with 400 unless the server has one; these pods do not."""

ROWS = [(row, api) for row in PREFILL_LEG for api in sorted(row.apis) if api in PATHS]
"""The other APIs are in test_dialects.py."""
WITHOUT_THE_HANDOVER = [(row, api) for row, api in ROWS if row.field != "kv_transfer_params"]


def _named(value: object) -> str:
    return value.field if isinstance(value, Row) else str(value)


async def _client_body(client: Client, cluster: VllmCluster, row: Row, api: Api) -> Json:
    """A client's request with that field, unlike any other."""
    assert row.field in EXAMPLES, f"no example for the new row {row.field!r}: add one to EXAMPLES"
    example, _ = EXAMPLES[row.field]
    body = ask(api, f"leg {row.field}", cache_salt=uuid.uuid4().hex)
    if callable(example):
        first = await client.generate(cluster.plain, api, {**body, "max_tokens": 1, "return_token_ids": True})
        example = example(api, first)
    return body | example


async def _leg(client: Client, cluster: VllmCluster, api: Api, body: Json, keep: tuple[str, ...] = ()) -> Answer:
    return await client.post(cluster.prefill, PATHS[api], prefill_body(api, parse(msgspec.json.encode(body)), keep))


async def _through_d(client: Client, cluster: VllmCluster, api: Api, body: Json, leg: Answer) -> Answer:
    fields = parse(msgspec.json.encode(body))
    handover = msgspec.Raw(msgspec.json.encode(leg.handover))
    return await client.post(cluster.decode[0], PATHS[api], decode_body(fields, handover, ask_usage=True))


@pytest.mark.parametrize(("row", "api"), ROWS, ids=_named)
async def test_the_leg_fills_p_and_d_says_what_the_plain_pod_says(
    vllm_cluster: VllmCluster, client: Client, row: Row, api: Api
) -> None:
    body = await _client_body(client, vllm_cluster, row, api)
    leg = await _leg(client, vllm_cluster, api, body)
    assert leg.status == 200, leg.raw[:600]
    assert leg.finish_reason == "length"
    assert leg.usage is not None
    assert leg.usage["completion_tokens"] == 1
    assert leg.handover["do_remote_prefill"] is True
    assert leg.handover["remote_num_tokens"] == leg.usage["prompt_tokens"]

    told = await _through_d(client, vllm_cluster, api, body, leg)
    without_handover = {name: value for name, value in body.items() if name != "kv_transfer_params"}
    right = await client.post(vllm_cluster.plain, PATHS[api], without_handover)
    assert told.status == right.status == (400 if row.field == NEEDS_A_REASONING_PARSER else 200)
    if right.status == 200:
        assert [told.text_of(index) for index in (0, 1)] == [right.text_of(index) for index in (0, 1)]
        assert told.finish_reason == right.finish_reason


@pytest.mark.parametrize(("row", "api"), WITHOUT_THE_HANDOVER, ids=_named)
async def test_what_the_field_does_on_p_when_it_is_left_alone(
    vllm_cluster: VllmCluster, client: Client, row: Row, api: Api
) -> None:
    body = await _client_body(client, vllm_cluster, row, api)
    leg = await _leg(client, vllm_cluster, api, body)
    raw = await _leg(client, vllm_cluster, api, body, keep=(row.field,))
    _, expected = EXAMPLES[row.field]
    assert _judge(raw, leg) == expected, raw.raw[:600]
    for answer in (leg, raw):
        if answer.status == 200 and not answer.streamed:
            await _free(client, vllm_cluster, answer)


def _judge(raw: Answer, leg: Answer) -> Raw:
    if raw.status != 200:
        assert raw.status == 400
        return Raw.REFUSED
    if raw.streamed:
        return Raw.STREAMED
    if raw.finish_reason == "stop":
        assert raw.handover["remote_block_ids"]
        return Raw.STOPPED
    assert raw.usage is not None
    if raw.usage["completion_tokens"] > 1:
        return Raw.LONGER
    return Raw.BIGGER if len(raw.raw) > len(leg.raw) + 50 else Raw.HARMLESS


async def _free(client: Client, cluster: VllmCluster, answer: Answer) -> None:
    """Let D tell P that the blocks are not needed, which D does for a request it rejects (here: unknown model)."""
    body = {"model": "nobody", "prompt": "x", "kv_transfer_params": answer.handover}
    assert (await client.post(cluster.decode[0], PATHS[Api.COMPLETIONS], body)).status == 404


TEMPLATE = """\
{%- for document in documents or [] %}{{ document.title }}: {{ document.text }} {% endfor %}
{%- if tools %}{{ tools | tojson }}{% endif %}
{%- for message in messages %}{{ message.role }}> {{ message.content }} {% endfor %}
{%- if think %}think {{ think }} times {% endif %}
{%- if add_generation_prompt %}assistant> {% endif %}"""

PRE_WRITTEN = [{"role": "user", "content": "Continue this"}, {"role": "assistant", "content": "The river is"}]

SAME_PROMPT: dict[str, tuple[Api, Json]] = {
    "tools, required": (Api.CHAT, {"tools": [TOOL], "tool_choice": "required"}),
    "tools, named": (Api.CHAT, {"tools": [TOOL], "tool_choice": FORCED}),
    "tools, none": (Api.CHAT, {"tools": [TOOL], "tool_choice": "none"}),
    "tools, not said": (Api.CHAT, {"tools": [TOOL]}),
    "tools in a template of the client's": (
        Api.CHAT,
        {"tools": [TOOL], "tool_choice": FORCED, "chat_template": TEMPLATE},
    ),
    "chat_template_kwargs": (Api.CHAT, {"chat_template": TEMPLATE, "chat_template_kwargs": {"think": 3}}),
    "documents": (Api.CHAT, {"chat_template": TEMPLATE, "documents": [{"title": "Rain", "text": "It rains."}]}),
    "reasoning_effort": (Api.CHAT, {"reasoning_effort": "low"}),
    "response_format": (Api.CHAT, {"response_format": {"type": "json_object"}}),
    "continue_final_message": (
        Api.CHAT,
        {"messages": PRE_WRITTEN, "continue_final_message": True, "add_generation_prompt": False},
    ),
    "no generation prompt": (Api.CHAT, {"add_generation_prompt": False}),
    "add_special_tokens": (Api.CHAT, {"add_special_tokens": True}),
    "truncate_prompt_tokens (chat)": (Api.CHAT, {"truncate_prompt_tokens": 50}),
    "truncate_prompt_tokens": (Api.COMPLETIONS, {"truncate_prompt_tokens": 50, "truncation_side": "right"}),
    "no special tokens": (Api.COMPLETIONS, {"add_special_tokens": False}),
    "token ids": (Api.COMPLETIONS, {"prompt": list(range(300, 400))}),
}


@pytest.mark.parametrize("name", list(SAME_PROMPT))
async def test_both_legs_see_the_same_prompt(vllm_cluster: VllmCluster, client: Client, name: str) -> None:
    api, fields = SAME_PROMPT[name]
    body = ask(api, f"same {name}", max_tokens=8, cache_salt=uuid.uuid4().hex) | fields
    leg = parse(prefill_body(api, parse(msgspec.json.encode(body))))
    first = await client.post(
        vllm_cluster.prefill, PATHS[api], msgspec.json.encode({**leg, "return_token_ids": msgspec.Raw(b"true")})
    )
    if "chat_template" in fields and b"--trust-request-chat-template" in first.raw:
        pytest.skip("pods were started without --trust-request-chat-template")
    assert first.status == 200, first.raw[:600]
    second = await client.generate(vllm_cluster.plain, api, {**body, "return_token_ids": True})
    assert first.prompt_token_ids == second.prompt_token_ids
    plain = ask(api, f"same {name}", max_tokens=8, return_token_ids=True)
    untouched = await client.generate(vllm_cluster.plain, api, plain)
    if name not in INVISIBLE:
        assert second.prompt_token_ids != untouched.prompt_token_ids, "the example shapes the prompt"
    await _free(client, vllm_cluster, first)


INVISIBLE = {"reasoning_effort", "response_format", "tools, none", "no special tokens", "add_special_tokens"}
"""What this model's template and tokenizer do not show to the model."""


LEFT_ALONE: dict[str, Any] = {
    "include_stop_str_in_output": True,
    "return_tokens_as_token_ids": True,
    "stream_interval": 3,
    "include_reasoning": False,
    "bad_words": ["the"],
    "allowed_token_ids": [300, 301, 302],
    "logit_bias": {"300": 3},
    "vllm_xargs": {"a": 1},
    "parallel_tool_calls": False,
    "priority": 0,
    "prompt_cache_key": "k",
    "nobody_knows_this": [1],
}
"""Fields that no row lists and that go to P as they came."""


@pytest.mark.parametrize("api", list(PATHS))
@pytest.mark.parametrize("name", list(LEFT_ALONE))
async def test_fields_that_are_not_listed_do_p_no_harm(
    vllm_cluster: VllmCluster, client: Client, api: Api, name: str
) -> None:
    body = ask(api, f"left {name}", cache_salt=uuid.uuid4().hex) | {name: LEFT_ALONE[name]}
    leg = await _leg(client, vllm_cluster, api, body)
    assert leg.status == 200, leg.raw[:600]
    assert leg.finish_reason == "length"
    told = await _through_d(client, vllm_cluster, api, body, leg)
    right = await client.generate(vllm_cluster.plain, api, body)
    assert told.text == right.text
