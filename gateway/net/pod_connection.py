"""One connection to a pod: HTTP/1.1 on `asyncio.Protocol` with llhttp.

Rule of this room: one request at a time; what arrives is handed on within the read that brought it, as one piece. A
connection is used again only when the answer before was complete and the pod did not say it would close.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import cast

import httptools

from gateway.net.exchange import Headers
from gateway.net.fault import PodFault

WRITE_AS_ONE_BYTES = 64 * 1024
"""A head and a body up to this size are put together and go out in one plain write."""

MAX_HEAD_BYTES = 64 * 1024
WRITE_HIGH_BYTES = 256 * 1024
MAX_HELD_BYTES = 128 * 1024 * 1024
"""Of an answer that is read whole; a pod that never ends one must not fill the memory."""

Sink = Callable[[bytes], None]
RawHeaders = list[tuple[bytes, bytes]]


class PodConnection(asyncio.Protocol):
    """A connection and, while a request is on it, the answer.

    used: how many requests it has carried. idle_since: loop time at which the last one was over.
    silent_since: loop time of the last bytes of the current answer. closed: the pod or we have closed it.
    """

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append  # the parser calls it: no frame of Python per piece
        self._sink: Sink | None = None
        self._head_bytes = 0
        self._held = 0
        self._bodyless = False
        self._framed = False
        self._paused = False
        self.used = 0
        self.idle_since = 0.0
        self.silent_since = 0.0
        self.closed = False
        self.status = 0
        self.raw_headers: RawHeaders = []
        self.has_head = False
        self.complete = False
        self.fault: PodFault | None = None

    # ---- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        parser = self._parser
        if parser is None:
            self._broke(PodFault("malformed", "bytes that nobody asked for"))
            return
        self.silent_since = self.loop.time()
        try:
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._broke(PodFault("malformed", type(error).__name__))
            return
        sink, pieces = self._sink, self._pieces
        if sink is None:
            self._hold(len(data))
            return
        if pieces:
            data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
            try:
                sink(data)
            except Exception as error:  # noqa: BLE001 - belongs to the request that waits, not to the event loop
                self.complete = False  # whether the pod is done or not
                self._broke(error)
                return
        if self.complete:
            self._wake()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._transport = None
        parser, self._parser = self._parser, None  # each holds the other
        if parser is None or self.complete:
            return
        if self.has_head and not self._framed and exc is None:
            self.complete = True
            self._wake()
        else:
            self._broke(PodFault("reset", type(exc).__name__ if exc is not None else "closed before the end"))

    # ---- httptools

    def on_message_begin(self) -> None:
        if self.complete:  # an answer behind the answer: what comes next cannot be told apart
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.has_head:
            self.raw_headers.append((name, value))

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        self.status = self._parser.get_status_code()
        if self.status < 200:
            return
        self.has_head = True
        names = [name.lower() for name, _ in self.raw_headers]
        self._framed = b"content-length" in names or b"transfer-encoding" in names or self.status in (204, 304)

    def on_message_complete(self) -> None:
        assert self._parser is not None
        if self.status < 200:  # an interim answer; the real one follows
            self.raw_headers.clear()
            return
        if not self._parser.should_keep_alive():
            self.close()
        self.complete = True

    # ---- one request

    def ask(self, data: bytes, body: bytes, *, bodyless: bool) -> None:
        """Send a request. bodyless: its answer has no body whatever its head says (HEAD)."""
        if self._transport is None:
            raise PodFault("reset", "the connection was closed while it was idle")
        self.used += 1
        self.status, self.raw_headers, self.has_head, self.complete, self.fault = 0, [], False, False, None
        self._sink, self._head_bytes, self._bodyless, self._held = None, 0, bodyless, 0
        self._pieces.clear()
        self._parser = httptools.HttpResponseParser(self)
        self.silent_since = self.loop.time()
        if len(body) < WRITE_AS_ONE_BYTES:
            self._transport.write(data + body)
        else:
            self._transport.writelines((data, body))

    async def until_head(self) -> None:
        """Wait for the head. Raises PodFault."""
        while not self.has_head:
            await self._wait()
        if self._bodyless and not self.complete:
            self.close()
            self.complete = True

    async def until_complete(self) -> bytes:
        """Wait for the whole body. Raises PodFault."""
        while not self.complete:
            await self._wait()
        return self.take()

    async def until_more(self) -> bytes:
        """Wait for a piece of the body; empty at its end. Raises PodFault."""
        while not self._pieces and not self.complete:
            await self._wait()
        return self.take()

    async def pipe(self, sink: Sink) -> None:
        """Hand everything that comes to `sink`, from within the reads, until the end. Raises PodFault."""
        if data := self.take():
            sink(data)
        self._sink = sink
        try:
            while not self.complete:
                await self._wait()
        finally:
            self._sink = None

    def take(self) -> bytes:
        """What has arrived and was not taken yet."""
        pieces = self._pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._held = 0
        return data

    def pause(self) -> None:
        """Read nothing for now, so that the pod feels it."""
        if self._transport is not None and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if self._paused:
            self._paused = False
            self.silent_since = self.loop.time()
            if self._transport is not None:
                self._transport.resume_reading()

    @property
    def paused(self) -> bool:
        """True while nothing is read."""
        return self._paused

    def break_off(self, fault: PodFault) -> None:
        """Give the answer up."""
        self._broke(fault)

    def close(self) -> None:
        """Close the connection; the pod aborts what it was doing for it."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    @property
    def heard(self) -> bool:
        """True once a byte of the current answer came."""
        return self._head_bytes > 0

    @property
    def reusable(self) -> bool:
        """True when another request may be sent on it."""
        return self.complete and not self.closed and self._transport is not None

    def rest(self) -> None:
        """The answer has been taken; the connection is idle now."""
        self._parser = None
        self._pieces.clear()
        if self._paused:
            self.resume()
        self.idle_since = self.loop.time()

    async def _wait(self) -> None:
        if self.closed and not self.complete:
            raise self._take_fault()
        self._waiter = self.loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
        if self.closed and not self.complete:
            raise self._take_fault()

    def _take_fault(self) -> Exception:
        """What broke it. Once raised, a fault holds frames that hold this connection, so this must not hold it."""
        fault, self.fault = self.fault, None
        return fault or PodFault("reset", "the connection was closed")

    def _hold(self, read_bytes: int) -> None:
        """A read for someone who takes the answer whole or in pieces."""
        if self._pieces:
            self._held += read_bytes
            if self._held > MAX_HELD_BYTES:
                self._broke(PodFault("malformed", "the answer is too large"))
                return
        if self._head_bytes <= MAX_HEAD_BYTES:
            self._head_bytes += read_bytes
            if not self.has_head and self._head_bytes > MAX_HEAD_BYTES:
                self._broke(PodFault("malformed", "the head of the answer is too large"))
                return
        if self.has_head:
            self._wake()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _broke(self, fault: Exception) -> None:
        if not self.complete and self.fault is None:
            self.fault = fault  # type: ignore[assignment]
        self.close()
        self._wake()


def head_of(method: str, host: str, target: str, headers: Headers, body_bytes: int) -> bytes:
    """A request's head. Raises ValueError for a line break in what others have made."""
    lines = [f"{method} {target} HTTP/1.1\r\nHost: {host}\r\n"]
    lines += [f"{name}: {value}\r\n" for name, value in headers]
    if body_bytes or method not in ("GET", "HEAD"):
        lines.append(f"Content-Length: {body_bytes}\r\n")
    lines.append("\r\n")
    return "".join(lines).encode("latin-1")
