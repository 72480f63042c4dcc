"""Calls to pods and their answers, against a peer whose bytes are the test's own."""

from __future__ import annotations

import asyncio

import pytest

from gateway.net.upstream import PodClient
from tests.net.peers import HEAD, WHOLE, Call, Peer, ask, peer


async def test_a_call_and_its_answer() -> None:
    async def script(call: Call) -> None:
        await call.say(WHOLE)

    async with peer(script) as (here, client):
        answer = await client.call("POST", here.url, "/v1/x?y=1", [("X-A", "1")], b"{}", 5.0)
        assert (answer.status, answer.content_type) == (200, "text/event-stream")
        assert answer.headers == [("Content-Type", "Text/Event-Stream; charset=utf-8"), ("Content-Length", "5")]
        assert await answer.read(5.0) == b"hello"
        call = here.calls[0]
        host = here.url.removeprefix("http://").encode()
        assert call.head == b"POST /v1/x?y=1 HTTP/1.1\r\nHost: " + host + b"\r\nX-A: 1\r\nContent-Length: 2\r\n\r\n"
        assert call.body == b"{}"


async def test_connections_are_used_again_and_as_many_as_needed() -> None:
    async def script(call: Call) -> None:
        await call.say(WHOLE)

    async with peer(script) as (here, client):
        for _ in range(3):
            assert await ask(here, client) == b"hello"
        assert here.connections == 1
        await asyncio.gather(*(ask(here, client) for _ in range(4)))
        assert 2 <= here.connections <= 5


async def test_a_large_body_goes_out_whole_and_a_large_answer_comes_in_whole() -> None:
    async def script(call: Call) -> None:
        await call.say(HEAD + b"Content-Length: %d\r\n\r\n" % len(call.body), call.body)

    async with peer(script) as (here, client):
        body = bytes(range(256)) * 20_000
        assert await ask(here, client, body) == body


FRAMES = {
    "chunked": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n", True),
    "until it closes": (HEAD + b"\r\nhello", False),
    "until it closes, said so": (HEAD + b"Connection: close\r\n\r\nhello", False),
    "after an interim answer": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + WHOLE,
        True,
    ),
    "and then it closes": (HEAD + b"Connection: close\r\nContent-Length: 5\r\n\r\nhello", False),
}


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("pieces", ["whole", "byte by byte"])
async def test_every_way_to_frame_an_answer(frame: str, pieces: str) -> None:
    data, again = FRAMES[frame]

    async def script(call: Call) -> None:
        await call.say(*([data] if pieces == "whole" else [bytes([byte]) for byte in data]))
        if not again:
            call.writer.close()

    async with peer(script) as (here, client):
        assert await ask(here, client) == b"hello"
        assert await ask(here, client) == b"hello"
        assert here.connections == (1 if again else 2)


@pytest.mark.parametrize("code", [204, 304])
async def test_an_answer_without_a_body(code: int) -> None:
    async def script(call: Call) -> None:
        await call.say(b"HTTP/1.1 %d X\r\n\r\n" % code)

    async with peer(script) as (here, client):
        assert await ask(here, client) == b""
        assert await ask(here, client) == b""
        assert here.connections == 1


async def test_head_has_no_body_whatever_its_length_says() -> None:
    async def script(call: Call) -> None:
        await call.say(HEAD + b"Content-Length: 5\r\n\r\n")

    async with peer(script) as (here, client):
        assert await ask(here, client, b"", method="HEAD") == b""
        assert b"Content-Length" not in here.calls[0].head


async def test_pieces_come_as_they_are_sent() -> None:
    go_on = asyncio.Event()

    async def script(call: Call) -> None:
        await call.say(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"3\r\none\r\n")
        await go_on.wait()
        await call.say(b"3\r\ntwo\r\n0\r\n\r\n")

    async with peer(script) as (here, client):
        answer = await client.call("POST", here.url, "/", [], b"", 5.0)
        assert await answer.next_chunk(5.0) == b"one"
        go_on.set()
        assert await answer.next_chunk(5.0) == b"two"
        assert await answer.next_chunk(5.0) == b""
        assert await answer.next_chunk(5.0) == b"", "again after the end"


async def test_a_pipe_hands_on_what_came_before_and_after() -> None:
    go_on = asyncio.Event()

    async def script(call: Call) -> None:
        await call.say(HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
        await go_on.wait()
        await call.say(b"3\r\ntwo\r\n3\r\nthr\r\n2\r\nee\r\n0\r\n\r\n")

    async with peer(script) as (here, client):
        answer = await client.call("POST", here.url, "/", [], b"", 5.0)
        heard: list[bytes] = []
        piping = asyncio.ensure_future(answer.pipe(heard.append, 5.0))
        async with asyncio.timeout(30):
            while not heard:  # noqa: ASYNC110 - nothing announces it
                await asyncio.sleep(0)
        assert heard == [b"one"]
        go_on.set()
        await piping
        assert b"".join(heard) == b"onetwothree"
        assert len(heard) <= 3, "what comes in one read is handed on as one piece"
        assert (await ask_again(here, client)) == 1


async def ask_again(here: Peer, client: PodClient) -> int:
    """The connection was given back: how many there are after another call."""
    answer = await client.call("POST", here.url, "/", [], b"", 5.0)
    answer.close()
    return here.connections


async def test_what_the_sink_raises_ends_the_pipe_and_closes_the_connection() -> None:
    async def script(call: Call) -> None:
        await call.say(HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
        await call.reader.read()
        call.reset()

    def sink(data: bytes) -> None:
        raise ZeroDivisionError

    async with peer(script) as (here, client):
        answer = await client.call("POST", here.url, "/", [], b"", 5.0)
        with pytest.raises(ZeroDivisionError):
            await answer.pipe(sink, 5.0)
        answer.close()


async def test_a_paused_answer_is_not_read_and_its_silence_is_no_fault() -> None:
    sent = 0

    async def script(call: Call) -> None:
        nonlocal sent
        await call.say(HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
        for _ in range(2000):
            await call.say(b"2710\r\n" + b"x" * 10_000 + b"\r\n")
            sent += 10_000
        await call.say(b"0\r\n\r\n")

    async with peer(script) as (here, client):
        answer = await client.call("POST", here.url, "/", [], b"", 5.0)
        heard = 0
        paused = asyncio.Event()

        def sink(data: bytes) -> None:
            nonlocal heard
            heard += len(data)
            if not paused.is_set():
                answer.pause()
                paused.set()

        piping = asyncio.ensure_future(answer.pipe(sink, 0.3))
        await paused.wait()
        before = heard
        await asyncio.wait([piping], timeout=0.5)
        assert not piping.done(), "longer than the gap"
        assert heard - before < 200_000, "only what was on its way"
        assert sent < 20_000_000, "the peer feels it"
        answer.resume()
        await piping
        assert heard == 3 + 20_000_000
