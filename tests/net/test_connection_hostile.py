"""A client's connection against a handler of its own: what hostile and stuck clients send."""

from __future__ import annotations

import asyncio

import pytest

from gateway.net.connection import MAX_HEADERS, MAX_PIPELINED, Limits
from gateway.net.exchange import Incoming, Outgoing
from tests.net.raw import echo, hang_up, request, serving, status, talk

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
    ("sent", "limits", "code"),
    [
        (b"", Limits(head_s=0.05), None),
        (b"POST / HT", Limits(head_s=0.3), 408),
        (b"POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc", Limits(head_s=60.0, body_s=0.05), 408),
    ],
    ids=["nothing", "half a head", "half a body"],
)
async def test_a_client_that_does_not_come_to_the_point_is_cut(sent: bytes, limits: Limits, code: int | None) -> None:
    async with serving(echo, limits) as (port, seen, _):
        answer = await talk(port, sent)
    assert seen.requests == []
    assert answer in (b"", b"(reset)") if code is None else status(answer) == code


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
