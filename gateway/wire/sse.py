"""A tap on an SSE stream of chat or completions from a pod.

Rule of this room: whole events in, whole events out, at once; only an event that has not fully arrived waits. An
event is looked into only when its bytes say it may carry usage, an error, a finish or a hand-over; the rest pass
as they came.

Two things make a client that did not ask for usage receive exactly what one plain vLLM would have sent:
the usage chunk is taken out, and the `system_fingerprint` that vLLM then puts on it goes back to the finish
chunk, where it is without usage (vLLM `chat_completion/serving.py` and `completion/serving.py`).

Words are looked for with `find`: `in` takes what is left of it for a number first, which costs more than the search.
"""

from __future__ import annotations

import re

import msgspec

from gateway.wire.errors import error_event
from gateway.wire.even import READ_TOGETHER, EvenChunks
from gateway.wire.fields import NULL, Fields, given, join, split
from gateway.wire.framing import EventFramer
from gateway.wire.mould import LINE_END, QUOTE, Mould, mould_of, text_of
from gateway.wire.prompts import END_OF_THINK, REPLY_HEAD_CHARACTERS, THINK, message_head, reply_head, without_thoughts
from gateway.wire.usage import PrefillDetails, Usage, read_usage

_END_OF_THINK = END_OF_THINK.encode()
_NO_CHOICES = msgspec.Raw(b"[]")


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct):
    index: int = 0
    function: _Function | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Delta | None = None
    text: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []


_chunk_decoder = msgspec.json.Decoder(_Chunk)
_SEAM = re.compile(rb"\n\n(?:(?!data: \{)|(?<!\}\n\n))")
"""A blank line that is not between two events of JSON: in a good read the last one only."""


class StreamTap(EventFramer):
    """Feed it what the pod sent; it gives back what the client should get.

    strip_usage: the client had not asked for usage.
    prefill: P's cached-token details when the request went through P, else None.
    fingerprint: the pod's `system_fingerprint` as raw JSON, if known from an earlier stream. Learned from this one.
    continuous: the client asked for usage on every chunk. A pod that sends it unasked forces usage on all its
        clients (`--enable-force-include-usage`), so a direct call would have shown it too, and it stays.
    """

    usage: Usage | None = None
    error: str | None = None
    offer: msgspec.Raw | None = None
    response_id: str | None = None
    _held: bytes | None = None
    _reply_text = ""
    _call_text = ""
    _is_chat = False
    _thinks = False
    _shows_reasoning = False
    _head_complete = False
    _spoke = False
    _plain = False  # whole events without a word of interest pass as they are
    _mould: Mould | None = None  # of the last such event that had a plain text

    def __init__(
        self,
        *,
        strip_usage: bool,
        prefill: PrefillDetails | None = None,
        fingerprint: msgspec.Raw | None = None,
        continuous: bool = False,
    ) -> None:
        self.fingerprint = fingerprint
        self._strip_usage = strip_usage
        self._prefill = prefill
        self._continuous = continuous
        self._unread: list[bytes] = []  # texts of such events, looked at when there are some

    @property
    def reply_head(self) -> bytes | None:
        """Digest of the head of the first choice's text or tool call, to recognise the reply in the next turn's prompt.

        None when the model reasoned in its text and never came to an end of it.
        """
        self._catch_up()
        if self._thinks:
            return None
        return message_head(self._reply_text, self._call_text) if self._is_chat else reply_head(self._reply_text)

    @property
    def reasoned(self) -> bool:
        """True when some of the answer was reasoning, which the next turn's prompt will not show."""
        self._catch_up()
        return self._shows_reasoning or (self.usage is not None and self.usage.reasoned)

    @property
    def said_something(self) -> bool:
        """True once an event came that is more than the announcement of the assistant's role.

        A keep-alive comment counts: the pod was told to send them because someone on the way needs them.
        """
        return self._spoke

    def feed(self, data: bytes) -> bytes:
        mould = self._mould
        if mould is not None:
            begins, ends_so, start, stop, joint, is_reply = mould
            if data.startswith(begins) and data.endswith(ends_so):  # true of most reads, and most are as the last
                text = data[start:stop]
                if QUOTE in text:  # of several events
                    text = text.replace(joint, b"")
                if QUOTE not in text and LINE_END not in text:
                    if is_reply and not self._head_complete:
                        unread = self._unread
                        unread.append(text)
                        if len(unread) >= READ_TOGETHER:
                            self._catch_up()
                    return data
        if self._unread:
            self._catch_up()
        if (
            self._plain
            and data.startswith(b"data: {")
            and data.endswith(b"}\n\n")
            and data.find(b'"usage":{') < 0
            and data.find(b'"finish_reason":"') < 0
            and data.find(b'"kv_transfer_params":{') < 0
            and data.find(b'data: {"error"') < 0
            and data.find(b'"system_fingerprint":"') < 0
            and ((first := data.find(b"\n\n") + 2) == len(data) or _seams_are_good(data, first))
        ):
            if not self._head_complete:
                self._read_replies(data)
            if not self._plain:
                self._mould = None
            elif first == len(data):
                self._mould = mould_of(data) or self._mould
            return data
        self._mould = None
        out = super().feed(data)
        self._plain = self._spoke and not (self._thinks or self._held or self.waiting)
        return out

    def even_chunks(self) -> EvenChunks | None:
        mould = self._mould
        if mould is None:
            return None
        return EvenChunks(mould, self._unread if mould.is_reply and not self._head_complete else None)

    def _catch_up(self) -> None:
        """Read the texts that were put off."""
        if self._unread:
            text, self._unread = text_of(self._unread), []
            self._add_to_head(text)
            if self._thinks:
                self._plain, self._mould = False, None

    def _read_replies(self, data: bytes) -> None:
        """The text of whole events without a word of interest."""
        for event in data[:-2].split(b"\n\n"):
            if event.startswith(b"data: {") and self._may_hold_reply(event):
                self._read_reply(event)
        self._plain = not self._thinks

    def error_event(self, message: str, kind: str, code: int) -> bytes:
        """The end of a stream that broke, as the official client raises it."""
        return self.cut + error_event(message, kind, code)

    def _release(self) -> bytes:
        held, self._held = self._held, None
        return held or b""

    def _event(self, event: bytes) -> bytes:
        if event.find(b'"kv_transfer_params":{') >= 0:
            event = _replace(event, "kv_transfer_params", NULL)
        if event.find(b'"usage":{') >= 0:
            return self._usage_event(event)
        if event.find(b'"system_fingerprint":"') >= 0:
            self._learn_fingerprint(_fields_of(event))
        if self._strip_usage and event.find(b'"finish_reason":"') >= 0:
            return self._finish_event(event)
        if event.startswith(b"data: {"):
            if event.startswith(b'data: {"error"'):
                self.error = self.error or "the pod ended its stream with an error event"
                self._spoke = True
            if self._may_hold_reply(event):
                self._read_reply(event)
        elif event.startswith(b"data: [DONE]"):
            self.done = True
        elif event.startswith(b":"):
            self._spoke = True
        return event if self._held is None else self._release() + event

    def _may_hold_reply(self, event: bytes) -> bool:
        """Until the head of the reply is complete: events with text, the first one with reasoning, and those before
        the pod has said anything."""
        if self._thinks:
            return event.find(_END_OF_THINK) >= 0
        if self._head_complete:
            return False
        find = event.find
        if not self._spoke or find(b'"content":"') >= 0 or find(b'"text":"') >= 0 or find(b'"tool_calls":[') >= 0:
            return True
        return not self._shows_reasoning and (find(b'"reasoning":"') >= 0 or find(b'"reasoning_content":"') >= 0)

    def _finish_event(self, event: bytes) -> bytes:
        self._spoke = True
        self._read_reply(event)
        if self.fingerprint is not None:
            return self._release() + _replace(event, "system_fingerprint", self.fingerprint)
        out = self._release()
        self._held = event
        return out

    def _usage_event(self, event: bytes) -> bytes:
        fields = _fields_of(event)
        usage = given(fields, "usage")
        if usage is None:
            return self._release() + event
        self.usage = read_usage(usage) or self.usage
        if fields.get("choices") != _NO_CHOICES:
            if not self._continuous:
                self._strip_usage = False
            self._read_reply(event)
            return self._release() + event
        self._spoke = True
        self._learn_fingerprint(fields)
        fingerprint = fields.get("system_fingerprint")
        if self._strip_usage:
            held, self._held = self._held, None
            if held is None:
                return b""
            return held if fingerprint is None else _replace(held, "system_fingerprint", fingerprint)
        if self._prefill is not None:
            fields["usage"] = told = self._prefill.put_into(usage, keep_null=False)
            event = event if told is usage else _event_of(fields)
        return self._release() + event

    def _learn_fingerprint(self, fields: Fields) -> None:
        fingerprint = fields.get("system_fingerprint")
        if fingerprint is not None:
            self.fingerprint = fingerprint.copy()

    def _read_reply(self, event: bytes) -> None:
        try:
            chunk = _chunk_decoder.decode(event[6:])
        except msgspec.DecodeError:
            return
        for choice in chunk.choices:
            delta = choice.delta
            text = choice.text if delta is None else delta.content
            if text or delta is None or event.find(b'"delta":{"role":') < 0:
                self._spoke = True
            if choice.index == 0:
                if delta is not None:
                    self._read_delta(delta)
                if text or self._call_text:
                    self._add_to_head(text or "")

    def _add_to_head(self, text: str) -> None:
        said = self._reply_text + text
        if self._is_chat and (trimmed := said.lstrip()).startswith(THINK):
            self._thinks, self._shows_reasoning = END_OF_THINK not in trimmed, True
            said = THINK if self._thinks else without_thoughts(trimmed)
        self._reply_text = said
        self._head_complete = len(said) + len(self._call_text) >= 4 * REPLY_HEAD_CHARACTERS or (
            len(said) >= REPLY_HEAD_CHARACTERS and len("".join(said.split())) >= REPLY_HEAD_CHARACTERS
        )

    def _read_delta(self, delta: _Delta) -> None:
        self._is_chat = True
        if delta.reasoning or delta.reasoning_content:
            self._shows_reasoning = True
        for call in delta.tool_calls or ():
            if call.index == 0 and call.function is not None:
                self._call_text += (call.function.name or "") + (call.function.arguments or "")


def _seams_are_good(data: bytes, first: int) -> bool:
    """Whether each blank line but the last is between two events of JSON. first: where the second event begins."""
    found = _SEAM.search(data, first - 2)
    return found is not None and found.end() == len(data)


def _fields_of(event: bytes) -> Fields:
    try:
        return split(event[6:])
    except msgspec.DecodeError:
        return {}


def _event_of(fields: Fields) -> bytes:
    return b"data: " + join(fields) + b"\n\n"


def _replace(event: bytes, name: str, value: msgspec.Raw) -> bytes:
    fields = _fields_of(event)
    if not fields:
        return event
    fields[name] = value
    return _event_of(fields)
