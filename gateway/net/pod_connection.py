"""One connection to a pod: HTTP/1.1 on `asyncio.Protocol` with llhttp.

Rule of this room: one request at a time; what arrives is handed on within the read that brought it, as one piece. A
connection is used again only when the answer before was complete and the pod did not say it would close.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Protocol, cast

import httptools

from gateway.net.exchange import Headers
from gateway.net.fault import PodFault
from gateway.wire.even import is_one_chunk

WRITE_AS_ONE_BYTES = 64 * 1024
"""A head and a body up to this size are put together and go out in one plain write."""

MAX_HEAD_BYTES = 64 * 1024
WRITE_HIGH_BYTES = 256 * 1024
MAX_HELD_BYTES = 128 * 1024 * 1024
"""Of an answer that is read whole; a pod that never ends one must not fill the memory."""


class ChunkSink(Protocol):
    """Takes reads that are one HTTP chunk each, framing and all, before anything else looks at them.

    last_at: monotonic seconds of the last one.
    """

    last_at: float

    def begin(self) -> bool:
        """The next read begins with a chunk. False: let it come as usual."""

    def takes(self, chunk: bytes) -> bool:
        """False: it is something else, and nothing has happened."""


Sink = Callable[[bytes], ChunkSink | None]
"""Takes a piece of the body. What it returns, if anything, may take the reads that follow."""


class PodConnection(asyncio.Protocol):
    """A connection and, while a request is on it, the answer.

    used: how many requests it has carried. silent_since: monotonic seconds of the last bytes that came or went.
    complete: of an answer that somebody waits for, nothing is missing. closed: the pod or we have closed it.

    Every wait for the pod has its limit. One timer is there for all of them: a limit is looked at when it fires.
    """

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append  # the parser calls it: no frame of Python per piece
        self._sink: Sink | None = None
        self._chunks: ChunkSink | None = None
        self._held = 0
        self._paused = False
        self._until = inf
        self._limit = (inf, "", False)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf
        self.used = 0
        self.silent_since = 0.0
        self.closed = False
        self.status = 0
        self.raw_headers: list[tuple[bytes, bytes]] = []
        self.has_head = False
        self.complete = True
        self.fault: PodFault | None = None

    # ---- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        chunks = self._chunks
        if chunks is not None:
            try:
                if chunks.takes(data):  # the parser stands where it stood: between two chunks
                    return
            except Exception as error:  # noqa: BLE001 - belongs to the request that waits, not to the event loop
                self._broke(error)
                return
            self._chunks = None
        if self.complete:  # bytes that nobody asked for
            self.close()
            return
        self.silent_since = monotonic()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self.complete:
                self._broke(PodFault("malformed", type(error).__name__))
                return
            self.close()  # the answer is whole; what came behind it is nobody's
        sink, pieces = self._sink, self._pieces
        if sink is None:
            self._held += len(data)
            if self._held > (MAX_HELD_BYTES if self.has_head else MAX_HEAD_BYTES):
                what = "answer" if self.has_head else "head of the answer"
                self._broke(PodFault("malformed", f"the {what} is too large"))
            elif self.has_head and not self.complete:
                self._wake()
        elif pieces:
            piece = b"".join(pieces)  # the piece itself where it is the only one
            pieces.clear()
            try:
                chunks = sink(piece)
                if chunks is not None and is_one_chunk(data, piece) and chunks.begin():
                    self._chunks = chunks
            except Exception as error:  # noqa: BLE001 - belongs to the request that waits, not to the event loop
                self.complete = False  # whether the pod is done or not
                self._broke(error)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._transport = None
        del self._parser  # each holds the other
        if self._timer is not None:
            self._timer.cancel()
        if self.complete:
            return
        if self.has_head and exc is None and self.fault is None and not self._framed():
            self.complete = True
            self._wake()
        else:
            self._broke(PodFault("reset", type(exc).__name__ if exc is not None else "closed before the end"))

    # ---- httptools

    def on_message_begin(self) -> None:
        if self.complete:  # nothing of an answer behind the answer
            raise httptools.HttpParserError("an answer that nobody asked for")

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.has_head:
            self.raw_headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.status = status = self._parser.get_status_code()
        self.has_head = status >= 200

    def on_message_complete(self) -> None:
        if not self.has_head:  # an interim answer; the real one follows
            self.raw_headers.clear()
            return
        if not self._parser.should_keep_alive():
            self.close()
        self.complete = True
        self._wake()

    # ---- one request

    def ask(self, data: bytes, body: bytes) -> None:
        """Send a request."""
        if self._transport is None:
            raise PodFault("reset", "the connection was closed while it was idle")
        self.used += 1
        self.raw_headers = []
        self.has_head = self.complete = False
        self._held = 0
        self.silent_since = monotonic()
        if len(body) < WRITE_AS_ONE_BYTES:
            self._transport.write(data + body)
        else:
            self._transport.writelines((data, body))

    async def until_head(self, within_s: float, *, bodyless: bool = False) -> None:
        """Wait for the head. bodyless: no body follows whatever the head says (HEAD). Raises PodFault."""
        self._allow(within_s, "no answer within")
        try:
            while not self.has_head:
                await self._news()
        finally:
            self._until = inf
        if self.closed and not self.complete:
            raise self._take_fault()
        if bodyless and not self.complete:
            self.close()
            self.complete = True

    async def until_complete(self, within_s: float) -> bytes:
        """Wait for the whole body. Raises PodFault."""
        self._allow(within_s, "the body took more than")
        try:
            while not self.complete:
                await self._news()
        finally:
            self._until = inf
        return self.take()

    async def until_more(self, within_s: float) -> bytes:
        """Wait for a piece of the body; empty at its end. Raises PodFault."""
        if not self._pieces and not self.complete:
            self._allow(within_s, "silent for more than")
            try:
                while not self._pieces and not self.complete:
                    await self._news()
            finally:
                self._until = inf
            if self.closed and not self.complete:
                raise self._take_fault()
        return self.take()

    async def pipe(self, sink: Sink, gap_s: float) -> None:
        """Hand everything that comes to `sink`, from within the reads, until the end. Raises PodFault.

        gap_s: how long the pod may be silent, unless it is paused.
        """
        if data := self.take():
            sink(data)
        self._sink = sink
        self._allow(gap_s, "silent for more than", gap=True)
        try:
            while not self.complete:
                await self._news()
        finally:
            self._sink = self._chunks = None
            self._until = inf

    def take(self) -> bytes:
        """What has arrived and was not taken yet."""
        data = b"".join(self._pieces)
        self._pieces.clear()
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
            self.silent_since = monotonic()
            if self._transport is not None:
                self._transport.resume_reading()

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
        """True once a byte of the current answer came, as long as nothing of it was taken."""
        return self._held > 0

    def rest(self) -> bool:
        """Nobody waits for anything more of the answer. True when another request may be sent."""
        if self.closed or not self.complete:
            return False
        self._pieces.clear()
        if self._paused:
            self.resume()
        return True

    def _allow(self, seconds: float, what: str, *, gap: bool = False) -> None:
        """Break the answer off when it takes longer than that: in all, or (gap) since its last bytes.

        Until `_until` is set to infinity again.
        """
        self._until = until = monotonic() + seconds
        self._limit = (seconds, what, gap)
        if until < self._timer_at:
            self._set_timer(until)

    def _set_timer(self, at: float) -> None:
        if self.closed:  # nobody would cancel it
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self.loop.call_later(max(0.001, at - monotonic()), self._fired)

    def _fired(self) -> None:
        self._timer, self._timer_at = None, inf
        if self._until == inf:
            return
        seconds, what, gap = self._limit
        now = monotonic()
        if gap:
            heard = self.silent_since if self._chunks is None else max(self.silent_since, self._chunks.last_at)
            self._until = max(self._until, (now if self._paused else heard) + seconds)
        if self._until > now:
            self._set_timer(self._until)
        else:
            self._broke(PodFault("timeout", f"{what} {seconds:g} s"))

    def _news(self) -> asyncio.Future[None]:
        """Is done when something has come, or will not come any more. Raises PodFault."""
        if self.closed and not self.complete:
            raise self._take_fault()
        self._waiter = waiter = self.loop.create_future()
        return waiter

    def _take_fault(self) -> Exception:
        """What broke it. Once raised, a fault holds frames that hold this connection, so this must not hold it."""
        fault, self.fault = self.fault, None
        return fault or PodFault("reset", "the connection was closed")

    def _framed(self) -> bool:
        """True when the end of the answer is not that of the connection."""
        names = {name.lower() for name, _ in self.raw_headers}
        return not names.isdisjoint((b"content-length", b"transfer-encoding"))

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
    """A request's head. Raises ValueError for letters that no head can have."""
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", *map(": ".join, headers)]
    if body_bytes or method not in ("GET", "HEAD"):
        lines.append(f"Content-Length: {body_bytes}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
