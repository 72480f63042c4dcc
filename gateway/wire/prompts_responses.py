"""Prompts of the Responses API, as `wire.prompts` has those of chat completions.

Rule of this room: `instructions` come first, each input item is a message, reasoning items do not tell two prompts
apart. A request that leaves its history to the server (`previous_response_id`, `conversation`) shows no prompt.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.wire.digests import digest, plain_arguments, shorten
from gateway.wire.fields import Fields, string_of, value_of
from gateway.wire.notes import PLAIN, THOUGHT, USER, Note, NoteReader
from gateway.wire.prompts import MessagesPrompt, ReplyHeads, message_head, text_of

_Item = dict[str, Any]

_item_decoder = msgspec.json.Decoder(_Item)


def previous_response(fields: Fields) -> str | None:
    """The id of the answer that this request goes on from."""
    return string_of(fields, "previous_response_id") or None


def conversation_of(fields: Fields) -> str | None:
    """The id of the conversation that the server keeps: a string, or an object with one."""
    value = value_of(fields, "conversation")
    if isinstance(value, dict):
        value = value.get("id")
    return value if isinstance(value, str) and value else None


def read_responses(fields: Fields) -> MessagesPrompt | None:
    """Read `instructions` and `input`; None when that is not the whole prompt, or no input at all."""
    raw = fields.get("input")
    if raw is None or previous_response(fields) or conversation_of(fields):
        return None
    text = string_of(fields, "input") if bytes(memoryview(raw)[:1]) == b'"' else None
    notes = _reader.read(raw) if text is None else [_note({"role": "user", "content": text})]
    try:
        return None if notes is None else _read_notes(fields, raw, notes)
    except RecursionError:
        return None


def _read_notes(fields: Fields, raw: msgspec.Raw, notes: list[Note]) -> MessagesPrompt:
    digests: list[bytes] = []
    answers: list[bool] = []
    places: list[int] = []
    if instructions := value_of(fields, "instructions"):
        digests.append(digest("system", instructions))
        answers.append(False)
        places.append(-1)
    thoughts: set[int] = set()
    has_reasoning = False
    for place, (found, answer, mark) in enumerate(notes):
        if mark == THOUGHT:
            has_reasoning = True
            continue
        if has_reasoning and answer:
            thoughts.add(len(digests))
        elif mark == USER:
            thoughts.clear()
        has_reasoning = False
        digests.append(found)
        answers.append(answer)
        places.append(place)
    heads = ReplyHeads(answers, raw, _head_of, places)
    return MessagesPrompt(tuple(digests), heads, tuple(answers), thoughts=frozenset(thoughts))


def _note(item: _Item) -> Note:
    """Of reasoning there is only the mark: it belongs to the item behind it."""
    if item.get("type") == "reasoning":
        return b"", False, THOUGHT
    return _digest(item), _is_answer(item), USER if item.get("role") == "user" else PLAIN


_reader: NoteReader[_Item] = NoteReader(_Item, _note)


def head_of_output(items: list[_Item]) -> bytes | None:
    """The reply head of an answer's output: of its first item that is no reasoning."""
    return next((_head_of_item(item) for item in items if item.get("type") != "reasoning"), None)


def _is_answer(item: _Item) -> bool:
    """Said by the model: its words and its calls."""
    return item.get("role") == "assistant" or str(item.get("type")).endswith("_call")


def _digest(item: _Item) -> bytes:
    kind = item.get("type") or "message"
    if kind == "message":
        return digest(item.get("role"), item.get("content"))
    if kind in ("function_call", "custom_tool_call"):
        said = plain_arguments(item["arguments"]) if "arguments" in item else item.get("input")
        return digest("assistant", "", item.get("call_id"), item.get("namespace"), item.get("name"), said)
    if kind in ("function_call_output", "custom_tool_call_output"):
        return digest("tool", item.get("output"), item.get("call_id"))
    return digest(kind, "", shorten({name: value for name, value in item.items() if name != "id"}))


def _head_of(raw: msgspec.Raw) -> bytes:
    return _head_of_item(_item_decoder.decode(raw))


def _head_of_item(item: _Item) -> bytes:
    call = f"{item.get('name') or ''}{item.get('arguments') or item.get('input') or ''}"
    return message_head(text_of(item.get("content")), call)
