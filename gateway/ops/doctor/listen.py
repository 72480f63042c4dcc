"""Does a pod publish its KV events, and can missed ones be had again?

Rule of this room: begin to listen before the pod is given something to publish, and bound every wait.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import zmq
import zmq.asyncio

from gateway.wire.kv_events import BadEventError, EventSource, read_batch, read_sequence, write_sequence


@dataclass(frozen=True, slots=True)
class Heard:
    """live: a batch of events came. replay: missed ones can be had; None without an endpoint for that. bad: what came
    was no batch of events."""

    live: bool
    replay: bool | None
    bad: str | None = None


class Ear:
    """Listens to one source; `async with` around what makes the pod publish."""

    def __init__(self, source: EventSource, limit_s: float) -> None:
        self._source = source
        self._limit_s = limit_s
        self._context = zmq.asyncio.Context()
        self._socket: zmq.asyncio.Socket | None = None
        self._live = False
        self._bad: str | None = None

    async def __aenter__(self) -> Self:
        self._socket = self._context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.subscribe(self._source.topic)
        monitor = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        try:
            self._socket.connect(self._source.endpoint)
            async with asyncio.timeout(self._limit_s):
                await monitor.recv_multipart()
        except (TimeoutError, zmq.ZMQError):
            pass
        finally:
            self._socket.disable_monitor()
            monitor.close(linger=0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._socket is not None:
            self._socket.close()
        self._context.term()

    async def listen(self) -> bool:
        """Wait for a batch; False when nothing came."""
        assert self._socket is not None
        if self._live or self._bad is not None:
            return True
        try:
            async with asyncio.timeout(self._limit_s):
                frames = await self._socket.recv_multipart()
            read_sequence(frames[-2])
            read_batch(frames[-1])
            self._live = True
        except TimeoutError:
            return False
        except (BadEventError, IndexError) as error:
            self._bad = str(error)
        return True

    async def heard(self) -> Heard:
        """What came so far, and whether old batches are to be had."""
        return Heard(self._live, await self._replays(), self._bad)

    async def _replays(self) -> bool | None:
        if not self._source.replay_endpoint:
            return None
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        try:
            socket.connect(self._source.replay_endpoint)
            async with asyncio.timeout(self._limit_s):
                await socket.send_multipart([b"", write_sequence(0)])
                frames = await socket.recv_multipart()
            read_sequence(frames[-2])
        except (TimeoutError, zmq.ZMQError, BadEventError, IndexError):
            return False
        finally:
            socket.close()
        return True
