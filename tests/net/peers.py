"""A peer whose bytes are the test's own, and a client that calls it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from gateway.net.upstream import PodClient

Script = Callable[["Call"], Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: Text/Event-Stream; charset=utf-8\r\n"
WHOLE = HEAD + b"Content-Length: 5\r\n\r\nhello"


@dataclass
class Call:
    """One request at the peer."""

    head: bytes
    body: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    number: int

    async def say(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()

    def reset(self) -> None:
        self.writer.transport.abort()


@dataclass
class Peer:
    url: str = ""
    calls: list[Call] = field(default_factory=list)
    connections: int = 0


@asynccontextmanager
async def peer(script: Script) -> AsyncIterator[tuple[Peer, PodClient]]:
    """A peer that runs the script for every request, and a client."""
    here, tasks = Peer(), set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        here.connections += 1
        tasks.add(asyncio.current_task())
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
                body = await reader.readexactly(int(lines[0].partition(b":")[2])) if lines else b""
                here.calls.append(Call(head, body, reader, writer, len(here.calls)))
                await script(here.calls[-1])
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            return
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    here.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        async with PodClient(1.0) as client:
            yield here, client
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def ask(
    here: Peer, client: PodClient, body: bytes = b"{}", timeout_s: float = 5.0, method: str = "POST"
) -> bytes:
    answer = await client.call(method, here.url, "/v1/x?y=1", [("X-A", "1")], body, timeout_s)
    try:
        return await answer.read(timeout_s)
    finally:
        answer.close()
