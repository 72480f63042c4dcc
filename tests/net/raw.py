"""A server with a handler of its own, and a client of raw sockets: the bytes are exactly the ones in the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from gateway.net.connection import Limits
from gateway.net.exchange import Incoming, Outgoing
from gateway.net.server import HttpServer

Handler = Callable[[Incoming, Outgoing], Awaitable[None]]
CRLF = b"\r\n"


@dataclass
class Seen:
    """What the handler was given, and how it ended."""

    requests: list[Incoming] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def until_ended(self, count: int) -> None:
        async with asyncio.timeout(30):
            while len(self.ends) < count:
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def serving(handler: Handler, limits: Limits | None = None) -> AsyncIterator[tuple[int, Seen, HttpServer]]:
    seen = Seen()

    async def handle(incoming: Incoming, outgoing: Outgoing) -> None:
        seen.requests.append(incoming)
        try:
            await handler(incoming, outgoing)
        except BaseException as error:
            seen.ends.append(type(error).__name__)
            raise
        else:
            seen.ends.append("done")
        finally:
            seen.changed.set()

    server = HttpServer(handle, limits, tick_s=0.01)
    port = await server.start("127.0.0.1", 0)
    try:
        yield port, seen, server
    finally:
        await server.stop()


async def echo(incoming: Incoming, outgoing: Outgoing) -> None:
    length = b"%d" % len(incoming.body)
    outgoing.send(200, [(b"X-Length", length)], incoming.method.encode() + b" " + incoming.body[:50])


async def hang_up(writer: asyncio.StreamWriter) -> None:
    """Close a connection and see it closed."""
    writer.transport.abort()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def talk(port: int, *pieces: bytes, half_close: bool = False) -> bytes:
    """Send pieces, read until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        if half_close:
            writer.write_eof()
        async with asyncio.timeout(30):
            return await reader.read()
    except ConnectionError:
        return b"(reset)"
    finally:
        await hang_up(writer)


def request(body: bytes = b"", *headers: bytes, method: bytes = b"POST", close: bool = True) -> bytes:
    lines = [method + b" /x?q=1 HTTP/1.1", b"Host: h", *headers]
    if not any(line.lower().startswith((b"content-length", b"transfer-encoding")) for line in headers):
        lines.append(b"Content-Length: %d" % len(body))
    if close:
        lines.append(b"Connection: close")
    return CRLF.join(lines) + CRLF * 2 + body


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])
