"""The connection to the server by itself: what it writes, what it gives up, how long anyone waits for it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence

import pytest

from gateway.core.sharing import Entry, offsets_of
from gateway.net import redis_link
from gateway.net.redis_link import LinkError, RedisLink, Writer
from tests.net.cluster import Talker, cluster, needs_server
from tests.net.world import LONG
from tests.redis_server import RedisServer


def value(turn: int, millisecond: int, content: bytes = b"") -> bytes:
    return f"{turn:08d}{millisecond:014d}".encode() + content


@pytest.fixture
async def server() -> AsyncIterator[RedisServer]:
    async with RedisServer() as started:
        yield started


@pytest.fixture
async def link(server: RedisServer) -> AsyncIterator[RedisLink]:
    made = RedisLink(server.url, "test", io_timeout_s=20.0)
    made.start()
    yield made
    await made.stop()


@needs_server
async def test_the_newer_value_stays_in_whatever_order_they_come(link: RedisLink) -> None:
    newest = value(2, 100, b"newest")
    for written in (value(1, 500, b"old"), newest, value(2, 99, b"a little older"), value(1, 900, b"older")):
        await link.put([Entry({b"k": written}, None)], 60.0)
    assert await link.get([b"k", b"absent"]) == [newest, None]
    await link.put([Entry({b"k": value(2, 101, b"newer")}, None)], 60.0)
    assert (await link.get([b"k"]))[0] == value(2, 101, b"newer")


@needs_server
async def test_everything_expires_and_ends_add_up(link: RedisLink) -> None:
    await link.put([Entry({b"k": value(1, 1)}, (b"ends", 1023)), Entry({}, (b"ends", 0))], 60.0)
    (bits,) = await link.get([b"ends"])
    assert bits is not None
    assert sorted(offsets_of(bits)) == [0, 1023]
    for key in (b"k", b"ends"):
        assert 0 < await link._client.ttl(link.key(key)) <= 60


@needs_server
async def test_questions_that_come_together_go_out_together(link: RedisLink) -> None:
    await link.put([Entry({bytes([n]): value(n, 0)}, None) for n in range(200)], 60.0)
    await link._client.config_resetstat()
    answers = await asyncio.gather(*(link.get([bytes([n]), b"absent"]) for n in range(200)))
    assert answers == [[value(n, 0), None] for n in range(200)]
    assert (await link._client.info("commandstats"))["cmdstat_mget"]["calls"] <= 2


@needs_server
async def test_a_question_nobody_waits_for_any_more_harms_no_other(link: RedisLink, server: RedisServer) -> None:
    await link.put([Entry({b"k": value(1, 1)}, None)], 60.0)
    server.hang()
    first = asyncio.ensure_future(link.get([b"k"]))
    await asyncio.sleep(0.01)
    others = [asyncio.ensure_future(link.get([b"k"])) for _ in range(3)]
    await asyncio.sleep(0.01)
    first.cancel()
    others[1].cancel()
    server.go_on()
    assert [await others[0], await others[2]] == [[value(1, 1)], [value(1, 1)]]


@needs_server
async def test_no_request_waits_longer_than_its_deadline_for_a_server_that_hangs() -> None:
    async with RedisServer() as server, cluster(2, server.url, state_timeout_s="0.02") as c:
        talker = Talker(c.world.session, "one")
        await talker.say(c.members[0], LONG)
        await c.settled()
        c.members[1].shared._link._client.connection_pool.connection_kwargs["socket_timeout"] = 60.0
        server.hang()
        began_s = time.monotonic()
        record = await talker.say(c.members[1], f"{LONG} again")
        assert (record.turn, c.members[1].asks("timeout")) == (1, 1)
        assert time.monotonic() - began_s < 30, "half of what the socket would wait"
        server.go_on()


@needs_server
async def test_another_program_s_values_are_no_answer(link: RedisLink) -> None:
    await link._client.sadd(link.key(b"k"), "a set, not a string")
    await link._client.set(link.key(b"text"), "hello")
    assert await link.get([b"k", b"text"]) == [None, b"hello"]


class AwayLink(RedisLink):
    """A server that is away until it is told otherwise."""

    def __init__(self) -> None:
        self.away = True
        self.tried = asyncio.Event()
        self.written: list[Entry] = []

    async def put(self, entries: Sequence[Entry], ttl_s: float) -> None:
        self.tried.set()
        if self.away:
            raise LinkError("away")
        self.written += entries


async def test_what_waits_is_bounded_and_written_in_order_when_the_server_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redis_link, "MAX_WAITING_WRITES", 10)
    monkeypatch.setattr(redis_link, "_BATCH", 4)
    link, counts = AwayLink(), Counter[str]()
    writer = Writer(link, 60.0, lambda op, result: counts.update([f"{op} {result}"]))
    entries = [Entry({bytes([n]): b""}, None) for n in range(25)]
    for entry in entries:
        writer.add(entry)
    writer.start()
    await link.tried.wait()
    link.away = False
    await writer.idle()
    await writer.stop()
    assert link.written == entries[-10:]
    assert (counts["write dropped"], counts["write ok"], len(writer)) == (15, 10, 0)
    assert counts["write error"] >= 1


async def test_a_server_that_stays_away_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_link, "_FLUSH_S", 0.05)
    link, counts = AwayLink(), Counter[str]()
    writer = Writer(link, 60.0, lambda op, result: counts.update([f"{op} {result}"]))
    writer.start()
    writer.add(Entry({b"k": b""}, None))
    async with asyncio.timeout(30):
        await writer.stop()
    assert counts["write dropped"] == 1
