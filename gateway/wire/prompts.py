"""What a prompt looks like to someone who wants to recognise it next turn.

Rule of this room: digests out, never text kept. A chat prompt becomes one digest per message, insensitive to key
order, white space and escapes; a completions prompt stays bytes, because its next turn is a plain extension.
"""

from __future__ import annotations

from typing import Any

import msgspec
import xxhash

from gateway.wire.fields import Fields, value_of

REPLY_HEAD_CHARACTERS = 96
"""How many non-white characters of a reply tell two conversations apart that began with the same words."""

_sorted_encoder = msgspec.json.Encoder(order="sorted")


class MessagesPrompt(msgspec.Struct, frozen=True):
    """A chat prompt.

    digests: one 16-byte digest per message.
    reply_heads: per message, the digest of its reply head if it is an assistant's, else None.
    """

    digests: tuple[bytes, ...]
    reply_heads: tuple[bytes | None, ...]


class TextPrompt(msgspec.Struct, frozen=True):
    """A completions prompt: UTF-8 text, or a token-id list as JSON with a comma in place of the closing bracket."""

    data: bytes
    is_text: bool


Prompt = MessagesPrompt | TextPrompt | None


def reply_head(text: str) -> bytes:
    """Digest of the first non-white characters of a reply, and how many they were (9 bytes)."""
    head = "".join(text[: 4 * REPLY_HEAD_CHARACTERS].split())[:REPLY_HEAD_CHARACTERS]
    return xxhash.xxh3_64_digest(head.encode()) + bytes((len(head),))


def begins_with_reply(text: str, head: bytes) -> bool:
    """True when the text begins with the reply of that head, white space aside."""
    characters = "".join(text[: 4 * REPLY_HEAD_CHARACTERS].split())[: head[8]]
    return reply_head(characters) == head


def read_messages(fields: Fields) -> MessagesPrompt | None:
    """Read `messages`; None when it is not a list of objects (the pod will say what is wrong with it)."""
    messages = value_of(fields, "messages")
    if not isinstance(messages, list):
        return None
    digests: list[bytes] = []
    heads: list[bytes | None] = []
    for message in messages:
        if not isinstance(message, dict):
            return None
        role, content = message.get("role"), message.get("content")
        digests.append(_message_digest(message, role, content))
        heads.append(reply_head(_text_of(content)) if role == "assistant" else None)
    return MessagesPrompt(tuple(digests), tuple(heads))


def read_prompt(fields: Fields) -> TextPrompt | None:
    """Read `prompt` of /v1/completions; None for a batch or anything that is not one prompt."""
    value = value_of(fields, "prompt")
    if isinstance(value, str):
        return TextPrompt(value.encode(), True)
    if isinstance(value, list) and value and all(type(token) is int for token in value):
        return TextPrompt(msgspec.json.encode(value)[:-1] + b",", False)
    return None


def _message_digest(message: dict[str, Any], role: object, content: object) -> bytes:
    if role == "developer":
        role = "system"
    if isinstance(content, str) and isinstance(role, str) and len(message) == 2:
        return xxhash.xxh3_128_digest(role.encode() + b"\0" + content.encode())
    return xxhash.xxh3_128_digest(_sorted_encoder.encode({**message, "role": role}))


def _text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(part for part in parts if isinstance(part, str))
    return ""
