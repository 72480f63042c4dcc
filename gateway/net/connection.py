"""One client connection: HTTP/1.1 on `asyncio.Protocol` with llhttp (the parser of Node.js, strict).

Rule of this room: bytes to a request, an answer to bytes, and nothing about what either means. Whatever a client
sends, memory per connection is bounded and the answer is clear: a request that is no HTTP gets a 4xx and the end.
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections import deque
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol, cast

import httptools

from gateway.net.exchange import ClientGoneError, Pausable, RawHeaders
from gateway.net.headers import raw
from gateway.net.request import Request, by_name
from gateway.wire.errors import (
    BadRequestError,
    BodyTooLargeError,
    ClientVisibleError,
    HeadersTooLargeError,
    RequestTimeoutError,
)

MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 200
MAX_PIPELINED = 16
READ_AHEAD_BYTES = 64 * 1024
"""Of the next request's body, taken while one is being served."""

STRANGERS_BYTES = 64 * 1024
"""Of a body that is taken in before it is asked whose it is."""

LINGER_S = 2.0
"""How long the rest of a body that was refused is read, and thrown away."""

WRITE_HIGH_BYTES = 64 * 1024

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_LAST_CHUNK = b"0\r\n\r\n"
_NO_HEADERS: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Limits:
    """head_s: from a request's first byte to the end of its head. body_s: silence within a body. idle_s: between two
    requests. stall_s: how long a client may take nothing of an answer that waits for it."""

    max_body_bytes: int = 32 * 1024 * 1024
    head_s: float = 10.0
    body_s: float = 30.0
    idle_s: float = 75.0
    stall_s: float = 60.0


class Host(Protocol):
    """What a connection needs of its server."""

    limits: Limits

    def opened(self, connection: Connection) -> None: ...

    def closed(self, connection: Connection) -> None: ...

    def serve(self, connection: Connection, request: Request) -> asyncio.Task[None]: ...

    def vet(self, head: Request) -> ClientVisibleError | None: ...

    def watch(self, connection: Connection, deadline: float) -> None:
        """Look at the connection once that loop time has passed, and say so in its `next_look`."""


class Connection(asyncio.Protocol):
    """A client's connection, and where the answer to its current request goes (`exchange.Outgoing`).

    deadline: loop time at which the client has been silent for too long; 0 when it is not its turn. next_look: when its
    server will next look for that.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self.loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._queue: deque[Request] = deque()
        self._task: asyncio.Task[None] | None = None
        self._current: Request | None = None
        self._source: Pausable | None = None
        self._full = False
        self._broken: ClientVisibleError | None = None
        self._head_bytes = 0
        self._in_head = True
        self._begun = False
        self._target = b""
        self._peer = ""
        self._items: list[tuple[str, str]] = []
        self._headers = _NO_HEADERS
        self._http11 = False
        self._body: list[bytes] = []
        self._body_bytes = 0
        self.chunked = False
        self._vetted = False
        self._last = False
        self._reading = True
        self.started = False
        self.deadline = 0.0
        self.next_look = math.inf

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer = transport.get_extra_info("peername")
            self._peer = str(peer[0]) if peer else ""
        self._host.opened(self)
        self._expect_within(self._host.limits.head_s)

    def data_received(self, data: bytes) -> None:
        if self._broken is not None:
            return
        begun_before = self._begun
        if self._in_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail(self._broken or BadRequestError("The request is not valid HTTP/1.1."))
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES and self._broken is None:
            self._fail(HeadersTooLargeError("The request's head is too large."))
        if self._task is None:
            if self._broken is not None:
                return
            if not self._in_head:
                self._expect_within(self._host.limits.body_s)
            elif self._begun and not begun_before:
                self._expect_within(self._host.limits.head_s)
        elif self._reading and (self._queue or self._body_bytes > READ_AHEAD_BYTES) and self._transport is not None:
            self._transport.pause_reading()
            self._reading = False

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.deadline = 0.0
        self._queue.clear()
        self._source = None
        if self._task is not None:
            self._task.cancel()
        del self._parser  # each holds the other
        self._host.closed(self)

    def pause_writing(self) -> None:
        self._full = True
        self._expect_within(self._host.limits.stall_s)
        if self._source is not None:
            self._source.pause()

    def resume_writing(self) -> None:
        self._full = False
        self.deadline = 0.0
        if self._source is not None:
            self._source.resume()

    # ---- httptools

    def on_message_begin(self) -> None:
        self._in_head = True
        self._target = b""
        self._begun = True

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # a trailer
        self._items.append((name.decode("latin-1"), value.decode("latin-1")))
        if len(self._items) > MAX_HEADERS:
            self._refuse(HeadersTooLargeError(f"More than {MAX_HEADERS} headers."))

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._parser.should_upgrade():
            self._refuse(BadRequestError("Upgrade and CONNECT are not supported here."))
        version = self._parser.get_http_version()
        if version not in ("1.0", "1.1"):
            self._refuse(BadRequestError("Only HTTP/1.1 and HTTP/1.0 are spoken here."))
        self._http11 = version != "1.0"
        self._headers = known = by_name(self._items)
        length = int(known.get("content-length", 0))  # llhttp lets pass one, and digits
        if length > self._host.limits.max_body_bytes:
            self._refuse(self._too_large())
        elif length > STRANGERS_BYTES:
            self._vet()
        if "expect" in known and self._task is None and self._transport is not None and self._waits_for_continue():
            self._transport.write(_CONTINUE)

    def on_body(self, data: bytes) -> None:
        self._body_bytes = received = self._body_bytes + len(data)
        if received > self._host.limits.max_body_bytes:
            self._refuse(self._too_large())
        if received > STRANGERS_BYTES and not self._vetted:
            self._vet()
        self._body.append(data)

    def on_message_complete(self) -> None:
        request = self._request(self._body[0] if len(self._body) == 1 else b"".join(self._body))
        self._body = []
        self._in_head, self._begun, self._vetted = True, False, False
        self._head_bytes = self._body_bytes = 0
        self._items, self._headers = [], _NO_HEADERS
        if self._task is None:
            self._begin(request)
        elif len(self._queue) < MAX_PIPELINED:
            self._queue.append(request)
        else:
            self._refuse(BadRequestError("Too many pipelined requests."))

    # ---- exchange.Outgoing

    def send(self, status: int, headers: RawHeaders, body: bytes) -> None:
        head = self._head(status, headers, b"content-length: %d\r\n\r\n" % len(body))
        silent = self._current is not None and self._current.method == "HEAD"
        self.write_raw(head if silent else head + body)

    def start(self, status: int, headers: RawHeaders) -> None:
        self.chunked = self._current is not None and self._current.chunks
        self.write_raw(self._head(status, headers, b"transfer-encoding: chunked\r\n\r\n" if self.chunked else b"\r\n"))
        self._last = self._last or not self.chunked

    def write(self, data: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ClientGoneError
        transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self.chunked else data)

    def write_raw(self, data: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ClientGoneError
        transport.write(data)

    def end(self) -> None:
        if self.chunked:
            self.write_raw(_LAST_CHUNK)

    def pace(self, source: Pausable | None) -> None:
        self._source = source
        if source is not None and self._full:
            source.pause()

    # ---- the rest

    def close(self) -> None:
        """Close once what was written has gone out."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close now."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def busy(self) -> bool:
        """True while a request is being served."""
        return self._task is not None

    def overdue(self) -> None:
        """The deadline has passed: the client was silent for too long."""
        if self._full or (self._task is None and not self._begun):
            self.abort()
        elif self._task is None:
            self._fail(RequestTimeoutError("The request did not arrive in time."))

    def finished(self) -> None:
        """The handler is through with the current request."""
        request, self._task, self._current, self._source = self._current, None, None, None
        if self._transport is None:
            self._host.closed(self)
            return
        if not self._reading:
            self._reading = True
            self._transport.resume_reading()
        if not self.started or self._last or request is None or not request.keep_alive:
            self.close()
        elif self._queue:
            self._begin(self._queue.popleft())
        elif self._broken is not None:
            self._answer_broken(self._broken)
        else:
            self._expect_within(self._host.limits.idle_s)

    def last(self) -> None:
        """The current request is the last one of this connection."""
        self._last = True
        if self._task is None:
            self.close()

    def _request(self, body: bytes) -> Request:
        return Request(
            self._parser.get_method().decode("ascii"),
            self._target.decode("latin-1"),
            self._items,
            body,
            self._http11,
            self._parser.should_keep_alive(),
            self._peer,
            self._headers,
        )

    def _waits_for_continue(self) -> bool:
        return any(name.lower() == "expect" and value.lower() == "100-continue" for name, value in self._items)

    def _vet(self) -> None:
        """A long body: no more of it for somebody who is turned away anyway."""
        self._vetted = True
        error = self._host.vet(self._request(b""))
        if error is not None:
            self._refuse(error)

    def _begin(self, request: Request) -> None:
        self.started = False
        self.deadline = 0.0
        self._current = request
        self._task = self._host.serve(self, request)

    def _head(self, status: int, headers: RawHeaders, end: bytes) -> bytes:
        """end: what says how the body is framed, and the empty line."""
        if self.started:
            raise ClientGoneError
        self.started = True
        first = _STATUS_LINES.get(status) or b"HTTP/1.1 %d Unknown\r\n" % status
        lines = b"\r\n".join([*map(b": ".join, headers), b""])
        request = self._current
        stays = not self._last and request is not None and request.keep_alive
        close = b"" if stays else b"connection: close\r\n"
        return b"".join((first, lines, close, end))

    def _expect_within(self, seconds: float) -> None:
        self.deadline = deadline = self.loop.time() + seconds
        if deadline < self.next_look:
            self._host.watch(self, deadline)

    def _too_large(self) -> BodyTooLargeError:
        return BodyTooLargeError(f"The request body is larger than {self._host.limits.max_body_bytes} bytes.")

    def _refuse(self, error: ClientVisibleError) -> None:
        """From within the parser: stop it, the caller answers."""
        self._broken = self._broken or error
        raise error

    def _fail(self, error: ClientVisibleError) -> None:
        """This connection's last request cannot be read: say so behind the answers that are still due."""
        self._broken = error
        self._body = []
        if self._task is None:
            self._answer_broken(error)

    def _answer_broken(self, error: ClientVisibleError) -> None:
        self._last, self.started, self._current = True, False, None
        try:
            self.send(error.status, raw([("content-type", "application/json"), *error.headers.items()]), error.body())
        except ClientGoneError:
            return
        if self._in_head or self._transport is None or not self._transport.can_write_eof():
            self.close()
            return
        self._transport.write_eof()  # closed now, the rest of the body would reset the answer away
        self._begun = False
        self._expect_within(LINGER_S)
