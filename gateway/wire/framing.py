"""Whole events out of the pieces that a pod's stream comes in.

Rule of this room: an event that has fully arrived goes on at once; one that grows beyond MAX_EVENT_BYTES is passed on
in pieces, unread, so that memory stays bounded. An event that a client would skip, or could not read, is a broken
stream: only its two ends are looked at, what is between them is the client's to parse.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.wire.even import EvenChunks

MAX_EVENT_BYTES = 4 * 1024 * 1024
"""An event that grows beyond this is passed on in pieces, unread."""


_BEGINS = (b"data: {", b"event: ")
_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")


class MalformedStreamError(Exception):
    """A pod sent what is no event. before: what came before it, for the client."""

    def __init__(self, what: str, before: bytes = b"") -> None:
        super().__init__(what)
        self.before = before


class EventFramer:
    """Cuts a stream into events; what becomes of each is `_event`'s business, of a held-back one `_release`'s.

    done: the stream said its last word; what comes after it is not looked at.
    """

    done = False
    _tail = b""
    _passing_oversized = False
    _passed_newline = False

    def feed(self, data: bytes) -> bytes:
        """Take bytes from the pod; return the bytes to send on (maybe none). Raises MalformedStreamError."""
        if self._passing_oversized:
            return self._pass_oversized(data)
        if self._tail:
            data = self._tail + data
        if data.endswith(b"}\n\n") and data.startswith(_BEGINS) and data.find(b"\n\n") + 2 == len(data):
            self._tail = b""
            return self._event(data)
        end = data.rfind(b"\n\n")
        if end < 0:
            return self._keep_tail(data)
        self._tail = b""
        out: list[bytes] = []
        for event in data[:end].split(b"\n\n"):
            if not ((event.endswith(b"}") and event.startswith(_BEGINS)) or self.done or _is_event(event)):
                raise MalformedStreamError("an event is none", b"".join(out))
            out.append(self._event(event + b"\n\n"))
        if len(data) > end + 2:
            out.append(self._keep_tail(data[end + 2 :], out))
        return b"".join(out)

    def even_chunks(self) -> EvenChunks | None:
        """See `dialects.Tap`: not of these streams."""
        return None

    def finish(self) -> bytes:
        """The stream ended well: give out whatever still waits."""
        out = self._release() + self._tail
        self._tail = b""
        return out

    @property
    def cut(self) -> bytes:
        """What goes before the gateway's own word where the stream broke off within an event that the client has."""
        return b"\n\n" if self._passing_oversized else b""

    @property
    def waiting(self) -> bool:
        """True within an event that has not fully arrived."""
        return bool(self._tail) or self._passing_oversized

    def _event(self, event: bytes) -> bytes:
        raise NotImplementedError

    def _release(self) -> bytes:
        return b""

    def _pass_oversized(self, data: bytes) -> bytes:
        """Pass an event on unread up to its end, the blank line, which may be cut between two reads."""
        if self._passed_newline and data.startswith(b"\n"):
            end = 1
        elif (found := data.find(b"\n\n")) >= 0:
            end = found + 2
        else:
            self._passed_newline = data.endswith(b"\n")
            return data
        self._passing_oversized = False
        try:
            return data[:end] + self.feed(data[end:])
        except MalformedStreamError as broken:
            broken.before = data[:end] + broken.before
            raise

    def _keep_tail(self, data: bytes, before: Sequence[bytes] = ()) -> bytes:
        if len(data) > MAX_EVENT_BYTES:
            self._tail = b""
            self._passing_oversized = True
            self._passed_newline = data.endswith(b"\n")
            return self._release() + data
        if data.endswith(b"\r\n\r\n"):
            raise MalformedStreamError("its lines end in CR LF", b"".join(before))
        self._tail = data
        return b""


def _is_event(event: bytes) -> bool:
    """True for a comment, and for fields whose data is one JSON object by its braces, or [DONE]."""
    if event == b"data: [DONE]":
        return True
    lines = event.split(b"\n")
    if not all(line.startswith(_FIELDS) or not line for line in lines):
        return False
    data = b"\n".join([line[5:].strip() for line in lines if line.startswith(b"data:")])
    return data in (b"", b"[DONE]") or (data.startswith(b"{") and data.endswith(b"}"))


def data_of(event: bytes) -> bytes:
    """The JSON of an event that begins with its name, as Anthropic's and OpenAI's Responses' do."""
    return event.partition(b"\ndata: ")[2]
