"""A client's connection against a handler of its own: what HTTP/1.1 asks for, and what hostile clients send.

Raw sockets, so that the bytes are exactly the ones in the test.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest

from gateway.net.connection import MAX_HEADERS, MAX_PIPELINED, Limits
from gateway.net.exchange import ClientGoneError, Incoming, Outgoing
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
        async with asyncio.timeout(10):
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
    outgoing.send(200, [("X-Length", str(len(incoming.body)))], incoming.method.encode() + b" " + incoming.body[:50])


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
        async with asyncio.timeout(10):
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


async def test_a_request_is_given_whole_and_its_answer_sent_whole() -> None:
    async with serving(echo) as (port, seen, _):
        answer = await talk(port, request(b"hello", b"X-One: 1", b"x-one: 2"))
    incoming = seen.requests[0]
    assert (incoming.method, incoming.path, incoming.target) == ("POST", "/x", "/x?q=1")
    assert incoming.headers["X-ONE"] == "1"
    assert incoming.headers.get("missing") is None
    assert [value for name, value in incoming.header_items() if name.lower() == "x-one"] == ["1", "2"]
    assert answer == (b"HTTP/1.1 200 OK\r\nX-Length: 5\r\nconnection: close\r\ncontent-length: 10\r\n\r\nPOST hello")


async def test_a_body_may_come_in_any_pieces() -> None:
    whole = request(b"a" * 300_000)
    async with serving(echo) as (port, seen, _):
        await talk(port, *[whole[at : at + 7_001] for at in range(0, len(whole), 7_001)])
        await talk(port, *[bytes([byte]) for byte in request(b"small")])
        chunked = request(b"", b"Transfer-Encoding: chunked") + b"3\r\nabc\r\n2;ext=1\r\nde\r\n0\r\nTrailer: t\r\n\r\n"
        await talk(port, chunked)
    assert [bytes(r.body) for r in seen.requests] == [b"a" * 300_000, b"small", b"abcde"]
    assert seen.requests[2].headers.get("Trailer") is None


async def test_many_requests_on_one_connection_pipelined_or_not() -> None:
    async with serving(echo) as (port, seen, _):
        first, last = request(b"1", close=False), request(b"3")
        answer = await talk(port, first + request(b"2", close=False) + last)
    assert [r.body for r in seen.requests] == [b"1", b"2", b"3"]
    assert answer.count(b"HTTP/1.1 200 OK") == 3
    assert answer.index(b"POST 1") < answer.index(b"POST 2") < answer.index(b"POST 3")


async def test_a_stream_is_chunked_and_flows_at_once() -> None:
    go_on = asyncio.Event()

    async def stream(incoming: Incoming, outgoing: Outgoing) -> None:
        outgoing.start(200, [("Content-Type", "text/event-stream")])
        outgoing.write(b"one")
        await go_on.wait()
        outgoing.write(b"twotwotwotwotwotwo")
        outgoing.end()

    async with serving(stream) as (port, _, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(close=False))
        assert await reader.readuntil(b"\r\n\r\n") == (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        assert await reader.readexactly(8) == b"3\r\none\r\n"
        go_on.set()
        assert await reader.readexactly(29) == b"12\r\ntwotwotwotwotwotwo\r\n0\r\n\r\n"
        await hang_up(writer)


async def test_an_old_client_gets_a_stream_that_ends_with_the_connection() -> None:
    async def stream(incoming: Incoming, outgoing: Outgoing) -> None:
        outgoing.start(200, [])
        outgoing.write(b"one")
        outgoing.end()

    async with serving(stream) as (port, _, _):
        answer = await talk(port, b"GET / HTTP/1.0\r\n\r\n")
    assert answer == b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\none"


async def test_head_gets_the_head() -> None:
    async with serving(echo) as (port, _, _):
        answer = await talk(port, request(method=b"HEAD"))
    assert answer.endswith(b"content-length: 5\r\n\r\n")


async def test_expect_100_continue_is_answered_before_the_body() -> None:
    async with serving(echo, Limits(max_body_bytes=1000)) as (port, seen, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(b"", b"Expect: 100-continue", b"Content-Length: 3", close=False))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"abc")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK")
        await hang_up(writer)
        refused = await talk(port, request(b"", b"Expect: 100-continue", b"Content-Length: 1001"))
        assert status(refused) == 413
        assert b"100 Continue" not in refused
        assert len(seen.requests) == 1


async def test_a_client_that_leaves_cancels_its_request() -> None:
    began = asyncio.Event()

    async def wait(incoming: Incoming, outgoing: Outgoing) -> None:
        began.set()
        await asyncio.Event().wait()

    async with serving(wait) as (port, seen, server):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request())
        await began.wait()
        await hang_up(writer)
        await seen.until_ended(1)
        assert seen.ends == ["CancelledError"]
        async with asyncio.timeout(10):
            while server.connections:  # noqa: ASYNC110 - nothing announces it
                await asyncio.sleep(0.001)


async def test_writing_to_a_client_that_left_says_so() -> None:
    async def flood(incoming: Incoming, outgoing: Outgoing) -> None:
        outgoing.start(200, [])
        try:
            while True:
                outgoing.write(b"x" * 1000)
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            with pytest.raises(ClientGoneError):
                outgoing.write(b"x")
            raise

    async with serving(flood) as (port, seen, _):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request())
        await hang_up(writer)
        await seen.until_ended(1)
    assert seen.ends == ["CancelledError"]


class Source:
    """Something that is paced."""

    def __init__(self) -> None:
        self.paused = asyncio.Event()
        self.resumed = asyncio.Event()

    def pause(self) -> None:
        self.paused.set()

    def resume(self) -> None:
        self.resumed.set()


async def test_a_slow_client_pauses_the_source_and_a_client_that_takes_nothing_is_cut() -> None:
    source = Source()

    async def flood(incoming: Incoming, outgoing: Outgoing) -> None:
        outgoing.start(200, [])
        outgoing.pace(source)
        while not source.paused.is_set():
            outgoing.write(b"x" * 10_000)
        if incoming.path == "/read":
            await source.resumed.wait()
            outgoing.end()
        else:
            await asyncio.Event().wait()

    async with serving(flood, Limits(stall_s=0.05)) as (port, seen, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 26)
        writer.write(b"GET /read HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        await source.paused.wait()
        assert len(await reader.read()) > 60_000
        assert seen.ends == ["done"]
        source.paused.clear()
        _, silent = await asyncio.open_connection("127.0.0.1", port, limit=1)
        silent.write(b"GET /stall HTTP/1.1\r\nHost: h\r\n\r\n")
        await seen.until_ended(2)
        assert seen.ends == ["done", "CancelledError"]
        await hang_up(writer)
        await hang_up(silent)


SMUGGLING = {
    "both lengths": request(b"abc", b"Content-Length: 3", b"Transfer-Encoding: chunked"),
    "two lengths": request(b"abc", b"Content-Length: 3", b"Content-Length: 4"),
    "two equal lengths": request(b"abc", b"Content-Length: 3", b"Content-Length: 3"),
    "a list of lengths": request(b"abc", b"Content-Length: 3, 3"),
    "a signed length": request(b"abc", b"Content-Length: +3"),
    "a hexadecimal length": request(b"abc", b"Content-Length: 0x3"),
    "a negative length": request(b"abc", b"Content-Length: -3"),
    "an endless length": request(b"abc", b"Content-Length: 99999999999999999999999"),
    "another coding": request(b"abc", b"Transfer-Encoding: gzip"),
    "chunked, then another": request(b"abc", b"Transfer-Encoding: chunked, identity"),
    "a coding in disguise": request(b"abc", b"Transfer-Encoding: xchunked"),
    "white space before the colon": request(b"abc", b"Content-Length : 3"),
    "a folded header": request(b"", b"X-A: 1\r\n 2"),
    "a header without a name": request(b"", b": 1"),
    "a bare line feed": b"POST / HTTP/1.1\nHost: h\nContent-Length: 0\n\n",
    "a bare carriage return": b"POST / HTTP/1.1\r\nHost: h\rX: 1\r\n\r\n",
    "a null in a header": request(b"", b"X-A: a\x00b"),
    "a chunk size with rubbish": request(b"", b"Transfer-Encoding: chunked") + b"3x\r\nabc\r\n0\r\n\r\n",
    "a chunk longer than its size": request(b"", b"Transfer-Encoding: chunked") + b"2\r\nabc\r\n0\r\n\r\n",
    "a chunk size beyond all bounds": request(b"", b"Transfer-Encoding: chunked") + b"f" * 17 + b"\r\n",
    "no HTTP at all": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "an unknown version": b"GET / HTTP/3.7\r\nHost: h\r\n\r\n",
    "no version": b"GET /\r\n\r\n",
    "a control character in the path": b"GET /\x01 HTTP/1.1\r\nHost: h\r\n\r\n",
    "CONNECT": b"CONNECT h:80 HTTP/1.1\r\nHost: h\r\n\r\n",
    "an upgrade": request(b"", b"Connection: Upgrade", b"Upgrade: h2c", close=False),
}


@pytest.mark.parametrize("what", SMUGGLING)
async def test_what_is_no_proper_request_is_refused_and_the_connection_closed(what: str) -> None:
    async with serving(echo) as (port, seen, _):
        answer = await talk(port, SMUGGLING[what] + request(b"smuggled"))
    assert status(answer) == 400, answer[:200]
    assert b'"type":"invalid_request_error"' in answer
    assert b"connection: close" in answer
    assert all(r.body != b"smuggled" for r in seen.requests)


async def test_a_good_request_before_a_bad_one_is_answered_first() -> None:
    async with serving(echo) as (port, _, _):
        answer = await talk(port, request(b"good", close=False) + b"rubbish\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert answer.count(b"HTTP/1.1 400 Bad Request") == 1


BOMBS = {
    "a header line without end": (b"GET / HTTP/1.1\r\nX: " + b"a" * 200_000, 431),
    "a path without end": (b"GET /" + b"a" * 200_000, 431),
    "too many headers": (b"GET / HTTP/1.1\r\n" + b"X: 1\r\n" * (MAX_HEADERS + 1) + b"\r\n", 431),
    "a body that says it is too large": (request(b"", b"Content-Length: 1001"), 413),
    "a chunked body that is too large": (
        request(b"", b"Transfer-Encoding: chunked") + b"3e8\r\n" + b"a" * 1000 + b"\r\n1\r\na",
        413,
    ),
}


@pytest.mark.parametrize("what", BOMBS)
async def test_what_is_too_large_is_refused(what: str) -> None:
    bomb, code = BOMBS[what]
    async with serving(echo, Limits(max_body_bytes=1000)) as (port, seen, _):
        answer = await talk(port, bomb)
        assert answer == b"(reset)" or status(answer) == code
        assert seen.requests == []
        assert (await talk(port, request(b"a" * 1000))).startswith(b"HTTP/1.1 200 OK")


async def test_more_pipelined_requests_than_anybody_needs_are_refused() -> None:
    go_on = asyncio.Event()

    async def wait(incoming: Incoming, outgoing: Outgoing) -> None:
        await go_on.wait()
        outgoing.send(200, [], b"")

    async with serving(wait) as (port, seen, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(close=False) * (MAX_PIPELINED + 10))
        await writer.drain()
        go_on.set()
        answer = await reader.read()
        await hang_up(writer)
    assert answer.count(b"HTTP/1.1 200 OK") == MAX_PIPELINED + 1
    assert answer.count(b"HTTP/1.1 400 Bad Request") == 1
    assert len(seen.requests) == MAX_PIPELINED + 1


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"", None),
        (b"POST / HT", 408),
        (b"POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc", 408),
    ],
    ids=["nothing", "half a head", "half a body"],
)
async def test_a_client_that_does_not_come_to_the_point_is_cut(sent: bytes, code: int | None) -> None:
    limits = Limits(head_s=0.05, body_s=0.05, idle_s=0.05)
    async with serving(echo, limits) as (port, seen, _):
        answer = await talk(port, sent)
    assert seen.requests == []
    assert answer in (b"", b"(reset)") if code is None else status(answer) == code


async def test_an_idle_connection_is_closed_and_a_busy_one_is_not() -> None:
    async with serving(echo, Limits(idle_s=0.05)) as (port, _, server):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(b"x", close=False))
        assert (await reader.readuntil(b"POST x")).startswith(b"HTTP/1.1 200 OK")
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        await hang_up(writer)
        assert server.connections == 0


async def test_a_stopping_server_lets_requests_end_and_closes_idle_connections() -> None:
    go_on = asyncio.Event()

    async def wait(incoming: Incoming, outgoing: Outgoing) -> None:
        await go_on.wait()
        outgoing.send(200, [], b"done")

    async with serving(wait) as (port, seen, server):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        idle_reader, idle_writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(close=False))
        async with asyncio.timeout(10):
            while not seen.requests:  # noqa: ASYNC110 - nothing announces it
                await asyncio.sleep(0.001)
        await server.stop_accepting()
        assert await idle_reader.read() == b""
        go_on.set()
        answer = await reader.read()
        assert answer.endswith(b"connection: close\r\ncontent-length: 4\r\n\r\ndone")
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        await hang_up(writer)
        await hang_up(idle_writer)


async def test_a_handler_that_says_nothing_closes_the_connection() -> None:
    async def silent(incoming: Incoming, outgoing: Outgoing) -> None:
        return

    async with serving(silent) as (port, _, _):
        assert await talk(port, request(close=False)) == b""


async def test_while_one_request_runs_little_of_the_next_is_read() -> None:
    go_on = asyncio.Event()

    async def wait(incoming: Incoming, outgoing: Outgoing) -> None:
        await go_on.wait()
        outgoing.send(200, [], b"%d" % len(incoming.body))

    size = 8 << 20
    async with serving(wait) as (port, seen, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(close=False) + request(b"a" * size))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await writer.drain()
        go_on.set()
        assert (await reader.read()).endswith(b"%d" % size)
        assert len(seen.requests) == 2
        await hang_up(writer)
