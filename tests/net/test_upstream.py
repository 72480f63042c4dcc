"""Calls to pods against a peer whose bytes are the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from gateway.net.upstream import POD_KEEPALIVE_S, PodClient, PodFault

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
        async with asyncio.timeout(5):
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

        piping = asyncio.ensure_future(answer.pipe(sink, 0.05))
        await paused.wait()
        before = heard
        await asyncio.wait([piping], timeout=0.3)
        assert not piping.done(), "longer than the gap"
        assert heard - before < 200_000, "only what was on its way"
        assert sent < 20_000_000, "the peer feels it"
        answer.resume()
        await piping
        assert heard == 3 + 20_000_000


BROKEN = {
    "closes without a word": ([], "reset"),
    "closes within the head": ([b"HTTP/1.1 200 OK\r\nContent-"], "reset"),
    "closes within the body": ([HEAD + b"Content-Length: 9\r\n\r\nhello"], "reset"),
    "closes within a chunk": ([HEAD + b"Transfer-Encoding: chunked\r\n\r\n9\r\nhello"], "reset"),
    "closes before the last chunk": ([HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"], "reset"),
    "says no HTTP": ([b"SSH-2.0-OpenSSH_9.2\r\n"], "malformed"),
    "says a bad chunk": ([HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n"], "malformed"),
    "says two lengths": ([HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello"], "malformed"),
    "has a head without end": ([HEAD] + [b"X: " + b"a" * 10_000 + b"\r\n"] * 30, "malformed"),
}


@pytest.mark.parametrize("how", BROKEN)
async def test_every_way_to_break_an_answer_is_a_fault(how: str) -> None:
    pieces, word = BROKEN[how]

    async def script(call: Call) -> None:
        await call.say(*pieces)
        call.writer.close()

    async with peer(script) as (here, client):
        with pytest.raises(PodFault) as caught:
            await ask(here, client)
        assert caught.value.word == word
        assert caught.value.reached
        assert not caught.value.process_gone
        assert len(here.calls) == 1, "not sent twice"


async def test_a_reset_is_a_fault() -> None:
    async def script(call: Call) -> None:
        call.reset()

    async with peer(script) as (here, client):
        with pytest.raises(PodFault, match="reset"):
            await ask(here, client)


async def test_a_connection_that_went_stale_is_replaced_once_and_only_before_a_byte_came() -> None:
    async def script(call: Call) -> None:
        if call.number == 1:
            call.writer.close()
        elif call.number == 3:
            await call.say(b"HTTP/1.1 200 OK\r\n")
            call.writer.close()
        else:
            await call.say(WHOLE)

    async with peer(script) as (here, client):
        assert await ask(here, client) == b"hello"
        assert await ask(here, client) == b"hello", "sent again on a new connection"
        assert (len(here.calls), here.connections) == (3, 2)
        with pytest.raises(PodFault, match="reset"):
            await ask(here, client)
        assert (len(here.calls), here.connections) == (4, 2)


async def test_a_connection_idle_for_longer_than_pods_keep_one_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(call: Call) -> None:
        await call.say(WHOLE)

    async with peer(script) as (here, client):
        await ask(here, client)
        loop = asyncio.get_running_loop()
        later = loop.time() + POD_KEEPALIVE_S + 0.1
        monkeypatch.setattr(client._pools[here.url]._idle[0], "idle_since", later - 2 * POD_KEEPALIVE_S - 0.2)
        await ask(here, client)
        assert here.connections == 2


async def test_nobody_listens() -> None:
    async def script(call: Call) -> None:
        raise AssertionError

    async with peer(script) as (here, _):
        pass
    async with PodClient(1.0) as client:
        with pytest.raises(PodFault) as caught:
            await ask(here, client)
    assert (caught.value.word, caught.value.process_gone, caught.value.reached) == ("connect", True, False)


async def test_a_name_that_does_not_resolve() -> None:
    async with PodClient(5.0) as client:
        with pytest.raises(PodFault) as caught:
            await client.call("GET", "http://no-such-host.invalid:1", "/", [], b"", 5.0)
    assert (caught.value.word, caught.value.process_gone, caught.value.reached) == ("connect", False, False)


@pytest.mark.parametrize("where", ["head", "body", "gap", "pipe"])
async def test_silence_is_a_timeout_and_closes_the_connection(where: str) -> None:
    closed = asyncio.Event()

    async def script(call: Call) -> None:
        if where != "head":
            await call.say(HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
        await call.reader.read()
        closed.set()

    async with peer(script) as (here, client):

        async def wait() -> None:
            answer = await client.call("POST", here.url, "/", [], b"", 0.05 if where == "head" else 5.0)
            if where == "body":
                await answer.read(0.05)
            elif where == "gap":
                assert await answer.next_chunk(5.0) == b"one"
                await answer.next_chunk(0.05)
            else:
                await answer.pipe(lambda data: None, 0.05)

        with pytest.raises(PodFault, match="timeout"):
            await wait()
        async with asyncio.timeout(5):
            await closed.wait()


async def test_a_slow_but_steady_stream_is_no_timeout() -> None:
    async def script(call: Call) -> None:
        await call.say(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(10):
            await asyncio.sleep(0.03)
            await call.say(b"1\r\nx\r\n")
        await call.say(b"0\r\n\r\n")

    async with peer(script) as (here, client):
        answer = await client.call("POST", here.url, "/", [], b"", 5.0)
        heard: list[bytes] = []
        await answer.pipe(heard.append, 0.2)
        assert b"".join(heard) == b"x" * 10


async def test_a_cancelled_call_closes_its_connection() -> None:
    asked, closed = asyncio.Event(), asyncio.Event()

    async def script(call: Call) -> None:
        asked.set()
        await call.reader.read()
        closed.set()

    async with peer(script) as (here, client):
        calling = asyncio.ensure_future(ask(here, client))
        await asked.wait()
        calling.cancel()
        async with asyncio.timeout(5):
            await closed.wait()
        with pytest.raises(asyncio.CancelledError):
            await calling


async def test_an_answer_that_is_closed_early_is_closed_at_the_pod() -> None:
    closed = asyncio.Event()

    async def script(call: Call) -> None:
        await call.say(HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
        await call.reader.read()
        closed.set()

    async with peer(script) as (here, client):
        answer = await client.call("POST", here.url, "/", [], b"", 5.0)
        answer.close()
        answer.close()
        async with asyncio.timeout(5):
            await closed.wait()
        with pytest.raises(PodFault, match="closed"):
            await answer.read(1.0)


async def test_bytes_that_nobody_asked_for_close_the_connection() -> None:
    async def script(call: Call) -> None:
        await call.say(WHOLE + b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n" if call.number == 0 else WHOLE)

    async with peer(script) as (here, client):
        try:
            await ask(here, client)
        except PodFault as fault:
            assert fault.word == "malformed"  # noqa: PT017 - either is right: they may come in one read or in two
        assert await ask(here, client) == b"hello"
        assert here.connections == 2
