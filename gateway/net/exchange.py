"""The seam between the HTTP server and everything behind it.

Rule of this room: nothing here knows a server library, so that the server can be exchanged without the rest
noticing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.core.keys import Caller

Headers = Sequence[tuple[str, str]]
RawHeaders = Sequence[tuple[bytes, bytes]]
"""As they are on the wire."""


class ClientGoneError(Exception):
    """The client closed its connection while it was being written to."""


class Incoming(Protocol):
    """A request as it came in, its body complete."""

    @property
    def method(self) -> str: ...

    @property
    def path(self) -> str:
        """Path without the query."""

    @property
    def target(self) -> str:
        """Path with the query, as the client sent it."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers by their names in lower case; of repeated ones the first."""

    @property
    def body(self) -> bytes: ...

    @property
    def peer(self) -> str:
        """The address that the connection comes from; empty when it has none."""

    @property
    def caller(self) -> Caller | None:
        """Whose key it came with, once that was checked."""

    def header_items(self) -> Headers:
        """All headers in order, repeated ones too."""


class Pausable(Protocol):
    """Something that can be told to stop sending for a while."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class Outgoing(Protocol):
    """Where the answer goes. Nothing waits: what the client does not take at once is buffered, and `pace` bounds that.

    Every method raises ClientGoneError when nobody is there any more.
    """

    @property
    def started(self) -> bool:
        """True once a head has been sent: no other answer can follow."""

    def send(self, status: int, headers: RawHeaders, body: bytes) -> None:
        """A whole answer."""

    def start(self, status: int, headers: RawHeaders) -> None:
        """The head of a streamed answer."""

    @property
    def chunked(self) -> bool:
        """True when the streamed answer that has started goes out in HTTP chunks."""

    def write(self, data: bytes) -> None:
        """A piece of a streamed answer."""

    def write_raw(self, data: bytes) -> None:
        """A piece with its framing: where `chunked`, HTTP chunks."""

    def end(self) -> None:
        """The streamed answer is complete."""

    def pace(self, source: Pausable | None) -> None:
        """Pause that source while the client is slower than it; None when there is none any more."""


@dataclass(frozen=True, slots=True)
class Page:
    """A small answer the gateway makes itself."""

    content_type: str
    body: bytes
    status: int = 200
