"""A client's request as it is handed on: complete, its headers findable.

Rule of this room: what the parser found and nothing worked out of it.
"""

from __future__ import annotations

from gateway.core.keys import Caller
from gateway.net.exchange import Headers


def by_name(items: Headers) -> dict[str, str]:
    """Headers by their names in lower case; of repeated ones the first."""
    return {name.lower(): value for name, value in reversed(items)}


class Request:
    """A complete request (`exchange.Incoming`). chunks: the client understands a chunked answer (HTTP/1.1). headers:
    those items by name, where that is at hand."""

    __slots__ = ("_items", "body", "chunks", "headers", "keep_alive", "method", "path", "peer", "target")

    caller: Caller | None = None

    def __init__(
        self,
        method: str,
        target: str,
        items: list[tuple[str, str]],
        body: bytes,
        chunks: bool,
        keep_alive: bool,
        peer: str = "",
        headers: dict[str, str] | None = None,
    ) -> None:
        self.peer = peer
        self.method = method
        self.target = target
        self.path = target.partition("?")[0]
        self._items = items
        self.headers = by_name(items) if headers is None else headers
        self.body = body
        self.chunks = chunks
        self.keep_alive = keep_alive and chunks

    def header_items(self) -> Headers:
        """All headers in order."""
        return self._items
