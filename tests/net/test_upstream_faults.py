"""Calls to pods that break, fall silent or are given up, against a peer whose bytes are the test's own."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress
from time import monotonic
from weakref import WeakSet

import pytest

from gateway.net.pod_connection import PodConnection
from gateway.net.upstream import POD_KEEPALIVE_S, PodClient, PodFault
from tests.net.peers import HEAD, WHOLE, Call, ask, peer

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
        monkeypatch.setattr(client._pools[here.url]._idle[0], "silent_since", monotonic() - POD_KEEPALIVE_S - 0.1)
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
        async with asyncio.timeout(30):
            await closed.wait()


@pytest.mark.parametrize("how", ["read", "piped", "sink"])
async def test_an_answer_that_ends_with_its_connection_does_not_end_because_we_gave_it_up(how: str) -> None:
    async def script(call: Call) -> None:
        await call.say(HEAD + b"\r\n")
        await asyncio.sleep(0)
        await call.say(b"hel")
        await call.reader.read()

    def sink(data: bytes) -> None:
        if how == "sink":
            raise ZeroDivisionError

    async with peer(script) as (here, client):
        answer = await client.call("POST", here.url, "/", [], b"", 5.0)
        with pytest.raises(ZeroDivisionError if how == "sink" else PodFault):
            await (answer.read(0.05) if how == "read" else answer.pipe(sink, 0.05))
        answer.close()


async def test_a_limit_is_over_with_the_wait_it_was_for() -> None:
    async def script(call: Call) -> None:
        if call.number == 1:
            await asyncio.sleep(0.6)
        await call.say(WHOLE)

    async with peer(script) as (here, client):
        assert await ask(here, client, timeout_s=0.5) == b"hello"
        assert await ask(here, client, timeout_s=30.0) == b"hello", "the timer of the first call has fired meanwhile"
        assert here.connections == 1


async def test_a_shorter_limit_than_those_before_on_the_connection_holds() -> None:
    async def script(call: Call) -> None:
        if call.number < 2:
            await call.say(WHOLE)

    async with peer(script) as (here, client):
        for timeout_s in (600.0, 60.0):
            assert await ask(here, client, timeout_s=timeout_s) == b"hello"
        began = monotonic()
        with pytest.raises(PodFault, match=r"timeout: no answer within 0\.05 s"):
            await ask(here, client, timeout_s=0.05)
        assert 0.05 <= monotonic() - began < 30.0
        assert here.connections == 1


@pytest.mark.parametrize("when", ["idle", "before it was read"])
async def test_nothing_holds_a_connection_that_was_closed(when: str) -> None:
    async def script(call: Call) -> None:
        await call.say(WHOLE if when == "idle" else HEAD + b"Content-Length: 9\r\n\r\nhello")
        if when != "idle":
            call.writer.close()

    async def use() -> None:
        answer = await client.call("POST", here.url, "/", [], b"", 600.0)
        with suppress(PodFault):
            if when != "idle":
                async with asyncio.timeout(30):
                    while not all(connection.closed for connection in made()):  # noqa: ASYNC110
                        await asyncio.sleep(0.005)
            await answer.read(300.0)
        answer.close()
        pool.close()

    def made() -> WeakSet[PodConnection]:
        return client._pools[here.url]._made

    async with peer(script) as (here, client):
        pool = client._pool_of(here.url)
        gc.disable()
        try:
            await use()
            async with asyncio.timeout(30):
                while made():  # noqa: ASYNC110 - nothing announces it
                    await asyncio.sleep(0.005)
        finally:
            gc.enable()


async def test_a_slow_but_steady_stream_is_no_timeout() -> None:
    async def script(call: Call) -> None:
        await call.say(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(20):
            await asyncio.sleep(0.03)
            await call.say(b"1\r\nx\r\n")
        await call.say(b"0\r\n\r\n")

    async with peer(script) as (here, client):
        answer = await client.call("POST", here.url, "/", [], b"", 5.0)
        heard: list[bytes] = []
        await answer.pipe(heard.append, 0.5)
        assert b"".join(heard) == b"x" * 20


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
        async with asyncio.timeout(30):
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
        async with asyncio.timeout(30):
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
