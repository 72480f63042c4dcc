"""The event subscriber against a publisher under the test's control."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from gateway.core.conversations import ConversationStore
from gateway.core.pods import Fleet, Pod, Role
from gateway.core.policies import AlwaysLocal
from gateway.core.views import RankView
from gateway.net import listener
from gateway.net.events import EventSubscriber, at_host
from gateway.net.parts import Parts
from gateway.net.records import IdleObserver
from gateway.net.settings import GatewaySettings
from gateway.net.upstream import PodClient
from gateway.wire.kv_events import EventSource
from tests.net.publisher import CLEARED, Publisher, removed, stored, until

A, B = b"a" * 16, b"b" * 16
D = "http://127.0.0.1:9"


@dataclass
class Faults(IdleObserver):
    kinds: list[str] = field(default_factory=list)
    restarts: list[str] = field(default_factory=list)

    def fault(self, kind: str, pod: str | None, request_id: str, detail: str) -> None:
        self.kinds.append(kind)

    def pod_restarted(self, pod: str, role: str, detail: str) -> None:
        self.restarts.append(detail)


@dataclass
class Listening:
    parts: Parts
    pod: Pod
    saw: Faults
    subscriber: EventSubscriber

    @property
    def view(self) -> RankView:
        return self.parts.residency.view(self.pod, 0)

    def tokens(self, session: bytes = A) -> int | None:
        return self.view.resident_tokens(session)


@asynccontextmanager
async def listening(publisher: Publisher) -> AsyncIterator[Listening]:
    """A subscriber whose subscription has arrived and whose first replay, if any, is over."""
    pod = Pod(D, Role.DECODE, up=True)
    saw = Faults()
    async with PodClient(1.0) as client:
        parts = Parts(Fleet([pod]), ConversationStore(10, 100.0), AlwaysLocal(), client, saw, GatewaySettings())
        source = EventSource(True, "zmq", publisher.endpoint, publisher.replay_endpoint)
        subscriber = EventSubscriber(parts, {D: source})
        subscriber.start()
        try:
            await publisher.subscribed()
            if publisher.replay_endpoint:
                await until(lambda: bool(publisher.asked))
            yield Listening(parts, pod, saw, subscriber)
        finally:
            await subscriber.stop()


async def test_blocks_come_go_and_are_cleared() -> None:
    async with Publisher() as publisher, listening(publisher) as here:
        await publisher.publish(stored(A, None, [1, 2, 3]))
        await until(lambda: here.tokens() == 48)
        await publisher.publish(removed(3), stored(B, 2, [4]))
        await until(lambda: here.tokens() == 32)
        assert here.tokens(B) == 48
        await publisher.publish(CLEARED)
        await until(lambda: here.tokens(B) == 0)
        assert here.view.complete
        assert here.saw.kinds == []


async def test_hashes_may_be_whole_digests_and_sessions_may_be_somebody_elses() -> None:
    async with Publisher() as publisher, listening(publisher) as here:
        await publisher.publish(stored(A, None, [b"x" * 32, b"y" * 32], session_id=A.hex()))
        await publisher.publish(stored(None, b"y" * 32, [b"z" * 32], session_id="somebody else's"))
        await publisher.publish(stored(None, None, [7], session_id="zz" * 16))
        await until(lambda: here.view.batches == 3)
        assert here.tokens() == 32
        assert here.view.resident_blocks == 4


async def test_what_was_published_before_is_replayed() -> None:
    async with Publisher() as publisher:
        await publisher.publish(stored(A, None, [1, 2]))
        await publisher.publish(stored(A, 2, [3]))
        async with listening(publisher) as here:
            await until(lambda: here.tokens() == 48)
            assert here.view.complete
            assert publisher.asked == [0]


async def test_a_replay_with_holes_is_asked_for_again() -> None:
    async with Publisher() as publisher:
        for number in range(6):
            await publisher.publish(stored(A, number or None, [number + 1]))
        publisher.drop_from_replay = {2, 4}
        async with listening(publisher) as here:
            await until(lambda: here.tokens() == 96)
            assert here.view.complete
            assert publisher.asked == [0, 2]
            assert here.saw.kinds == []


async def test_an_idle_pod_with_a_replay_endpoint_is_known_at_once() -> None:
    async with Publisher() as publisher, listening(publisher) as here:
        await until(lambda: here.view.complete)
        await publisher.publish(stored(A, None, [1]))
        await until(lambda: here.tokens() == 16)
        assert here.tokens(B) == 0


async def test_a_gap_is_filled_by_a_replay_and_nothing_waits_for_good() -> None:
    async with Publisher() as publisher, listening(publisher) as here:
        await publisher.publish(stored(A, None, [1, 2]))
        await until(lambda: here.tokens() == 32)
        await publisher.publish(removed(2), lose=True)
        await publisher.publish(stored(B, None, [9]))
        await publisher.publish(stored(B, 9, [10]))
        await until(lambda: here.tokens(B) == 32)
        assert here.tokens() == 16
        assert here.view.complete
        assert publisher.asked == [0, 1]
        assert here.saw.kinds == []


async def test_a_gap_that_is_too_old_for_the_replay_wipes_what_was_known() -> None:
    async with Publisher() as publisher, listening(publisher) as here:
        await publisher.publish(stored(A, None, [1, 2]))
        await until(lambda: here.tokens() == 32)
        await publisher.publish(removed(2), lose=True, keep=False)
        await publisher.publish(stored(B, None, [9]))
        await until(lambda: here.tokens(B) == 16)
        assert here.tokens() is None
        assert not here.view.complete
        assert here.saw.kinds == ["kv_events_lost"]
        await publisher.publish(CLEARED)
        await until(lambda: here.view.complete)


async def test_without_a_replay_endpoint_a_gap_is_lost() -> None:
    async with Publisher(replay=False) as publisher, listening(publisher) as here:
        await publisher.publish(stored(A, None, [1]))
        await until(lambda: here.tokens() == 16)
        assert here.view.complete
        await publisher.publish(lose=True)
        await publisher.publish(stored(B, None, [2]))
        await until(lambda: here.tokens(B) == 16)
        assert here.tokens() is None


async def test_numbers_that_begin_anew_are_a_new_process() -> None:
    async with Publisher() as publisher, listening(publisher) as here:
        await publisher.publish(stored(A, None, [1]))
        await publisher.publish(stored(A, 1, [2]))
        await until(lambda: here.tokens() == 32)
        publisher.restart()
        await publisher.publish(stored(B, None, [1]))
        await until(lambda: here.tokens(B) == 16)
        assert here.tokens() == 0
        assert here.pod.epoch == 1
        assert here.saw.restarts == ["its KV events began anew"]
        assert here.view.complete


async def test_a_restart_found_elsewhere_empties_the_view_and_the_next_event_fills_it() -> None:
    async with Publisher() as publisher, listening(publisher) as here:
        await publisher.publish(stored(A, None, [1]))
        await until(lambda: here.tokens() == 16)
        publisher.restart()
        here.parts.restarted(here.pod, "start time")
        assert here.parts.residency.of(here.pod, A).tokens == 0
        await publisher.publish(stored(A, None, [5, 6]), lose=True)
        await publisher.publish(stored(B, None, [7]))
        await until(lambda: here.tokens(B) == 16)
        assert here.tokens() == 32
        assert here.pod.epoch == 1


async def test_a_restart_in_the_middle_of_a_replay_is_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "REPLAY_S", 0.3)
    async with Publisher() as publisher, listening(publisher) as here:
        await publisher.publish(stored(A, None, [1, 2]))
        await until(lambda: here.tokens() == 32)
        publisher.answers = False
        await publisher.publish(lose=True)
        await publisher.publish(stored(A, 2, [3]))
        await until(lambda: publisher.asked == [0, 1])
        publisher.restart()
        await publisher.publish(stored(B, None, [1]))
        await until(lambda: here.tokens(B) == 16)
        assert here.tokens() == 0
        assert here.pod.epoch == 1
        assert here.saw.restarts == ["its KV events began anew"]
        assert here.saw.kinds == ["kv_replay", "kv_events_lost"]
        assert here.view.complete


@pytest.mark.parametrize(
    "frames",
    [
        [b"kv@test", (0).to_bytes(8, "big"), b"\xc1 no msgpack"],
        [b"kv@test", (0).to_bytes(8, "big"), b"\x93\x01\x91\x81\xa4type\xa5Other\xc0"],
    ],
)
async def test_a_message_that_is_no_batch_costs_the_view_not_the_gateway(frames: list[bytes]) -> None:
    async with Publisher() as publisher, listening(publisher) as here:
        await publisher.publish_raw(*frames)
        publisher.next = 1
        await publisher.publish(stored(A, None, [1]))
        await until(lambda: here.tokens() == 16)
        assert here.saw.kinds == ["bad_kv_event"]
        assert not here.view.complete


async def test_frames_of_no_known_form_are_ignored() -> None:
    async with Publisher() as publisher, listening(publisher) as here:
        await publisher.publish_raw(b"kv@test")
        await publisher.publish_raw(b"kv@test", b"short", b"x")
        await publisher.publish(stored(A, None, [1]))
        await until(lambda: here.tokens() == 16)
        assert here.view.complete
        assert here.saw.kinds == ["bad_kv_event"] * 2
        assert here.saw.restarts == []


async def test_a_flood_of_events_leaves_the_loop_to_others() -> None:
    """2,000 batches of 64 blocks: other work on the loop keeps being done between slices."""
    async with Publisher(replay=False) as publisher, listening(publisher) as here:
        for number in range(2_000):
            first = 64 * number + 1
            await publisher.publish(stored(A, first - 1 if number else None, range(first, first + 64)), keep=False)
        turns, applied = 0, []
        while here.view.batches < 2_000:
            before = here.view.blocks
            await asyncio.sleep(0)
            turns += 1
            applied.append(here.view.blocks - before)
        assert here.tokens() == 2_000 * 64 * 16
        assert max(applied) < 8_000, "one turn of the loop is one slice"
        assert turns > 20


async def test_a_pod_that_publishes_nothing_any_more_has_no_view() -> None:
    async with Publisher() as publisher, listening(publisher) as here:

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            writer.close()
            await writer.wait_closed()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            here.pod.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            here.subscriber._listeners = {(here.pod.url, 0): here.subscriber._listeners[D, 0]}
            here.parts.residency.view(here.pod, 0)
            here.subscriber.pod_up(here.pod)
            await until(lambda: not here.parts.residency.cache(here.pod).views)
            assert here.subscriber._listeners == {}


async def test_a_pod_that_was_removed_is_not_listened_to_any_more() -> None:
    async with Publisher() as publisher, listening(publisher) as here:
        await publisher.publish(stored(A, None, [1, 2, 3]))
        await until(lambda: here.tokens() == 48)
        here.parts.fleet.remove(here.pod)
        here.subscriber.pod_up(here.pod)
        here.subscriber.pod_removed(here.pod.url, here.pod.role, "")
        here.parts.gone(here.pod)
        await publisher.publish(stored(A, 3, [4]))
        await until(lambda: not here.subscriber._tasks)
        assert here.subscriber._listeners == {}
        assert not here.subscriber._ready
        assert here.parts.residency._caches == {}


async def test_a_pod_that_could_not_be_asked_where_it_publishes_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.net.events.ASK_AGAIN_S", 0.01)
    async with Publisher() as publisher, listening(publisher) as here:
        given = dict(here.subscriber._endpoints)
        here.subscriber._endpoints.clear()  # now it is asked, and nothing listens there
        here.subscriber.pod_up(here.pod)
        await publisher.publish(stored(A, None, [1]))
        await until(lambda: here.tokens() == 16)
        here.subscriber._endpoints.update(given)
        await until(lambda: not here.subscriber._tasks)
        assert here.tokens() == 16, "the view that was there is kept"


def test_a_wildcard_endpoint_is_reached_at_the_pods_host() -> None:
    def reached(endpoint: str, host: str = "10.1.2.3") -> str:
        return at_host(EventSource(True, "zmq", endpoint), host).endpoint

    assert reached("tcp://*:5557") == "tcp://10.1.2.3:5557"
    assert reached("tcp://0.0.0.0:5557") == "tcp://10.1.2.3:5557"
    assert reached("tcp://[::]:5557", "fd00::1") == "tcp://[fd00::1]:5557"
    assert reached("tcp://10.9.9.9:5557") == "tcp://10.9.9.9:5557"
    assert reached("ipc:///tmp/kv") == "ipc:///tmp/kv"
