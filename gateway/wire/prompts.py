"""What a prompt looks like to someone who wants to recognise it next turn.

Rule of this room: digests out, never text kept. A chat prompt becomes one digest per message (`wire.digests` says
what counts); a completions prompt stays bytes, because its next turn is a plain extension.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, overload

import msgspec
import xxhash

from gateway.wire.digests import digest, plain_calls
from gateway.wire.fields import Fields, value_of
from gateway.wire.notes import NO_THOUGHTS, PLAIN, THOUGHT, USER, Note, NoteReader, kept_thoughts, split_messages

REPLY_HEAD_CHARACTERS = 96
"""How many non-white characters of a reply tell two conversations apart that began with the same words."""

THINK, END_OF_THINK = "<think>", "</think>"
"""How models fence their reasoning where the pod has no parser for it."""

_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")


class ReplyHeads(Sequence[bytes | None]):
    """Per message, the digest of its reply head if it is an assistant's, else None. Worked out when it is asked for,
    because of hundreds of messages one or two are looked at.

    answers: per message, whether it is an assistant's. messages: the raw list. read: the head of one raw message.
    places: where each message is in the raw list, if not in its own place.
    """

    def __init__(
        self,
        answers: Sequence[bool],
        messages: msgspec.Raw,
        read: Callable[[msgspec.Raw], bytes],
        places: Sequence[int] | None = None,
    ) -> None:
        self._answers = answers
        self._messages = messages
        self._read = read
        self._places = places
        self._split: list[msgspec.Raw] | None = None
        self._known: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._answers)

    @overload
    def __getitem__(self, index: int) -> bytes | None: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[bytes | None]: ...

    def __getitem__(self, index: int | slice) -> bytes | Sequence[bytes | None] | None:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        if not self._answers[index]:
            return None
        head = self._known.get(index)
        if head is None:
            if self._split is None:
                self._split = split_messages(self._messages)
            place = index if self._places is None else self._places[index]
            head = self._known[index] = self._read(self._split[place])
        return head


class MessagesPrompt(msgspec.Struct, frozen=True):
    """A chat prompt.

    digests: one 16-byte digest per message.
    reply_heads: per message, the digest of its reply head if it is an assistant's, else None.
    answers: per message, whether it is an assistant's.
    thoughts: the messages whose reasoning the client sent along and a template keeps: no user has spoken since.
    """

    digests: tuple[bytes, ...]
    reply_heads: Sequence[bytes | None]
    answers: tuple[bool, ...]
    thoughts: frozenset[int] = NO_THOUGHTS


class TextPrompt(msgspec.Struct, frozen=True):
    """A completions prompt: UTF-8 text, or a token-id list as JSON with a comma in place of the closing bracket."""

    data: bytes
    is_text: bool


Prompt = MessagesPrompt | TextPrompt | None


class _Message(msgspec.Struct):
    """The fields of a message that a chat template can see."""

    role: Any = None
    content: Any = None
    name: Any = None
    tool_call_id: Any = None
    tool_calls: Any = None
    task: Any = None
    tools: Any = None
    reasoning: Any = None
    reasoning_content: Any = None


_NO_MESSAGES = MessagesPrompt((), (), ())

_message_decoder = msgspec.json.Decoder(_Message)


def reply_head(text: str) -> bytes:
    """Digest of the first non-white characters of a reply, and how many they were (9 bytes)."""
    head = "".join(text[: 4 * REPLY_HEAD_CHARACTERS].split())[:REPLY_HEAD_CHARACTERS]
    return xxhash.xxh3_64_digest(head.encode(errors="replace")) + bytes((len(head),))


def message_head(text: str, call: str = "") -> bytes:
    """The head of an assistant's message: of what it says behind its reasoning, else of its first tool call.

    call: name and arguments of that, as they are written.
    """
    said = without_thoughts(text)
    if not call or said[: 4 * REPLY_HEAD_CHARACTERS].strip():
        return reply_head(said)
    return reply_head("\0" + _unescaped(call))


def _unescaped(text: str) -> str:
    """JSON text as a client writes it that keeps letters as they are."""
    if "\\u" not in text:
        return text
    units = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)
    return units.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def without_thoughts(text: str) -> str:
    """The text behind the reasoning that it begins with, if any."""
    trimmed = text.lstrip()
    return trimmed.partition(END_OF_THINK)[2] if trimmed.startswith(THINK) else text


def begins_with_reply(text: str, head: bytes) -> bool:
    """True when the text begins with the reply of that head, white space aside."""
    characters = "".join(text[: 4 * REPLY_HEAD_CHARACTERS].split())[: head[8]]
    return reply_head(characters) == head


def read_messages(fields: Fields) -> MessagesPrompt | None:
    """Read `messages`; None when it is not a list of objects (the pod will say what is wrong with it)."""
    raw = fields.get("messages")
    if raw is None:
        return None
    notes = _reader.read(raw)
    return None if notes is None else prompt_of(notes, raw, _head_of)


def prompt_of(
    notes: list[Note],
    raw: msgspec.Raw,
    read_head: Callable[[msgspec.Raw], bytes],
    places: Sequence[int] | None = None,
) -> MessagesPrompt:
    """A prompt of messages that were read. raw, read_head, places: as `ReplyHeads` wants them."""
    if not notes:
        return _NO_MESSAGES
    digests, answers, marks = zip(*notes, strict=True)
    return MessagesPrompt(digests, ReplyHeads(answers, raw, read_head, places), answers, kept_thoughts(marks))


def read_prompt(fields: Fields) -> TextPrompt | None:
    """Read `prompt` of /v1/completions; None for a batch or anything that is not one prompt."""
    value = value_of(fields, "prompt")
    if isinstance(value, str):
        return TextPrompt(value.encode(), True)
    if isinstance(value, list) and set(map(type, value)) == {int}:
        return TextPrompt(msgspec.json.encode(value)[:-1] + b",", False)
    return None


def _note(message: _Message) -> Note:
    role, calls = message.role, message.tool_calls
    if calls is not None:
        calls = plain_calls(calls)
    found = digest(role, message.content, message.name, message.tool_call_id, calls, message.task, message.tools)
    if role == "assistant":
        return found, True, THOUGHT if message.reasoning or message.reasoning_content else PLAIN
    return found, False, USER if role == "user" else PLAIN


_reader = NoteReader(_Message, _note)


def _head_of(raw: msgspec.Raw) -> bytes:
    message = _message_decoder.decode(raw)
    return message_head(text_of(message.content), _first_call(message.tool_calls))


def _first_call(calls: object) -> str:
    call = calls[0] if isinstance(calls, list) and calls else None
    function = call.get("function") if isinstance(call, dict) else None
    return f"{function.get('name') or ''}{function.get('arguments') or ''}" if isinstance(function, dict) else ""


def text_of(content: object) -> str:
    """The text of a content, its parts put together."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(part for part in parts if isinstance(part, str))
    return ""
