"""What a pod was asked, and how it went.

Rule of this room: one record per request to an API path, in order of arrival; written by the server, read by tests.
"""

import time
from collections import deque
from typing import Any

import msgspec

KEPT = 10_000


class Record(msgspec.Struct):
    """One request. `outcome` is `open` until it is `ok`, `error`, `gone` (the client left) or `reset` (by a fault)."""

    method: str
    path: str
    headers: dict[str, str]
    """Lower-case names."""
    body: Any
    """Parsed JSON, or None."""
    time_s: float
    """Unix time of arrival."""
    outcome: str = "open"
    status: int | None = None
    fault: str | None = None
    """Kind of the fault that struck it."""
    id: str | None = None
    """`chatcmpl-…` or `cmpl-…`."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    text: str | None = None
    """Text of the first answer."""
    raw: bytes = b""
    """The body as it came."""


class Journal:
    """The last 10,000 records."""

    def __init__(self) -> None:
        self.records: deque[Record] = deque(maxlen=KEPT)

    def open(self, method: str, path: str, headers: dict[str, str], body: Any, raw: bytes) -> Record:
        record = Record(method, path, headers, body, time.time(), raw=raw)
        self.records.append(record)
        return record
