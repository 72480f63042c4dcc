"""Which prompts may be read back: those that are nothing but text, and that a pod renders as it would answer them.

Rule of this room: what is not known to be text is not. Pods take forwarded token ids for no prompt with anything else
in it (vLLM `renderers/chat_utils.py`, has_non_text_content), and would then read blocks of other tokens than theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gateway.wire.contract import Api
from gateway.wire.fields import Fields, flag_of, is_null, value_of

_TEXT_PARTS = ("text", "input_text", "output_text", "refusal", "thinking")
_PART_KEYS = frozenset({"type", "text", "refusal", "thinking", "cache_control", "annotations", "logprobs"})
_WORDS = ("text", "thinking", "redacted_thinking", "tool_use")
"""Blocks of Anthropic's that vLLM turns into text, reasoning, calls, or nothing (`anthropic/serving.py`)."""

_CALLS = ("function_call", "custom_tool_call", "reasoning")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")


def may_read_back(api: Api, fields: Fields) -> bool:
    """True when the history of that request may come from another pod's cache."""
    return _MAY[api](fields)


def _chat(fields: Fields) -> bool:
    messages = value_of(fields, "messages")
    return isinstance(messages, list) and all(map(_is_message, messages))


def _completion(fields: Fields) -> bool:
    return not flag_of(fields, "echo") and all(is_null(fields.get(name)) for name in ("prompt_embeds", "suffix"))


def _anthropic(fields: Fields) -> bool:
    """Without `thinking: disabled`, which the render endpoint of vLLM 0.32 words otherwise than the pod does where the
    template knows no effort "none" (`_get_disabled_thinking_effort`)."""
    thinking = value_of(fields, "thinking")
    if isinstance(thinking, dict) and thinking.get("type") == "disabled":
        return False
    messages = value_of(fields, "messages")
    return isinstance(messages, list) and all(
        isinstance(message, dict) and _every(message.get("content"), _is_block) for message in messages
    )


def _responses(fields: Fields) -> bool:
    items = value_of(fields, "input")
    return isinstance(items, str) or (isinstance(items, list) and all(map(_is_item, items)))


def _is_message(message: Any) -> bool:
    if not isinstance(message, dict):
        return False
    content = message.get("content")
    return content is None or _every(content, _is_part)


def _every(content: Any, is_text: Callable[[Any], bool]) -> bool:
    return isinstance(content, str) or (isinstance(content, list) and all(map(is_text, content)))


def _is_part(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type", "text") in _TEXT_PARTS and part.keys() <= _PART_KEYS


def _is_block(block: Any) -> bool:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind == "tool_result":
        content = block.get("content")
        return content is None or _every(content, _is_text)
    return kind in _WORDS


def _is_text(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "text"


def _is_item(item: Any) -> bool:
    kind = (item.get("type") or "message") if isinstance(item, dict) else None
    if kind == "message":
        return _is_message(item)
    return kind in _CALLS or (kind in _OUTPUTS and _every(item.get("output"), _is_part))


_MAY: dict[Api, Callable[[Fields], bool]] = {
    Api.CHAT: _chat,
    Api.COMPLETIONS: _completion,
    Api.MESSAGES: _anthropic,
    Api.RESPONSES: _responses,
}
