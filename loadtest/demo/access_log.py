"""What the gateway says on its standard error: that it listens, which pods are up, and one line per request.

Rule of this room: reads the lines of `gateway.ops.logs` and `gateway.ops.serve`, and nothing else knows their form.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass

_FIELD = re.compile(r'(\w+)=("[^"]*"|\S+)')
_ADMIN = re.compile(r" ppd_gateway admin API on (http://\S+)")
_LISTENS = re.compile(r" ppd_gateway ppd-gateway \S+ on (http://\S+), ")


@dataclass(frozen=True, slots=True)
class Entry:
    """The line of one request to a generating endpoint. Pods are URLs.

    ttft_ms: as the gateway saw it; of an answer that is not streamed, the time to the whole of it.
    """

    request_id: str
    outcome: str
    stream: bool
    route: str
    prefill: str | None
    answered_by: str
    turn: int
    attempts: int
    ttft_ms: float | None
    reason: str


def read_entry(line: str) -> Entry | None:
    """The entry in a log line, None when it is of another kind or its request was never routed."""
    _, found, rest = line.partition(" ppd_gateway.access ")
    fields = {name: value.strip('"') for name, value in _FIELD.findall(rest)}
    if not found or "route" not in fields or "answered_by" not in fields or "turn" not in fields:
        return None
    return Entry(
        request_id=fields["id"],
        outcome=fields["outcome"],
        stream=fields.get("stream") == "1",
        route=fields["route"],
        prefill=fields.get("prefill"),
        answered_by=fields["answered_by"],
        turn=int(fields["turn"]),
        attempts=int(fields.get("attempts", "1")),
        ttft_ms=float(fields["ttft_ms"]) if "ttft_ms" in fields else None,
        reason=fields.get("reason", ""),
    )


class GatewayLog:
    """Takes a gateway's lines as they come. `on_entry` is called with each request's entry.

    admin_url: of the admin API; known once the gateway is ready.
    """

    def __init__(self) -> None:
        self.on_entry: Callable[[Entry], None] = lambda entry: None
        self.admin_url = ""
        self._url: str | None = None
        self._up: set[str] = set()
        self._news = asyncio.Event()

    def feed(self, line: str) -> None:
        """The next line."""
        entry = read_entry(line)
        if entry is not None:
            self.on_entry(entry)
        elif listens := _LISTENS.search(line):
            self._url = listens[1]
        elif admin := _ADMIN.search(line):
            self.admin_url = admin[1]
        elif " ppd_gateway.pod " in line:
            self._pod(dict(_FIELD.findall(line)))
        self._news.set()

    async def ready(self, pods: int) -> str:
        """Wait until the gateway listens and that many pods are up; returns its URL."""
        while self._url is None or len(self._up) < pods:
            self._news.clear()
            await self._news.wait()
        return self._url

    def _pod(self, fields: dict[str, str]) -> None:
        if fields.get("up") == "1":
            self._up.add(fields["pod"])
        else:
            self._up.discard(fields.get("pod", ""))
