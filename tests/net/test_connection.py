"""A client's connection against a handler of its own: what HTTP/1.1 asks for."""

from __future__ import annotations

import asyncio
import math
import time
from typing import cast

import pytest

from gateway.net.connection import Connection, Limits
from gateway.net.exchange import ClientGoneError, Incoming, Outgoing
from tests.net.raw import echo, hang_up, request, serving, status, talk


async def test_a_request_is_given_whole_and_its_answer_sent_whole() -> None:
    async with serving(echo) as (port, seen, _):
        answer = await talk(port, request(b"hello", b"X-One: 1", b"x-one: 2"))
    incoming = seen.requests[0]
    assert (incoming.method, incoming.path, incoming.target) == ("POST", "/x", "/x?q=1")
    assert incoming.headers["x-one"] == "1"
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
    assert seen.requests[2].headers.get("trailer") is None


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
        outgoing.start(200, [(b"Content-Type", b"text/event-stream")])
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


@pytest.mark.parametrize("size", [1, 15, 16, 2047, 2048, 70_000])
async def test_a_chunk_says_how_long_it_is(size: int) -> None:
    async def stream(incoming: Incoming, outgoing: Outgoing) -> None:
        outgoing.start(200, [])
        outgoing.write(b"a" * size)
        outgoing.end()

    async with serving(stream) as (port, _, _):
        answer = await talk(port, request())
    assert answer.endswith(b"\r\n\r\n%x\r\n" % size + b"a" * size + b"\r\n0\r\n\r\n")


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


@pytest.mark.parametrize(
    ("headers", "continues"),
    [
        ([b"Expect: something", b"Expect: 100-Continue"], True),
        ([b"Expect: something"], False),
        ([b"X-Expect: 100-continue"], False),
    ],
)
async def test_only_who_waits_for_a_word_gets_one(headers: list[bytes], continues: bool) -> None:
    async with serving(echo) as (port, _, _):
        answer = await talk(port, request(b"abc", *headers))
    assert answer.startswith(b"HTTP/1.1 100 Continue") == continues
    assert answer.endswith(b"POST abc")


async def test_an_answer_may_have_no_headers_and_a_status_that_nobody_knows() -> None:
    async def odd(incoming: Incoming, outgoing: Outgoing) -> None:
        outgoing.send(299, [], b"odd")

    async with serving(odd) as (port, _, _):
        answer = await talk(port, request())
    assert answer == b"HTTP/1.1 299 Unknown\r\nconnection: close\r\ncontent-length: 3\r\n\r\nodd"


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
        async with asyncio.timeout(30):
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

    async with serving(flood) as (port, seen, server):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 26)
        writer.write(b"GET /read HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        await source.paused.wait()
        assert len(await reader.read()) > 60_000
        assert seen.ends == ["done"]
        source.paused.clear()
        server.limits = Limits(stall_s=0.05)
        _, silent = await asyncio.open_connection("127.0.0.1", port, limit=1)
        silent.write(b"GET /stall HTTP/1.1\r\nHost: h\r\n\r\n")
        await seen.until_ended(2)
        assert seen.ends == ["done", "CancelledError"]
        await hang_up(writer)
        await hang_up(silent)


async def test_an_idle_connection_is_closed_and_a_busy_one_is_not() -> None:
    async with serving(echo, Limits(idle_s=0.05)) as (port, _, server):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(b"x", close=False))
        assert (await reader.readuntil(b"POST x")).startswith(b"HTTP/1.1 200 OK")
        async with asyncio.timeout(30):
            assert await reader.read() == b""
        await hang_up(writer)
        assert server.connections == 0


async def test_a_connection_is_idle_for_as_long_as_it_may_though_a_head_has_less_time() -> None:
    """It is looked at when the head's time is over, which it was not for; the idle time counts from the answer on."""
    served: list[Connection] = []

    async def kept(incoming: Incoming, outgoing: Outgoing) -> None:
        served.append(cast(Connection, outgoing))
        await echo(incoming, outgoing)

    async with serving(kept, Limits(head_s=0.2, idle_s=0.8)) as (port, _, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(b"x", close=False))
        await reader.readuntil(b"POST x")
        first_look = served[0].next_look
        async with asyncio.timeout(30):
            while served[0].next_look == first_look:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        writer.write(request(b"y", close=False))
        await reader.readuntil(b"POST y")
        began = time.monotonic()
        async with asyncio.timeout(30):
            assert await reader.read() == b""
        assert time.monotonic() - began > 0.6
        await hang_up(writer)


async def test_a_connection_that_was_busy_when_it_was_looked_at_is_watched_again_afterwards() -> None:
    async def slow(incoming: Incoming, outgoing: Outgoing) -> None:
        async with asyncio.timeout(30):
            while cast(Connection, outgoing).next_look != math.inf:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        outgoing.send(200, [], b"done")

    async with serving(slow, Limits(head_s=0.2, idle_s=0.2)) as (port, _, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(b"x", close=False))
        async with asyncio.timeout(30):
            assert (await reader.read()).endswith(b"done")
        await hang_up(writer)


async def test_a_later_head_has_no_more_time_than_the_first_and_more_bytes_of_it_give_it_none() -> None:
    async with serving(echo, Limits(head_s=0.2, idle_s=60.0)) as (port, seen, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(b"x", close=False))
        await reader.readuntil(b"POST x")
        answer = asyncio.create_task(reader.readline())
        async with asyncio.timeout(30):
            for byte in request(b"", b"X: " + b"a" * 10_000):
                if answer.done():
                    break
                writer.write(bytes([byte]))
                await asyncio.sleep(0.01)
            assert status(await answer) == 408
        assert len(seen.requests) == 1
        await hang_up(writer)


async def test_a_stopping_server_lets_requests_end_and_closes_idle_connections() -> None:
    go_on = asyncio.Event()

    async def wait(incoming: Incoming, outgoing: Outgoing) -> None:
        await go_on.wait()
        outgoing.send(200, [], b"done")

    async with serving(wait) as (port, seen, server):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        idle_reader, idle_writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(close=False))
        async with asyncio.timeout(30):
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
