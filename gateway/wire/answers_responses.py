"""Answers in the Responses API, streamed and not (vLLM 0.32 `openai/responses/serving.py`).

Rule of this room: as in `wire.answers` and `wire.sse`. The last event of a stream carries the whole answer, so that
alone is read: its usage, its output, its id, and the pod's hand-over parameters, which become null.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.wire.answers import PrefillAnswer, WholeAnswer, hide_handover
from gateway.wire.errors import ErrorBody, error_body
from gateway.wire.fields import NULL, Fields, given, join
from gateway.wire.framing import EventFramer, data_of
from gateway.wire.prompts_responses import head_of_output
from gateway.wire.usage import PrefillDetails, Usage, counted

_LAST = (b"event: response.completed\n", b"event: response.incomplete\n", b"event: response.failed\n")
_FINISH = {"incomplete": "length", "completed": "stop"}
_FIRST = (b"event: response.created\n", b"event: response.in_progress\n", b"event: response.queued\n")


class _Cached(msgspec.Struct):
    cached_tokens: int = 0


class _Thought(msgspec.Struct):
    reasoning_tokens: int = 0


class _Counts(msgspec.Struct):
    input_tokens: int = 0
    output_tokens: int = 0
    input_tokens_details: _Cached | None = None
    output_tokens_details: _Thought | None = None


class _Answer(msgspec.Struct):
    """What is read of an answer (`protocol.py`, ResponsesResponse)."""

    id: str | None = None
    status: str | None = None
    output: list[dict[str, Any]] = []
    usage: _Counts | None = None


_fields_decoder = msgspec.json.Decoder(Fields)
_answer_decoder = msgspec.json.Decoder(_Answer)
_NOTHING = _Answer()


def _fields(value: bytes | msgspec.Raw | None) -> Fields:
    if value is None:
        return {}
    try:
        return _fields_decoder.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return {}


def _read(answer: bytes | msgspec.Raw) -> _Answer:
    try:
        return _answer_decoder.decode(answer)
    except (msgspec.DecodeError, RecursionError):
        return _NOTHING


def _usage(answer: _Answer) -> Usage | None:
    counts = answer.usage
    if counts is None:
        return None
    cached = counts.input_tokens_details.cached_tokens if counts.input_tokens_details else 0
    thought = counts.output_tokens_details.reasoning_tokens if counts.output_tokens_details else 0
    return counted(counts.input_tokens, counts.output_tokens, cached, thought)


def _reasoned(answer: _Answer) -> bool:
    return any(item.get("type") == "reasoning" for item in answer.output)


def _presentable(fields: Fields, prefill: PrefillDetails | None) -> bool:
    """Put what the client should get into an answer's fields. True when that changed something."""
    changed = hide_handover(fields)
    if prefill is None or prefill.raw is None:
        return changed
    usage = _fields(fields.get("usage"))
    if "input_tokens_details" in usage:
        usage["input_tokens_details"] = prefill.raw
        fields["usage"] = msgspec.Raw(join(usage))
        changed = True
    return changed


class ResponsesTap(EventFramer):
    """Feed it what the pod sent; it gives back what the client should get.

    prefill: P's `input_tokens_details` when the request went through P, else None.
    """

    def __init__(self, prefill: PrefillDetails | None) -> None:
        self.usage: Usage | None = None
        self.error: str | None = None
        self.fingerprint: msgspec.Raw | None = None
        self.offer: msgspec.Raw | None = None
        self.response_id: str | None = None
        self.reply_head: bytes | None = None
        self.reasoned = False
        self.said_something = False
        self._prefill = prefill

    def error_event(self, message: str, kind: str, code: int) -> bytes:
        """OpenAI's event for an error, with the object that makes the official client raise it."""
        error = {"type": "error", "code": str(code), "message": message, "param": None}
        body = {**error, "error": ErrorBody(message, kind, None, code)}
        return self.cut + b"event: error\ndata: " + msgspec.json.encode(body) + b"\n\n"

    def _event(self, event: bytes) -> bytes:
        if event.startswith(_LAST):
            self.said_something = self.done = True
            return self._end(event)
        if event.startswith((b"event: error\n", b'data: {"error"')):
            self.error = self.error or "the pod ended its stream with an error event"
            self.said_something = self.done = True
        elif not event.startswith(_FIRST):
            self.said_something = True
        elif self.response_id is None:
            self.response_id = _read(_fields(data_of(event)).get("response", NULL)).id
        return event

    def _end(self, event: bytes) -> bytes:
        fields = _fields(data_of(event))
        answer = fields.get("response", NULL)
        read, inner = _read(answer), _fields(answer)
        self.offer = given(inner, "kv_transfer_params")
        self.usage = _usage(read)
        self.response_id = read.id or self.response_id
        self.reply_head, self.reasoned = head_of_output(read.output), _reasoned(read)
        if read.status == "failed":
            self.error = "the pod says that the response failed"
        if not _presentable(inner, self._prefill):
            return event
        fields["response"] = msgspec.Raw(join(inner))
        return event.partition(b"\n")[0] + b"\ndata: " + join(fields) + b"\n\n"


class Responses:
    """`/v1/responses`."""

    asks_usage = False
    last_word = b""

    def tap(self, fields: Fields, prefill: PrefillDetails | None, fingerprint: msgspec.Raw | None) -> ResponsesTap:
        return ResponsesTap(prefill)

    def read_prefill(self, body: bytes) -> PrefillAnswer:
        fields, read = _fields(body), _read(body)
        return PrefillAnswer(
            handover=given(fields, "kv_transfer_params"),
            usage=_usage(read),
            details=PrefillDetails(given(_fields(fields.get("usage")), "input_tokens_details")),
            finish_reason=_FINISH.get(read.status or ""),
        )

    def rewrite(self, body: bytes, prefill: PrefillDetails | None) -> WholeAnswer:
        fields, read = _fields(body), _read(body)
        offer = given(fields, "kv_transfer_params")
        return WholeAnswer(
            usage=_usage(read),
            reply_head=head_of_output(read.output),
            finish_reason=read.status,
            reasoned=_reasoned(read),
            offer=offer,
            response_id=read.id,
            body=join(fields) if _presentable(fields, prefill) else body,
        )

    def blames_the_pod(self, opening: bytes) -> bool:
        """vLLM streams no error that is the client's: those come before the stream."""
        return b"event: error\n" in opening or b'data: {"error"' in opening

    def error_body(self, message: str, kind: str, code: int, param: str | None) -> bytes:
        return error_body(message, kind, code, param)


RESPONSES = Responses()
