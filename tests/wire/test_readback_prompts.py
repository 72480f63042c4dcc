"""Which requests may be read back."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.wire.contract import Api
from gateway.wire.fields import Fields, parse
from gateway.wire.readback_prompts import may_read_back

USER = {"role": "user", "content": "hello"}
PICTURE = {"type": "image", "source": {"type": "base64", "data": "AAAA"}}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}


def fields_of(**fields: Any) -> Fields:
    return parse(msgspec.json.encode(fields))


def chat(*messages: Any, **more: Any) -> Fields:
    return fields_of(model="m", messages=list(messages), **more)


@pytest.mark.parametrize(
    "message",
    [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f"}}]},
        {"role": "assistant", "tool_calls": []},
        {"role": "user", "content": []},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"text": "no type is text"}]},
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "42"}]},
        {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "a", "annotations": []}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
    ],
)
def test_messages_of_text_are_text(message: Any) -> None:
    assert may_read_back(Api.CHAT, chat(USER, message))


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_audio", "input_audio": {}}]},
        {"role": "user", "content": [{"type": "video_url", "video_url": {}}]},
        {"role": "user", "content": [{"type": "prompt_embeds", "data": "x"}]},
        {"role": "tool", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
        {"role": "user", "content": [{"type": "text", "text": "a", "image_url": "x"}]},
        {"role": "user", "content": [{"image_url": "x"}]},
        {"role": "user", "content": ["a string"]},
        {"role": "user", "content": {"type": "text", "text": "a"}},
        {"role": "user", "content": 5},
        "a string",
        None,
    ],
)
def test_anything_else_in_a_message_is_not(message: Any) -> None:
    assert not may_read_back(Api.CHAT, chat(USER, message))


@pytest.mark.parametrize("messages", [None, "x", {}, 7])
def test_messages_that_are_no_list_are_not_text(messages: Any) -> None:
    assert not may_read_back(Api.CHAT, fields_of(messages=messages))
    assert not may_read_back(Api.CHAT, {})


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({}, True),
        ({"echo": False, "prompt_embeds": None, "suffix": None}, True),
        ({"echo": True}, False),
        ({"echo": "true"}, False),
        ({"prompt_embeds": "AAAA"}, False),
        ({"suffix": "); }"}, False),
    ],
)
def test_a_completion_is_text_unless_the_prompt_comes_back_or_is_more(more: dict[str, Any], text: bool) -> None:
    assert may_read_back(Api.COMPLETIONS, fields_of(prompt="x", **more)) is text
    assert may_read_back(Api.COMPLETIONS, fields_of(prompt=[1, 2], **more)) is text


def result(content: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "t", "content": content}


@pytest.mark.parametrize(
    "blocks",
    [
        "words",
        [],
        [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}],
        [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "redacted_thinking", "data": "x"}],
        [{"type": "tool_use", "id": "t", "name": "f", "input": {"image_url": "an argument is text"}}],
        [result("42"), result([{"type": "text", "text": "42"}]), result(None), {"type": "tool_result"}],
    ],
)
def test_anthropics_blocks_of_words_and_calls_are_text(blocks: Any) -> None:
    fields = chat(USER, {"role": "assistant", "content": blocks}, system=[{"type": "text", "text": "s"}])
    assert may_read_back(Api.MESSAGES, fields)


@pytest.mark.parametrize(
    "blocks",
    [
        [PICTURE],
        [{"type": "document", "source": {}}],
        [result([{"type": "text", "text": "a"}, PICTURE])],
        [result([{"type": "tool_reference", "tool_name": "f"}])],
        [result(["a string"])],
        [{"type": "tool_addition", "tool": {"name": "f"}}],
        [{"text": "no type"}],
        ["a string"],
        {"type": "text", "text": "a"},
        None,
        5,
    ],
)
def test_any_other_block_is_not(blocks: Any) -> None:
    assert not may_read_back(Api.MESSAGES, chat(USER, {"role": "user", "content": blocks}))


@pytest.mark.parametrize("messages", [None, "x", {}, 7, ["x"]])
def test_anthropics_messages_that_are_no_list_of_objects_are_not_text(messages: Any) -> None:
    assert not may_read_back(Api.MESSAGES, fields_of(messages=messages))
    assert not may_read_back(Api.MESSAGES, {})


@pytest.mark.parametrize(
    ("thinking", "allowed"),
    [
        (None, True),
        ({"type": "adaptive"}, True),
        ({"type": "enabled", "budget_tokens": 1024}, True),
        ({"type": "disabled"}, False),
    ],
)
def test_thinking_that_is_switched_off_is_not_rendered_as_it_is_served(thinking: Any, allowed: bool) -> None:
    assert may_read_back(Api.MESSAGES, chat(USER, thinking=thinking)) is allowed


@pytest.mark.parametrize(
    "given",
    [
        "hello",
        [],
        [USER, {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]}],
        [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}],
        [
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "a", "annotations": [], "logprobs": None}],
            }
        ],
        [CALL, {"type": "function_call_output", "call_id": "c", "output": "rain"}],
        [CALL, {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "rain"}]}],
        [{"type": "custom_tool_call", "name": "f"}, {"type": "custom_tool_call_output", "output": "x"}],
        [{"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}],
    ],
)
def test_items_of_words_and_calls_are_text(given: Any) -> None:
    assert may_read_back(Api.RESPONSES, fields_of(input=given, instructions="s"))


@pytest.mark.parametrize(
    "given",
    [
        None,
        5,
        {},
        ["a string"],
        [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}],
        [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}],
        [CALL, {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image"}]}],
        [{"type": "function_call_output", "call_id": "c"}],
        [{"type": "web_search_call"}],
        [{"type": "item_reference", "id": "x"}],
    ],
)
def test_any_other_item_is_not(given: Any) -> None:
    assert not may_read_back(Api.RESPONSES, fields_of(input=given))
    assert not may_read_back(Api.RESPONSES, {})
