"""Asks one server, on connections that it keeps.

Rule of this room: a request is sent when it is asked for, at once; there is no queue and no limit here, and no second
try but for a connection that the server had closed while it was idle.
"""

from __future__ import annotations

import asyncio
import ssl
from array import array
from collections import deque
from dataclasses import dataclass

from loadtest.live import answer
from loadtest.live.answer import Answer
from loadtest.live.connection import Clock, Connection
from loadtest.live.endpoint import PATHS, Endpoint
from loadtest.live.sse import EventScanner, MalformedError

IDLE_S = 4.0
"""vLLM closes idle connections after 5 s."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait, seconds from sending: for the connection, the first token, the end."""

    connect_s: float = 10.0
    first_s: float = 60.0
    total_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Plain:
    """An answer that was read whole. fault, detail: as in `Answer`."""

    status: int
    body: bytes
    location: str
    fault: str | None
    detail: str


class Client:
    """`api` is a key of `PATHS`. session_header: gets the conversation's name. opened: connections made so far."""

    def __init__(
        self, endpoint: Endpoint, api: str, patience: Patience, clock: Clock, session_header: str | None = None
    ) -> None:
        self.endpoint = endpoint
        self.patience = patience
        self.opened = 0
        self._clock = clock
        self._head = endpoint.head("POST", PATHS[api])
        self._session_header = session_header
        self._idle: deque[Connection] = deque()
        self._busy: set[Connection] = set()

    def close(self) -> None:
        """Hang up everywhere."""
        for connection in (*self._idle, *self._busy):
            connection.close()
        self._idle.clear()

    async def ask(self, body: bytes, conversation: str, turn: int, *, keep_text: bool = True) -> Answer:
        """Stream one answer. Never raises for what a server does."""
        head = f"X-Request-Id: {conversation}-{turn}\r\nContent-Length: {len(body)}\r\n\r\n"
        if self._session_header is not None:
            head = f"{self._session_header}: {conversation}\r\n{head}"
        data = self._head + head.encode() + body
        scanner = EventScanner(keep_text=keep_text)
        sent_s = self._clock()
        connection, ended_s, detail, resent = await self._carry(data, scanner, sent_s)
        if connection is None:
            return Answer(sent_s, ended_s, fault=answer.CONNECT, detail=detail)
        return _answer_of(connection, scanner, sent_s, ended_s, resent, keep_text)

    async def ask_plain(self, method: str, path: str, body: bytes = b"", request_id: str | None = None) -> Plain:
        """Ask for something and read it whole; of a stream, its bytes."""
        head = self.endpoint.head(method, path)
        if request_id is not None:
            head += b"X-Request-Id: %s\r\n" % request_id.encode()
        data = b"%sContent-Length: %d\r\n\r\n%s" % (head, len(body), body) if method == "POST" else head + b"\r\n"
        connection, _, detail, _ = await self._carry(data, None, self._clock())
        if connection is None:
            return Plain(0, b"", "", answer.CONNECT, detail)
        return Plain(connection.status, connection.plain, connection.location, connection.fault, detail)

    async def _carry(
        self, data: bytes, scanner: EventScanner | None, sent_s: float
    ) -> tuple[Connection | None, float, str, bool]:
        resent = False
        while True:
            try:
                connection = self._kept() or await self._open()
            except TimeoutError:
                return None, self._clock(), f"no connection within {self.patience.connect_s:g} s", resent
            except ssl.SSLError as error:
                return (
                    None,
                    self._clock(),
                    f"TLS: {getattr(error, 'verify_message', '') or error.reason or error}",
                    resent,
                )
            except OSError as error:
                return None, self._clock(), error.strerror or str(error), resent
            was_used = connection.used > 0
            self._busy.add(connection)
            try:
                patience = self.patience
                ended_s = await connection.ask(
                    data, scanner, sent_s=sent_s, first_s=patience.first_s, total_s=patience.total_s
                )
            finally:
                self._busy.discard(connection)
            if connection.reusable:
                self._idle.append(connection)
            elif connection.fault == answer.RESET and was_used and not connection.spoke and not resent:
                resent = True
                continue
            return connection, ended_s, "", resent

    def _kept(self) -> Connection | None:
        old_s = self._clock() - IDLE_S
        while self._idle and self._idle[0].idle_since_s < old_s:
            self._idle.popleft().close()
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable:
                return connection
        return None

    async def _open(self) -> Connection:
        endpoint = self.endpoint
        async with asyncio.timeout(self.patience.connect_s):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: Connection(self._clock),
                endpoint.host,
                endpoint.port,
                ssl=endpoint.tls,
                server_hostname=endpoint.host if endpoint.tls is not None else None,
            )
        self.opened += 1
        return connection


def _answer_of(
    connection: Connection, scanner: EventScanner, sent_s: float, ended_s: float, resent: bool, keep_text: bool
) -> Answer:
    times = scanner.times
    usage = scanner.usage
    made = Answer(
        sent_s,
        ended_s,
        status=connection.status,
        first_s=times[0] if times else None,
        last_s=times[-1] if times else None,
        times=array("d", times),
        prompt_tokens=None if usage is None else usage.prompt_tokens,
        output_tokens=len(times) if usage is None else usage.completion_tokens,
        cached_tokens=None if usage is None else usage.cached_tokens,
        has_usage=usage is not None,
        resent=resent,
    )
    made.fault, made.detail = _fault_of(connection, scanner)
    if made.fault is None and keep_text:
        try:
            made.text = scanner.text
        except MalformedError as error:
            made.fault, made.detail = answer.MALFORMED, str(error)
    return made


def _fault_of(connection: Connection, scanner: EventScanner) -> tuple[str | None, str]:
    if connection.fault is not None:
        return connection.fault, ""
    if connection.status != 200:
        where = f"to {connection.location}" if connection.location else ""
        return f"http_{connection.status}", where
    if scanner.error is not None:
        return f"error_{scanner.error}", ""
    if not (scanner.done or scanner.finished):
        return answer.INCOMPLETE, "" if scanner.times else "no stream of events"
    return None, ""
