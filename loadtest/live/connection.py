"""One connection to a server: HTTP/1.1 on `asyncio.BufferedProtocol` with llhttp.

Rule of this room: the time of a token is taken once per read, before anything is looked into. One request at a time; a
connection is used again only after a complete answer that did not close it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import cast

import httptools

from loadtest.live import answer
from loadtest.live.sse import EventScanner, MalformedError

READ_BYTES = 64 * 1024
MAX_PLAIN_BYTES = 1024 * 1024
"""Kept of an answer that is no stream."""

_buffer = memoryview(bytearray(READ_BYTES))
"""Shared by all connections of the event loop: what a read puts there is taken out before the next read."""

Clock = Callable[[], float]


class Connection(asyncio.BufferedProtocol):
    """fault: what ended the current request before its end, None after a complete answer.

    spoke: a byte of the current answer has come. idle_since_s: when the last answer was complete.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._scanner: EventScanner | None = None
        self._now_s = 0.0
        self._framed = False
        self._streams = False
        self._total_s = 0.0
        self._sent_s = 0.0
        self.used = 0
        self.closed = False
        self.complete = False
        self.spoke = False
        self.status = 0
        self.location = ""
        self.plain = b""
        self.fault: str | None = None
        self.idle_since_s = 0.0

    # ---- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def get_buffer(self, sizehint: int) -> memoryview:
        return _buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._now_s = self._clock()
        if self._parser is None:
            self.close()
            return
        self.spoke = True
        try:
            self._parser.feed_data(_buffer[:nbytes])
        except httptools.HttpParserCallbackError as error:
            if not isinstance(error.__context__, MalformedError):
                raise
            self._end(answer.MALFORMED)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._end(answer.MALFORMED)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._transport = None
        if self._parser is None or self.complete:
            return
        if self.status >= 200 and not self._framed and exc is None:
            self._now_s = self._clock()
            self._end(None)
        else:
            self._end(answer.RESET)

    # ---- httptools

    def on_message_begin(self) -> None:
        if self.complete:  # an answer behind the answer
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in (b"content-length", b"transfer-encoding"):
            self._framed = True
        elif name == b"content-type":
            self._streams = value.lower().startswith(b"text/event-stream")
        elif name == b"location":
            self.location = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        self.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        if self._streams and self.status == 200 and self._scanner is not None:
            self._scanner.feed(data, self._now_s)
        elif len(self.plain) < MAX_PLAIN_BYTES:
            self.plain += data

    def on_message_complete(self) -> None:
        assert self._parser is not None
        if self.status < 200:  # an interim answer; the real one follows
            return
        if not self._parser.should_keep_alive():
            self.close()
        self._end(None)

    # ---- one request

    async def ask(
        self, data: bytes, scanner: EventScanner | None, *, sent_s: float, first_s: float, total_s: float
    ) -> float:
        """Send a request and read its answer; gives the time it ended, and leaves `fault`.

        first_s, total_s: how long to wait, from `sent_s` on, for a token and for the end.
        """
        self.used += 1
        self.status, self.location, self.plain, self.fault = 0, "", b"", None
        self.complete = self.spoke = self._framed = self._streams = False
        self._scanner, self._sent_s, self._total_s = scanner, sent_s, total_s
        self._parser = httptools.HttpResponseParser(self)
        self._waiter = self._loop.create_future()
        if self._transport is None:
            self._end(answer.RESET)
        else:
            self._wait_until(sent_s + (min(first_s, total_s) if scanner is not None else total_s))
            self._transport.write(data)
        try:
            await self._waiter
        except asyncio.CancelledError:
            self.close()
            raise
        finally:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._parser = self._waiter = self._scanner = None
        self.idle_since_s = self._now_s
        return self._now_s

    @property
    def reusable(self) -> bool:
        """True while another request may be sent on it."""
        return self.complete and not self.closed and self._transport is not None

    def close(self) -> None:
        """Hang up; what was not read is lost."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    def _wait_until(self, moment_s: float) -> None:
        self._timer = self._loop.call_later(max(0.0, moment_s - self._clock()), self._out_of_time)

    def _out_of_time(self) -> None:
        self._now_s = self._clock()
        total_s = self._sent_s + self._total_s
        spoken = self._scanner is None or bool(self._scanner.times)
        if spoken and self._now_s < total_s:
            self._wait_until(total_s)
            return
        self._end(answer.TIMEOUT if spoken else answer.TIMEOUT_FIRST)

    def _end(self, fault: str | None) -> None:
        if self.complete or self.fault is not None:
            return
        if fault is None:
            self.complete = True
        else:
            self.fault = fault
            self._now_s = self._clock()
            self.close()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
