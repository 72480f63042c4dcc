"""What differs between the APIs in what pods answer: one dialect each, behind one protocol.

Rule of this room: everything that is not of one dialect goes by these two protocols; a client gets its own dialect
byte for byte, from pods and from the gateway itself.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from gateway.wire.answers import PrefillAnswer, WholeAnswer, read_prefill, rewrite_answer
from gateway.wire.errors import error_body
from gateway.wire.even import EvenChunks
from gateway.wire.fields import Fields
from gateway.wire.legs import wants_continuous_usage, wants_usage
from gateway.wire.sse import StreamTap
from gateway.wire.usage import PrefillDetails, Usage


class Tap(Protocol):
    """Sits on a pod's stream: what the pod sent goes in, what the client should get comes out.

    usage, error, fingerprint, offer, response_id: as far as the stream has told them. done: it said its last word.
    offer: the pod's own `kv_transfer_params`, which no client gets.
    """

    usage: Usage | None
    error: str | None
    done: bool
    fingerprint: msgspec.Raw | None
    offer: msgspec.Raw | None
    response_id: str | None

    @property
    def reply_head(self) -> bytes | None:
        """Digest of the head of the reply, to recognise it in the next turn's prompt."""

    @property
    def reasoned(self) -> bool:
        """True when some of the answer was reasoning."""

    @property
    def said_something(self) -> bool:
        """True once an event came that is more than an announcement."""

    def feed(self, data: bytes) -> bytes:
        """Take bytes from the pod; return the bytes to send on (maybe none). Raises MalformedStreamError."""

    def even_chunks(self) -> EvenChunks | None:
        """What may take the reads that follow, until it does not take one; then `feed` goes on. What it takes goes to
        the client as it is. None after an event that the next ones are not like."""

    def finish(self) -> bytes:
        """The stream ended well: give out whatever still waits."""

    def error_event(self, message: str, kind: str, code: int) -> bytes:
        """The end of a stream that broke, as the official client raises it."""


class Dialect(Protocol):
    """How pods answer in one API.

    asks_usage: a stream tells its usage only when `stream_options` ask for it.
    last_word: what ends a stream whose pod has put an error event into it.
    """

    asks_usage: bool
    last_word: bytes

    def tap(self, fields: Fields, prefill: PrefillDetails | None, fingerprint: msgspec.Raw | None) -> Tap:
        """A tap for the answer to that request. prefill: P's cached-token details if it went through P."""

    def read_prefill(self, body: bytes) -> PrefillAnswer:
        """Read P's answer; a body that is no JSON object reads as an answer without a hand-over."""

    def rewrite(self, body: bytes, prefill: PrefillDetails | None) -> WholeAnswer:
        """Make an unstreamed answer presentable."""

    def blames_the_pod(self, opening: bytes) -> bool:
        """True when an error event that opens a stream is the pod's fault, not the client's."""

    def error_body(self, message: str, kind: str, code: int, param: str | None) -> bytes:
        """The gateway's own word for what went wrong."""


class _Error(msgspec.Struct):
    code: int | str | None = None


class _ErrorEvent(msgspec.Struct):
    error: _Error


class OpenAI:
    """Chat completions and completions."""

    asks_usage = True
    last_word = b"data: [DONE]\n\n"

    def tap(self, fields: Fields, prefill: PrefillDetails | None, fingerprint: msgspec.Raw | None) -> Tap:
        asked = wants_usage(fields)
        return StreamTap(
            strip_usage=not asked,
            continuous=asked and wants_continuous_usage(fields),
            prefill=prefill,
            fingerprint=fingerprint,
        )

    read_prefill = staticmethod(read_prefill)
    rewrite = staticmethod(rewrite_answer)
    error_body = staticmethod(error_body)

    def blames_the_pod(self, opening: bytes) -> bool:
        for event in opening.split(b"\n\n"):
            if event.startswith(b'data: {"error"'):
                try:
                    code = msgspec.json.decode(event[6:], type=_ErrorEvent).error.code
                except msgspec.DecodeError:
                    return True
                return not isinstance(code, int) or code >= 500
        return False


OPENAI = OpenAI()
