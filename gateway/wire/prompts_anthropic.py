"""Prompts of the Anthropic Messages API, as `wire.prompts` has those of chat completions.

Rule of this room: what vLLM turns into a chat prompt counts (`anthropic/serving.py`): not the cache markers, which
move from turn to turn, and not Claude Code's billing line; thinking blocks do not tell two prompts apart.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.wire.digests import BILLING, digest, plain_content
from gateway.wire.fields import Fields, value_of
from gateway.wire.notes import PLAIN, THOUGHT, USER, Note, NoteReader
from gateway.wire.prompts import MessagesPrompt, message_head, prompt_of, text_of

_THINKING = ("thinking", "redacted_thinking")


class _Message(msgspec.Struct):
    role: Any = None
    content: Any = None


_message_decoder = msgspec.json.Decoder(_Message)


def read_anthropic(fields: Fields) -> MessagesPrompt | None:
    """Read `system` and `messages`; None when the messages are no list of objects."""
    raw = fields.get("messages")
    if raw is None:
        return None
    notes = _reader.read(raw)
    if notes is None:
        return None
    system = _system_text(value_of(fields, "system"))
    if not system:
        return prompt_of(notes, raw, _head_of)
    return prompt_of([(digest("system", system), False, PLAIN), *notes], raw, _head_of, range(-1, len(notes)))


def _note(message: _Message) -> Note:
    role, content = message.role, message.content
    found = digest(role, _plain_blocks(content))
    if role == "assistant":
        return found, True, THOUGHT if any(map(_is_thinking, _blocks(content))) else PLAIN
    return found, False, USER if role == "user" and not _is_result(content) else PLAIN


_reader = NoteReader(_Message, _note)


def _system_text(system: object) -> str:
    blocks = [system] if isinstance(system, str) else [text_of([block]) for block in _blocks(system)]
    return "".join(block for block in blocks if not block.startswith(BILLING))


def _blocks(content: object) -> list[Any]:
    return content if isinstance(content, list) else []


def _type_of(block: object) -> object:
    return block.get("type") if isinstance(block, dict) else None


def _is_thinking(block: object) -> bool:
    return _type_of(block) in _THINKING


def _is_result(content: object) -> bool:
    """True for a message that only brings what tools gave: no user has spoken."""
    blocks = _blocks(content)
    return bool(blocks) and all(_type_of(block) == "tool_result" for block in blocks)


def _plain_blocks(content: object) -> object:
    if not isinstance(content, list):
        return content
    return [_plain_block(block) for block in content if not _is_thinking(block)]


def _plain_block(block: object) -> object:
    kind = _type_of(block)
    if not isinstance(block, dict) or kind not in ("tool_use", "tool_result"):
        return block
    if kind == "tool_use":
        return [kind, block.get("id"), block.get("name"), block.get("input")]
    result = plain_content(block.get("content"))
    return [kind, block.get("tool_use_id"), result, block.get("is_error") or None]


def _head_of(raw: msgspec.Raw) -> bytes:
    return head_of_content(_message_decoder.decode(raw).content)


def head_of_content(content: object) -> bytes:
    """The reply head of an assistant's content."""
    call = next((block for block in _blocks(content) if _type_of(block) == "tool_use"), None)
    said = "" if call is None else f"{call.get('name') or ''}{msgspec.json.encode(call.get('input')).decode()}"
    return message_head(text_of([b for b in _blocks(content) if _type_of(b) == "text"] or content), said)
