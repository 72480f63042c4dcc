"""The seam between the HTTP server and everything behind it.

Rule of this room: nothing here knows a server library, so that the server can be exchanged without the rest
noticing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

Headers = Sequence[tuple[str, str]]


class ClientGoneError(Exception):
    """The client closed its connection while it was being written to."""


class Incoming(Protocol):
    """A request as it came in. Header names are matched without case."""

    @property
    def method(self) -> str: ...

    @property
    def path(self) -> str:
        """Path without the query."""

    @property
    def target(self) -> str:
        """Path with the query, as the client sent it."""

    @property
    def headers(self) -> Mapping[str, str]: ...

    def header_items(self) -> Headers:
        """All headers in order, repeated ones too."""

    async def body(self, limit: int) -> bytes:
        """The whole body. Raises BodyTooLargeError beyond `limit` bytes."""


class Outgoing(Protocol):
    """Where the answer goes. Every method raises ClientGoneError when nobody is there any more."""

    @property
    def started(self) -> bool:
        """True once a head has been sent: no other answer can follow."""

    async def send(self, status: int, headers: Headers, body: bytes) -> None:
        """A whole answer."""

    async def start(self, status: int, headers: Headers) -> None:
        """The head of a streamed answer."""

    async def write(self, data: bytes) -> None:
        """A piece of a streamed answer; waits while the client is slower than the pod."""

    async def end(self) -> None:
        """The streamed answer is complete."""


@dataclass(frozen=True, slots=True)
class Page:
    """A small answer the gateway makes itself."""

    content_type: str
    body: bytes
    status: int = 200
