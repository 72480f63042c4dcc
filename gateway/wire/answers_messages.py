"""Answers in the Anthropic Messages API, streamed and not (vLLM 0.32 `anthropic/serving.py`).

Rule of this room: as in `wire.answers` and `wire.sse`. vLLM leaves out what is null here, so a pod's hand-over
parameters are taken out with their name; the counts of a prompt are P's, which are what one plain pod would say.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.wire.answers import PrefillAnswer, WholeAnswer
from gateway.wire.fields import NULL, Fields, given, join
from gateway.wire.framing import EventFramer, data_of
from gateway.wire.legs import HANDOVER_FIELDS
from gateway.wire.prompts import REPLY_HEAD_CHARACTERS, message_head
from gateway.wire.prompts_anthropic import head_of_content
from gateway.wire.usage import PrefillDetails, Usage, counted

_CREATED, _READ = "cache_creation_input_tokens", "cache_read_input_tokens"
_PROMPT_COUNTS = ("input_tokens", _CREATED, _READ)
_FINISH = {"max_tokens": "length", "end_turn": "stop", "stop_sequence": "stop", "tool_use": "stop"}
"""vLLM's `_to_anthropic_stop_reason`, backwards as far as that goes."""


class _Counts(msgspec.Struct):
    input_tokens: int = 0
    output_tokens: int = 0
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None


class _Block(msgspec.Struct):
    type: str = ""
    name: str | None = None


class _Delta(msgspec.Struct):
    text: str | None = None
    partial_json: str | None = None


class _Event(msgspec.Struct):
    delta: _Delta | None = None
    content_block: _Block | None = None


_fields_decoder = msgspec.json.Decoder(Fields)
_counts_decoder = msgspec.json.Decoder(_Counts | None)
_event_decoder = msgspec.json.Decoder(_Event)


def _usage(value: msgspec.Raw | None) -> Usage | None:
    if value is None:
        return None
    try:
        counts = _counts_decoder.decode(value)
    except msgspec.DecodeError:
        return None
    if counts is None:
        return None
    read = counts.cache_read_input_tokens or 0
    prompt = counts.input_tokens + read + (counts.cache_creation_input_tokens or 0)
    return counted(prompt, counts.output_tokens, read)


def _with_counts(usage: msgspec.Raw, prefill: PrefillDetails) -> msgspec.Raw:
    """D's `usage` with P's counts of the prompt, in vLLM's order."""
    ours, theirs = _fields(usage), _fields(prefill.raw)
    if not theirs:
        return usage
    kept = {name: value for name, value in ours.items() if name not in (_CREATED, _READ)}
    return msgspec.Raw(join(kept | {name: theirs[name] for name in _PROMPT_COUNTS if name in theirs}))


def _fields(value: bytes | msgspec.Raw | None) -> Fields:
    if value is None:
        return {}
    try:
        return _fields_decoder.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return {}


class MessagesTap(EventFramer):
    """Feed it what the pod sent; it gives back what the client should get.

    prefill: P's counts when the request went through P, else None.
    """

    def __init__(self, prefill: PrefillDetails | None) -> None:
        self.usage: Usage | None = None
        self.error: str | None = None
        self.fingerprint: msgspec.Raw | None = None
        self.offer: msgspec.Raw | None = None
        self.response_id: str | None = None
        self.said_something = False
        self.reasoned = False
        self._prefill = prefill
        self._text = ""
        self._call = ""
        self._calls = 0

    @property
    def reply_head(self) -> bytes | None:
        return message_head(self._text, self._call)

    def error_event(self, message: str, kind: str, code: int) -> bytes:
        return self.cut + b"event: error\ndata: " + ANTHROPIC.error_body(message, kind, code, None) + b"\n\n"

    def _event(self, event: bytes) -> bytes:
        if event.startswith(b"event: content_block_"):
            self.said_something = True
            if len(self._text) + len(self._call) < 4 * REPLY_HEAD_CHARACTERS:
                self._read(event)
        elif event.startswith(b"event: message_delta\n"):
            self.said_something = True
            return self._end(event)
        elif event.startswith(b"event: message_stop\n"):
            self.done = True
        elif event.startswith(b"event: error\n"):
            self.error = self.error or "the pod ended its stream with an error event"
            self.said_something = self.done = True
        elif not event.startswith(b"event: message_start\n"):
            self.said_something = True
        return event

    def _read(self, event: bytes) -> None:
        try:
            found = _event_decoder.decode(data_of(event))
        except msgspec.DecodeError:
            return
        if found.content_block is not None:
            self.reasoned = self.reasoned or found.content_block.type in ("thinking", "redacted_thinking")
            if found.content_block.type == "tool_use":
                self._calls += 1
                if self._calls == 1:
                    self._call = found.content_block.name or ""
        elif found.delta is not None:
            self._text += found.delta.text or ""
            if self._calls == 1:
                self._call += found.delta.partial_json or ""

    def _end(self, event: bytes) -> bytes:
        fields = _fields(data_of(event))
        usage = fields.get("usage")
        self.usage = _usage(usage) or self.usage
        if self._prefill is None or usage is None or usage == NULL:
            return event
        fields["usage"] = _with_counts(usage, self._prefill)
        return b"event: message_delta\ndata: " + join(fields) + b"\n\n"


class Anthropic:
    """`/v1/messages`."""

    asks_usage = False
    last_word = b""

    def tap(self, fields: Fields, prefill: PrefillDetails | None, fingerprint: msgspec.Raw | None) -> MessagesTap:
        return MessagesTap(prefill)

    def read_prefill(self, body: bytes) -> PrefillAnswer:
        fields = _fields(body)
        usage = fields.get("usage")
        return PrefillAnswer(
            handover=given(fields, "kv_transfer_params"),
            usage=_usage(usage),
            details=PrefillDetails(usage),
            finish_reason=_FINISH.get(_text(fields, "stop_reason") or ""),
        )

    def rewrite(self, body: bytes, prefill: PrefillDetails | None) -> WholeAnswer:
        fields = _fields(body)
        usage, offer = given(fields, "usage"), given(fields, "kv_transfer_params")
        changed = [fields.pop(name) for name in HANDOVER_FIELDS if name in fields]
        if prefill is not None and usage is not None:
            fields["usage"] = _with_counts(usage, prefill)
            changed.append(usage)
        content = _value(fields.get("content"))
        blocks = content if isinstance(content, list) else []
        return WholeAnswer(
            body=join(fields) if changed else body,
            usage=_usage(usage),
            reply_head=head_of_content(blocks) if blocks else None,
            finish_reason=_FINISH.get(_text(fields, "stop_reason") or ""),
            reasoned=any(isinstance(block, dict) and "thinking" in str(block.get("type")) for block in blocks),
            offer=offer,
        )

    def blames_the_pod(self, opening: bytes) -> bool:
        """vLLM words all of them `internal_error`."""
        return b"event: error\n" in opening

    def error_body(self, message: str, kind: str, code: int, param: str | None) -> bytes:
        return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": message}})


def _value(value: msgspec.Raw | None) -> Any:
    if value is None:
        return None
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return None


def _text(fields: Fields, name: str) -> str | None:
    value = _value(fields.get(name))
    return value if isinstance(value, str) else None


ANTHROPIC = Anthropic()
