"""A pod's KV events on the wire: a PUB socket for what happens, a ROUTER socket for what a subscriber missed.

Rule of this room: what subscribers see is what `ZmqEventPublisher` sends them (vllm/distributed/kv_events.py): frames,
sequence numbers, the replay's end marker, and that both sockets drop what a slow reader leaves lying. Publishing never
waits. (Inside it is an XPUB socket, which is PUB and can also tell that somebody has subscribed.)
"""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import msgspec
import zmq
import zmq.asyncio

from loadtest.engine.kv_events import KvEvent, KvEventBatch

RANK = 0
HIGH_WATER_MARK, QUEUE_SIZE = 100_000, 100_000
END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)


@dataclass(frozen=True, slots=True)
class EventOptions:
    """A pod's `--kv-events-config`. Port 0: the kernel chooses."""

    host: str
    topic: str
    port: int = 0
    replay: bool = True
    replay_port: int = 0
    buffer_steps: int = 10_000


class EventPublisher:
    """`async with EventPublisher(options, on_change) as publisher: publisher.publish(events)`.

    `on_change` is called when something was published and when a subscription came or went.
    """

    def __init__(self, options: EventOptions, on_change: Callable[[], None] = lambda: None) -> None:
        self.options = options
        self.subscribers = 0
        """Subscriptions at this moment."""
        self._on_change = on_change
        self._context = zmq.asyncio.Context()
        self._context.linger = 0
        """From the start: what a subscriber left unread when it went would keep the socket from closing for ever."""
        self._numbers = itertools.count()
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=options.buffer_steps)
        self._to_drop = 0
        self._drop_replay = False
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._pub = self._context.socket(zmq.XPUB)
        self._pub.set_hwm(HIGH_WATER_MARK)
        self._pub.setsockopt(zmq.XPUB_VERBOSER, 1)
        self._replay = self._context.socket(zmq.ROUTER)
        try:
            self._port = _bind(self._pub, self.options.host, self.options.port)
            self._replay_port = None
            if self.options.replay:
                self._replay_port = _bind(self._replay, self.options.host, self.options.replay_port)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self._tasks = [
            asyncio.create_task(self._count_subscribers(), name="kv event subscribers"),
            asyncio.create_task(self._answer_replays(), name="kv event replays"),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._context.destroy(linger=0)

    # ---- what a subscriber needs to know

    @property
    def endpoint(self) -> str:
        """Where to connect a SUB socket."""
        return f"tcp://{_bracketed(self.options.host)}:{self._port}"

    @property
    def replay_endpoint(self) -> str | None:
        """Where to connect a DEALER or REQ socket."""
        return f"tcp://{_bracketed(self.options.host)}:{self._replay_port}" if self._replay_port else None

    def config(self) -> dict[str, Any]:
        """This publisher in `GET /kv_event_sources`: addresses as they were given to `bind`, wildcard and all."""
        return {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{self._port}",
            "replay_endpoint": f"tcp://*:{self._replay_port}" if self._replay_port else None,
            "buffer_steps": self.options.buffer_steps,
            "hwm": HIGH_WATER_MARK,
            "max_queue_size": QUEUE_SIZE,
            "topic": self.options.topic,
        }

    @property
    def batches(self) -> list[tuple[int, KvEventBatch]]:
        """What the buffer holds: sequence number and batch, oldest first."""
        return [(number, msgspec.msgpack.decode(payload, type=KvEventBatch)) for number, payload in self._buffer]

    # ---- publishing

    def publish(self, events: Sequence[KvEvent]) -> None:
        """Send the events of one step under the next sequence number."""
        number = next(self._numbers)
        payload = msgspec.msgpack.encode(KvEventBatch(time.time(), list(events), RANK))  # type: ignore[arg-type]
        if self._to_drop:
            self._to_drop -= 1
        else:
            frames = (self.options.topic.encode(), number.to_bytes(8, "big"), payload)
            # Done when this returns: the socket drops what a subscriber has no room for.
            self._pub.send_multipart(frames, flags=zmq.NOBLOCK)
            self._drop_replay = False
        if not self._drop_replay:
            self._buffer.append((number, payload))
        self._on_change()

    def drop(self, count: int, *, replayable: bool = True) -> None:
        """Lose the next `count` batches on the way to subscribers; `replayable` False: for the replay as well."""
        self._to_drop, self._drop_replay = count, count > 0 and not replayable

    # ---- the sockets' other direction

    async def _count_subscribers(self) -> None:
        while True:
            message = await self._pub.recv()
            self.subscribers += 1 if message[:1] == b"\x01" else -1
            self._on_change()

    async def _answer_replays(self) -> None:
        """One request, many answers (`_service_replay`). A request that is not (id, empty, start) is ignored."""
        topic = self.options.topic.encode()
        while True:
            frames = await self._replay.recv_multipart()
            if len(frames) != 3:
                continue
            who, start = frames[0], int.from_bytes(frames[2], "big")
            for number, payload in list(self._buffer):
                if number >= start:
                    await self._replay.send_multipart((who, b"", topic, number.to_bytes(8, "big"), payload))
            await self._replay.send_multipart((who, b"", b"", END_OF_REPLAY, b""))


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _bind(socket: zmq.asyncio.Socket, host: str, port: int) -> int:
    """Bind to a port, or to any (0); returns it."""
    socket.setsockopt(zmq.IPV6, int(":" in host))
    socket.bind(f"tcp://{_bracketed(host)}:{port or '*'}")
    return int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rsplit(":", 1)[1])
