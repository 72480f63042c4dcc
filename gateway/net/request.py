"""A client's request as it is handed on: complete, its headers findable.

Rule of this room: what the parser found and nothing worked out of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.core.keys import Caller
from gateway.net.exchange import Headers


class HeaderMap(Mapping[str, str]):
    """Headers by name without case; of repeated ones the first. lower: the same by their names in lower case."""

    __slots__ = ("lower",)

    def __init__(self, items: Headers) -> None:
        self.lower = {name.lower(): value for name, value in reversed(items)}

    def __getitem__(self, name: str) -> str:
        return self.lower[name.lower()]

    def get(self, name: str, default: Any = None) -> Any:
        return self.lower.get(name.lower(), default)

    def __iter__(self) -> Iterator[str]:
        return iter(self.lower)

    def __len__(self) -> int:
        return len(self.lower)


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
        headers: HeaderMap | None = None,
    ) -> None:
        self.peer = peer
        self.method = method
        self.target = target
        self.path = target.partition("?")[0]
        self._items = items
        self.headers = HeaderMap(items) if headers is None else headers
        self.body = body
        self.chunks = chunks
        self.keep_alive = keep_alive and chunks

    def header_items(self) -> Headers:
        """All headers in order."""
        return self._items
