"""Whole events out of the pieces that a pod's stream comes in.

Rule of this room: an event that has fully arrived goes on at once; one that grows beyond MAX_EVENT_BYTES is passed on
in pieces, unread, so that memory stays bounded.
"""

from __future__ import annotations

MAX_EVENT_BYTES = 4 * 1024 * 1024
"""An event that grows beyond this is passed on in pieces, unread."""


class EventFramer:
    """Cuts a stream into events; what becomes of each is `_event`'s business, of a held-back one `_release`'s."""

    def __init__(self) -> None:
        self._tail = b""
        self._passing_oversized = False
        self._passed_newline = False

    def feed(self, data: bytes) -> bytes:
        """Take bytes from the pod; return the bytes to send on (maybe none)."""
        if self._passing_oversized:
            return self._pass_oversized(data)
        if self._tail:
            data = self._tail + data
        end = data.rfind(b"\n\n")
        if end < 0:
            return self._keep_tail(data)
        self._tail = b""
        head, rest = data[: end + 2], data[end + 2 :]
        out = b"".join([self._event(event + b"\n\n") for event in head[:-2].split(b"\n\n")])
        return out + self._keep_tail(rest) if rest else out

    def finish(self) -> bytes:
        """The stream ended well: give out whatever still waits."""
        out = self._release() + self._tail
        self._tail = b""
        return out

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
        return data[:end] + self.feed(data[end:])

    def _keep_tail(self, data: bytes) -> bytes:
        if len(data) > MAX_EVENT_BYTES:
            self._tail = b""
            self._passing_oversized = True
            self._passed_newline = data.endswith(b"\n")
            return self._release() + data
        self._tail = data
        return b""


def data_of(event: bytes) -> bytes:
    """The JSON of an event that begins with its name, as Anthropic's and OpenAI's Responses' do."""
    return event.partition(b"\ndata: ")[2]
