"""Streams whose chunks pass as they are: the client gets what it would get if each were looked into."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest

from gateway.net import relay
from gateway.net.connection import Connection, Limits
from gateway.net.exchange import ClientGoneError
from gateway.net.fault import PodFault
from gateway.net.pod_connection import ChunkSink, PodConnection
from gateway.net.relay import OpenStream, relay_stream
from gateway.net.request import Request
from gateway.wire.sse import StreamTap
from tests.net.world import CHAT, user, world
from tests.wire.test_even import chunk
from tests.wire.test_mould import event

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST = event("", usage={"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13})
DONE = b"data: [DONE]\n\n"
TEXTS = ("word ", "a", "", "señal", 'say "x"', "\\", "<think>", "</think>", "x" * 300, "é" * 120, "data: {", "x" * 1500)


class Far:
    """A pod, the gateway's relay, and a client that notes what it gets."""

    def __init__(self, tap: StreamTap, *, http11: bool = True) -> None:
        self.pod, self.tap, self.sent = PodConnection(), tap, bytearray()
        self.pod_transport: Any = Mock()
        self.pod_transport.get_extra_info.return_value = None
        self.pod.connection_made(self.pod_transport)
        self.pod.ask(b"POST / HTTP/1.1\r\n\r\n", b"")
        transport: Any = Mock()
        transport.get_extra_info.return_value = None
        transport.is_closing.return_value = False
        transport.write.side_effect = self.sent.extend
        self.transport = transport
        host: Any = Mock(limits=Limits())
        self.client = Connection(host)
        self.client.connection_made(transport)
        self.client._current = Request("POST", "/", [], b"", http11, True, "", {})
        self.pod.data_received(HEAD)
        self.ending: asyncio.Task[relay.StreamEnd] | None = None

    async def begin(self, gap_s: float = 30.0) -> None:
        stream = OpenStream(self, self.tap, b"", 1.0, ended=False)  # type: ignore[arg-type]
        self.ending = asyncio.ensure_future(relay_stream(stream, self.client, [], gap_s))
        await asyncio.sleep(0)

    status = 200

    async def pipe(self, sink: Any, gap_s: float) -> None:
        await self.pod.pipe(sink, gap_s)

    def pause(self) -> None:
        self.pod.pause()

    def resume(self) -> None:
        self.pod.resume()


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The chunks that passed as they were."""
    seen: list[bytes] = []
    takes = relay._Flow.takes

    def noted(self: Any, data: bytes) -> bool:
        if takes(self, data):
            seen.append(data)
            return True
        return False

    monkeypatch.setattr(relay._Flow, "takes", noted)
    return seen


def written(draw: random.Random) -> Iterator[bytes]:
    """The chunks of a stream, mostly even, some written as few would."""
    for _ in range(draw.randrange(5, 60)):
        data = event(draw.choice(TEXTS[:2]) if draw.random() < 0.8 else draw.choice(TEXTS))
        if draw.random() < 0.1:
            data += event("two")
        if draw.random() < 0.05:
            data = draw.choice((b": ping\n\n", event("other", created=1), LAST))
        kind = draw.random()
        if kind < 0.9:
            yield chunk(data)
        elif kind < 0.94:
            yield b"0%X;x=1\r\n%b\r\n" % (len(data), data)
        else:
            middle = draw.randrange(1, len(data))
            yield chunk(data[:middle])
            yield chunk(data[middle:])
    yield chunk(LAST)
    yield chunk(DONE)
    yield b"0\r\n\r\n"


def reads(draw: random.Random, chunks: list[bytes]) -> Iterator[bytes]:
    """What reads bring of them: mostly one chunk, else several, or one that is cut anywhere."""
    rest = b""
    for one in chunks:
        rest += one
        kind = draw.random()
        if kind < 0.75:
            yield rest
            rest = b""
        elif kind < 0.9 and len(rest) > 1:
            cut = draw.randrange(1, len(rest))
            yield rest[:cut]
            rest = rest[cut:]
    yield rest


async def played(seed: int, *, damage: bool) -> tuple[bytes, Any, int]:
    """What a client gets of a stream, what was learned, and how many waits were counted."""
    draw = random.Random(seed)
    far = Far(StreamTap(strip_usage=draw.random() < 0.5))
    pieces = list(reads(draw, list(written(draw))))
    if damage:
        at = draw.randrange(len(pieces))
        bad = bytearray(pieces[at] or b"x")
        bad[draw.randrange(len(bad))] = draw.randrange(256)
        pieces[at] = bytes(bad)
    await far.begin()
    assert far.ending is not None
    for piece in pieces:
        if piece and not far.pod.closed:
            far.pod.data_received(piece)
    if not far.pod.closed:
        far.pod.connection_lost(None)
    end = await far.ending
    tap = far.tap
    learned = (
        tap.usage,
        tap.reply_head,
        tap.reasoned,
        tap.done,
        tap.error,
        end.fault and (end.fault.word, end.fault.detail),
    )
    return bytes(far.sent), learned, sum(end.gaps)


@pytest.mark.parametrize("damage", [False, True])
async def test_it_makes_no_difference_whether_chunks_pass_as_they_are(
    damage: bool, taken: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = range(150)
    got = [await played(seed, damage=damage) for seed in streams]
    assert len(taken) > 3 * len(streams)
    monkeypatch.setattr(relay._Flow, "begin", lambda self: False)
    taken.clear()
    assert [await played(seed, damage=damage) for seed in streams] == got
    assert taken == []


async def even_stream(**options: Any) -> Far:
    far = Far(StreamTap(strip_usage=True), **options)
    await far.begin()
    for text in ("a", "b", "c"):
        far.pod.data_received(chunk(event(text)))
    return far


async def test_a_client_that_knows_no_chunks_gets_none(taken: list[bytes]) -> None:
    far = await even_stream(http11=False)
    assert taken == []
    assert far.sent.endswith(event("a") + event("b") + event("c"))


async def test_a_client_that_has_gone_ends_the_stream(taken: list[bytes]) -> None:
    far = await even_stream()
    assert taken == [chunk(event("c"))]
    far.transport.is_closing.return_value = True
    far.pod.data_received(chunk(event("d")))
    assert far.ending is not None
    with pytest.raises(ClientGoneError):
        await far.ending
    assert far.pod.closed


async def test_what_looks_like_a_chunk_within_a_chunk_is_a_part_of_the_stream(taken: list[bytes]) -> None:
    far = await even_stream()
    within = chunk(event("d"))
    begun = event("x")
    far.pod.data_received(b"%x\r\n%b" % (len(begun) + len(within), begun))
    far.pod.data_received(within)
    assert taken == [chunk(event("c"))]
    assert far.ending is not None
    end = await far.ending
    assert isinstance(end.fault, PodFault)
    assert end.fault.word == "malformed"


async def test_a_pod_that_falls_silent_between_chunks_is_noticed() -> None:
    far = Far(StreamTap(strip_usage=True))
    await far.begin(gap_s=0.05)
    for text in ("a", "b", "c"):
        far.pod.data_received(chunk(event(text)))
    assert far.ending is not None
    end = await far.ending
    assert isinstance(end.fault, PodFault)
    assert end.fault.word == "timeout"
    assert b"The pod's stream broke (timeout)" in far.sent


async def test_a_pod_that_was_paused_is_given_its_time_again(taken: list[bytes]) -> None:
    far = await even_stream()
    far.client.pause_writing()
    chunks = a_minute_ago(far.pod)
    chunks.last_at -= 60.0
    far.client.resume_writing()
    far.pod._fired()
    await goes_on(far, taken)


async def test_chunks_that_the_parser_does_not_see_are_no_silence(taken: list[bytes]) -> None:
    far = await even_stream()
    a_minute_ago(far.pod)
    far.pod._fired()
    await goes_on(far, taken)


def a_minute_ago(pod: PodConnection) -> ChunkSink:
    """It began to wait, and the parser saw something, so long ago. What takes its chunks."""
    pod._until -= 60.0
    pod.silent_since -= 60.0
    assert pod._chunks is not None
    return pod._chunks


async def goes_on(far: Far, taken: list[bytes]) -> None:
    assert not far.pod.closed
    far.pod.data_received(chunk(event("d")))
    assert taken == [chunk(event("c")), chunk(event("d"))]
    assert far.ending is not None
    far.ending.cancel()
    await asyncio.gather(far.ending, return_exceptions=True)


async def test_most_of_a_stream_passes_as_it_is(taken: list[bytes]) -> None:
    async with world(pod={"profile": "h100-llama3.1-8b"}) as w:
        got = await w.post(CHAT, {"model": "sim", "messages": [user()], "max_tokens": 40, "stream": True})
    assert got.status == 200
    assert got.body.endswith(DONE)
    assert len(taken) >= 10, "more, unless the machine was busy and events came together"
