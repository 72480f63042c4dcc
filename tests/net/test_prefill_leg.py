"""The prefill-leg contract through the whole gateway, row by row, on simulated pods.

`tests/vllm/test_prefill_leg.py` does the same on a real prefill pod.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec
import pytest

from gateway.wire import legs
from gateway.wire.contract import PREFILL_LEG, Api, Row, Rule
from gateway.wire.fields import Fields
from tests.net.world import CHAT, COMPLETIONS, LONG, user, world

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}

EXAMPLES: dict[str, dict[str, Any]] = {
    "stream": {"stream": True},
    "max_tokens": {"max_tokens": 9},
    "max_completion_tokens": {"max_completion_tokens": 9},
    "n": {"n": 1},
    "ignore_eos": {"ignore_eos": False},
    "stream_options": {"stream": True, "stream_options": {"include_usage": True}},
    "min_tokens": {"min_tokens": 5},
    "stop": {"stop": ["e", "a"]},
    "stop_token_ids": {"stop_token_ids": [7]},
    "stop_sequences": {"stop_sequences": ["zzz"]},
    "max_output_tokens": {"max_output_tokens": 6},
    "store": {"store": True},
    "text": {"text": {"format": {"type": "json_schema", "name": "s", "schema": SCHEMA}}},
    "output_config": {"output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}}},
    "include": {"include": ["message.output_text.logprobs"]},
    "enable_response_messages": {"enable_response_messages": True},
    "response_format": {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}},
    "structured_outputs": {"structured_outputs": {"choice": ["blue", "green"]}},
    "guided_json": {"guided_json": SCHEMA},
    "guided_regex": {"guided_regex": "[ab]+"},
    "guided_choice": {"guided_choice": ["a", "b"]},
    "guided_grammar": {"guided_grammar": 'root ::= "a"'},
    "logprobs": {"logprobs": 1},
    "top_logprobs": {"logprobs": True, "top_logprobs": 2},
    "logprob_token_ids": {"logprobs": 1, "logprob_token_ids": [5]},
    "prompt_logprobs": {},
    "best_of": {"best_of": 1},
    "thinking_token_budget": {"thinking_token_budget": 5},
    "repetition_detection": {"repetition_detection": {"max_pattern_size": 2, "min_pattern_size": 1, "min_count": 2}},
    "return_token_ids": {"return_token_ids": True},
    "return_prompt_text": {"return_prompt_text": True},
    "tool_choice": {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "look"}}},
    "kv_transfer_params": {"kv_transfer_params": {"do_remote_prefill": True}},
}
"""Values that would do harm on P. A request with prompt_logprobs never gets there (it runs whole)."""

OF_THAT_API = {
    (Api.MESSAGES, "tool_choice"): {
        "tools": [{"name": "look", "input_schema": SCHEMA}],
        "tool_choice": {"type": "tool", "name": "look"},
    },
    (Api.RESPONSES, "tool_choice"): {
        "tools": [{"type": "function", "name": "look", "parameters": SCHEMA}],
        "tool_choice": {"type": "function", "name": "look"},
    },
}
"""The same, in other words."""

ASKED: dict[Api, tuple[str, dict[str, Any], str]] = {
    Api.CHAT: (CHAT, {"messages": [user()]}, "max_tokens"),
    Api.COMPLETIONS: (COMPLETIONS, {"prompt": LONG}, "max_tokens"),
    Api.MESSAGES: ("/v1/messages", {"messages": [user()]}, "max_tokens"),
    Api.RESPONSES: ("/v1/responses", {"input": [user()]}, "max_output_tokens"),
}

ROWS = [(row, api) for row in PREFILL_LEG for api in sorted(row.apis)]


def _named(value: object) -> str:
    return value.field if isinstance(value, Row) else str(value)


@pytest.mark.parametrize(("row", "api"), ROWS, ids=_named)
async def test_p_is_sent_what_the_row_says_and_d_what_the_client_said(row: Row, api: Api) -> None:
    assert row.field in EXAMPLES, f"no example for the new row {row.field!r}: add one"
    example = dict(OF_THAT_API.get((api, row.field), EXAMPLES[row.field]))
    if api is Api.CHAT and "logprobs" in example:
        example["logprobs"] = True
    async with world(prefill=1, decode=1) as w:
        path, prompt, limit = ASKED[api]
        reply = await w.post(path, {"model": "sim", **prompt, limit: 6, **example})
        assert reply.status == 200, reply.body
        record = await w.record(1)
        assert record.route == "pd"
        on_p, on_d = w.prefill[0].requests[-1].body, w.decode[0].requests[-1].body
    _check_p(row, on_p, example)
    if row.field == "store":
        assert on_d["store"] is True
    for name, value in {**prompt, **example}.items():
        if name not in ("kv_transfer_params", "stream_options"):
            assert on_d[name] == value
    for name in ("messages", "prompt", "input"):
        assert on_p.get(name) == on_d.get(name)
    assert on_d["kv_transfer_params"]["do_remote_prefill"] is True
    assert on_d["kv_transfer_params"]["remote_block_ids"]


def _check_p(row: Row, on_p: dict[str, Any], example: dict[str, Any]) -> None:
    if row.field == "kv_transfer_params":
        assert on_p[row.field]["do_remote_decode"] is True
        assert on_p[row.field]["do_remote_prefill"] is False
    elif row.rule is Rule.DROP:
        assert row.field not in on_p
    elif row.field == "output_config":
        assert on_p[row.field] == {"effort": "low"}
    elif row.rule is Rule.NEUTRALISE:
        assert on_p[row.field] in ("auto", {"type": "auto"})
        assert on_p["tools"] == example["tools"]
    else:
        assert row.value is not None
        assert on_p[row.field] == {b"1": 1, b"true": True, b"false": False}[bytes(row.value)]


async def test_a_field_the_operator_keeps_reaches_p_as_it_came() -> None:
    async with world(prefill=1, decode=1, prefill_keep_fields=["response_format"]) as w:
        await w.chat([user()], **EXAMPLES["response_format"])
        assert w.prefill[0].requests[-1].body["response_format"] == EXAMPLES["response_format"]["response_format"]


async def test_legs_that_count_different_prompts_are_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    derive = legs.prefill_body

    def spoilt(api: Api, fields: Fields, keep: Collection[str], ask: msgspec.Raw) -> bytes:
        return derive(api, fields, keep, ask).replace(b"the river,", b"the river and the river,")

    monkeypatch.setattr(legs, "prefill_body", spoilt)
    async with world(prefill=1, decode=1) as w:
        assert (await w.chat([user()])).status == 200
        kind, pod, detail = w.watcher.faults[0]
        assert (kind, pod) == ("prompt_mismatch", w.decode[0].url)
        assert "prompt tokens" in detail
