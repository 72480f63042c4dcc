"""Reading KV events as any subscriber does: raw frames, raw msgpack, no class of ours.

Rule of this room: whoever waits has a deadline; sockets are closed when the `async with` ends.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import zmq
import zmq.asyncio

PATIENCE_MS = 20_000
END = -1

Event = dict[str, Any]


@dataclass
class Batch:
    """One message: `fields` is the msgpack array as it came."""

    number: int
    topic: str
    fields: list[Any]

    @property
    def events(self) -> list[Event]:
        return list(self.fields[1])


def _batch(frames: list[bytes]) -> Batch:
    topic, number, payload = frames
    return Batch(int.from_bytes(number, "big", signed=True), topic.decode(), msgspec.msgpack.decode(payload or b"\x90"))


class Listener:
    """A SUB socket."""

    def __init__(self, socket: zmq.asyncio.Socket) -> None:
        self._socket = socket

    async def next(self) -> Batch:
        assert await self._socket.poll(PATIENCE_MS), "no event came"
        return _batch(await self._socket.recv_multipart())

    async def waiting(self, pause_ms: int = 200) -> list[Batch]:
        """What is there, or comes within `pause_ms`."""
        found: list[Batch] = []
        while await self._socket.poll(0 if found else pause_ms):
            found.append(await self.next())
        return found

    async def take(self, count: int) -> list[Batch]:
        return [await self.next() for _ in range(count)]


@asynccontextmanager
async def listening(*endpoints: str, topic: str = "") -> AsyncIterator[Listener]:
    """Subscribe. What is published before the subscription arrives at the pod is not heard."""
    with zmq.asyncio.Context() as context, context.socket(zmq.SUB) as socket:
        socket.linger = 0
        socket.reconnect_ivl = 10
        socket.subscribe(topic)
        for endpoint in endpoints:
            socket.connect(endpoint)
        yield Listener(socket)


async def replay(endpoint: str, start: int) -> list[Batch]:
    """What a replay from `start` gives, without its end marker."""
    with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.rcvhwm = 0
        socket.connect(endpoint)
        await socket.send_multipart([b"", start.to_bytes(8, "big")])
        batches: list[Batch] = []
        while True:
            assert await socket.poll(PATIENCE_MS), "the replay does not end"
            empty, *frames = await socket.recv_multipart()
            assert empty == b""
            batch = _batch(frames)
            if batch.number == END:
                assert frames == [b"", (-1).to_bytes(8, "big", signed=True), b""]
                return batches
            batches.append(batch)


@dataclass
class Told:
    """One pod, and how far its events have been read."""

    pod: Any
    """Whatever has a `url`."""
    endpoint: str
    replay_endpoint: str
    topic: str
    next_number: int = 0

    async def batches(self) -> list[Batch]:
        """What came since the last time; numbers without a gap, rank 0, the pod's topic."""
        found = await replay(self.replay_endpoint, self.next_number)
        assert [batch.number for batch in found] == list(range(self.next_number, self.next_number + len(found)))
        assert {batch.topic for batch in found} <= {self.topic}
        assert {(len(batch.fields), batch.fields[2]) for batch in found} <= {(3, 0)}
        self.next_number += len(found)
        return found
