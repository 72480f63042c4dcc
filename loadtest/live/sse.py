"""What a streamed answer says, from its bytes.

Rule of this room: as little as possible per event. An event with text costs one search; the text's JSON string is kept
as it is written and decoded once, at the end, since strings laid end to end are a string. The time is an argument.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import orjson

MAX_EVENT_BYTES = 4 * 1024 * 1024

_TEXT = re.compile(
    rb'"(content|text|reasoning_content|reasoning|arguments|name)":[ ]?"((?:[^"\\]|\\.)*)"|"finish_reason":[ ]?"'
)
_FINISH = re.compile(rb'"finish_reason":[ ]?"')
_USAGE = re.compile(rb'"usage":[ ]?\{')
_SAID = (b"content", b"text")


class MalformedError(Exception):
    """What came is no stream of events; the message says why."""


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """As the server counts."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None

    @property
    def cached_tokens(self) -> int | None:
        """Of the prompt; None when the server does not say."""
        return None if self.prompt_tokens_details is None else self.prompt_tokens_details.cached_tokens


class _Holder(msgspec.Struct):
    usage: Usage | None = None


_usage_decoder = msgspec.json.Decoder(_Holder)


class EventScanner:
    """Feed it the body of a streamed answer.

    times: when each event with new text arrived (seconds of the caller's clock); several in one read share one.
    finished: a finish reason came. done: [DONE] came. error: an error event came, what it says of its kind.
    """

    __slots__ = ("_keep_text", "_pieces", "_tail", "done", "error", "finished", "times", "usage")

    def __init__(self, *, keep_text: bool) -> None:
        self._keep_text = keep_text
        self._tail = b""
        self._pieces: list[bytes] = []
        self.times: list[float] = []
        self.usage: Usage | None = None
        self.finished = False
        self.done = False
        self.error: str | None = None

    def feed(self, data: bytes, now_s: float) -> None:
        """Take the next bytes. Raises MalformedError."""
        if self._tail:
            data = self._tail + data
        if b"\r\n" in data:
            data = data.replace(b"\r\n", b"\n")
        end = data.rfind(b"\n\n")
        if end < 0:
            if len(data) > MAX_EVENT_BYTES:
                raise MalformedError("an event without an end")
            self._tail = data
            return
        self._tail = data[end + 2 :]
        for event in data[:end].split(b"\n\n"):
            self._event(event, now_s)

    @property
    def text(self) -> str:
        """All that was said, without reasoning. Raises MalformedError."""
        try:
            said: str = json.loads(b'"%s"' % b"".join(self._pieces), strict=False)
        except ValueError:
            raise MalformedError("the text is no JSON string") from None
        return said.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def _event(self, event: bytes, now_s: float) -> None:
        found = _TEXT.search(event)
        if found is None:
            self._other(event)
            return
        while found is not None and not found[2]:  # an empty string, or a finish reason without text
            self.finished = self.finished or found[1] is None
            found = _TEXT.search(event, found.end())
        if found is not None:
            self.times.append(now_s)
            if self._keep_text and found[1] in _SAID:
                self._pieces.append(found[2])
            if not self.finished and _FINISH.search(event, found.end()):
                self.finished = True
        if b'"usage"' in event:
            self._read_usage(event)
        if event.startswith((b'data: {"error"', b'data:{"error"', b"event: error")):
            self.error = _kind_of(event)

    def _other(self, event: bytes) -> None:
        if event.startswith((b"data: [DONE]", b"data:[DONE]")):
            self.done = True
        elif b'"error"' in event and event.startswith((b'data: {"error"', b'data:{"error"', b"event: error")):
            self.error = _kind_of(event)
        elif b'"usage"' in event:
            self._read_usage(event)
        elif event.startswith((b"data: {", b"data:{")):
            if not event.endswith(b"}"):
                raise MalformedError("an event that is no JSON")
        elif event and not event.startswith((b":", b"event:", b"id:", b"retry:")):
            raise MalformedError("a line that belongs to no event" if event[:5] != b"data:" else "data that is no JSON")

    def _read_usage(self, event: bytes) -> None:
        if _USAGE.search(event) is None:
            return
        try:
            self.usage = _usage_decoder.decode(event.partition(b"data:")[2]).usage
        except msgspec.DecodeError:
            raise MalformedError("usage that cannot be read") from None


def _kind_of(event: bytes) -> str:
    """The type of an error event: never its message, which may quote the prompt."""
    try:
        error: Any = orjson.loads(event.partition(b"data:")[2]).get("error")
    except (orjson.JSONDecodeError, AttributeError):
        return "unreadable"
    kind = error.get("type") if isinstance(error, dict) else None
    return kind if isinstance(kind, str) and re.fullmatch(r"\w{1,40}", kind) else "unnamed"
