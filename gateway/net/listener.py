"""Listening to the KV events of one DP rank (ZMQ), in order and without a gap, and keeping the view of its cache.

Rule of this room: events share the event loop with requests, so they get it in slices. The only module of the gateway's
path that knows ZMQ (2 MB), hence loaded when the first pod is found to publish.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator

import zmq
import zmq.asyncio

from gateway.core.pods import Pod
from gateway.core.views import Arrival, RankView
from gateway.net.parts import Parts
from gateway.wire.kv_events import (
    BadEventError,
    BlockRemoved,
    BlockStored,
    Event,
    EventSource,
    read_batch,
    read_sequence,
    short_hash,
    write_sequence,
)

REPLAY_S = 2.0
"""For one answer to a replay request."""

REPLAY_ROUNDS = 8
WAITING_BATCHES = 20_000
"""Live batches kept while a replay runs."""

RCVHWM = 200_000
KEY_BYTES = 16


class Listener:
    """One DP rank of one pod: its socket, its view, and what waits to be applied.

    slice_s: time for replayed events per turn of the loop.
    """

    def __init__(
        self, pod: Pod, rank: int, source: EventSource, context: zmq.asyncio.Context, parts: Parts, slice_s: float
    ) -> None:
        self.pod = pod
        self.rank = rank
        self.source = source
        self._parts = parts
        self._slice_s = slice_s
        self._context = context
        self._socket = zmq.Context(context).socket(zmq.SUB)
        self._socket.set_hwm(RCVHWM)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        self._socket.subscribe(source.topic)
        self._socket.connect(source.endpoint)
        self.descriptor = int(self._socket.getsockopt(zmq.FD))
        self._waiting: deque[tuple[int, bytes]] = deque(maxlen=WAITING_BATCHES)
        self._replay: asyncio.Task[None] | None = None
        self._now: Iterator[None] | None = None

    @property
    def view(self) -> RankView:
        return self._parts.residency.view(self.pod, self.rank)

    def close(self) -> None:
        """Stop listening."""
        if self._replay is not None:
            self._replay.cancel()
        self._socket.close()

    def catch_up(self) -> None:
        """Ask for everything that is still to be had."""
        if self.source.replay_endpoint and (self._replay is None or self._replay.done()):
            self._replay = asyncio.ensure_future(self._ask_again(self.source.replay_endpoint))

    def work(self, until: float) -> bool:
        """Take and apply messages until that time; True when more may be there."""
        while time.perf_counter() < until:
            if self._now is None:
                message = self._receive()
                if message is None:
                    return False
                self._now = self._live(*message)
            try:
                next(self._now)
            except StopIteration:
                self._now = None
        return True

    def _receive(self) -> tuple[int, bytes] | None:
        while True:
            try:
                frames: list[bytes] = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return None
            try:
                return read_sequence(frames[-2]), frames[-1]
            except (BadEventError, IndexError):
                self._parts.observer.fault("bad_kv_event", self.pod.url, "", "a message without a sequence number")

    def _live(self, sequence: int, payload: bytes) -> Iterator[None]:
        if self._replay is not None and not self._replay.done():
            self._waiting.append((sequence, payload))
            return
        view = self.view
        arrival = view.arrival(sequence)
        if arrival is Arrival.RESTART:
            arrival = self._began_anew(sequence)
        if arrival is Arrival.GAP:
            if self.source.replay_endpoint:
                view.postpone(sequence)
                self._waiting.append((sequence, payload))
                self.catch_up()
                return
            self._lose(view, sequence)
        if arrival is not Arrival.OLD:
            yield from self._apply(view, sequence, payload)
            view.lag_s = max(0.0, time.time() - view.last_event_s)

    def _began_anew(self, sequence: int) -> Arrival:
        """The publisher counts from the beginning again: the pod is another process."""
        self._parts.restarted(self.pod, "its KV events began anew")
        self.view.restart()
        return self.view.arrival(sequence)

    def _apply(self, view: RankView, sequence: int, payload: bytes) -> Iterator[None]:
        try:
            batch = read_batch(payload)
        except BadEventError as error:
            self._parts.observer.fault("bad_kv_event", self.pod.url, "", str(error))
            view.lose(sequence + 1)
            return
        view.heard_batch(sequence, batch.ts)
        for event in batch.events:
            apply_event(view, event)
            yield

    def _lose(self, view: RankView, next_sequence: int) -> None:
        first = not view.heard
        view.lose(next_sequence)
        if not first:
            self._parts.observer.fault(
                "kv_events_lost", self.pod.url, "", f"events before {next_sequence} cannot be had any more"
            )

    async def _ask_again(self, endpoint: str) -> None:
        """Replay from the first missing sequence number, then what came in meanwhile."""
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.set_hwm(0)
        try:
            socket.connect(endpoint)
            for _ in range(REPLAY_ROUNDS):
                if await self._take_replay(socket):
                    break
        except (TimeoutError, zmq.ZMQError, BadEventError, IndexError) as error:
            self._parts.observer.fault("kv_replay", self.pod.url, "", type(error).__name__)
        finally:
            socket.close()
        await self._take_waiting()

    async def _take_replay(self, socket: zmq.asyncio.Socket) -> bool:
        """One round; False when it brought something but not all, and the rest may be asked for again.

        vLLM's socket drops what a reader does not fetch fast enough, without a word, so all is read first.
        """
        view = self.view
        start = view.next_sequence
        batches: list[tuple[int, bytes]] = []
        async with asyncio.timeout(REPLAY_S):
            await socket.send_multipart([b"", write_sequence(start)])
            while (frames := await socket.recv_multipart()) and (sequence := read_sequence(frames[-2])) >= 0:
                batches.append((sequence, frames[-1]))
        if start == 0 and not view.heard and not batches:
            view.complete = True
        for sequence, payload in batches:
            if sequence < view.next_sequence:
                continue
            if not view.replayed_from(sequence):
                if view.next_sequence > start:
                    return False
                self._lose(view, sequence)
            await self._apply_slowly(view, sequence, payload)
        return True

    async def _take_waiting(self) -> None:
        view = self.view
        while self._waiting:
            sequence, payload = self._waiting.popleft()
            arrival = view.arrival(sequence)
            if arrival is Arrival.OLD:
                continue
            if arrival is Arrival.RESTART:
                arrival = self._began_anew(sequence)
            if arrival is Arrival.GAP:
                self._lose(view, sequence)
            await self._apply_slowly(view, sequence, payload)

    async def _apply_slowly(self, view: RankView, sequence: int, payload: bytes) -> None:
        until = time.perf_counter() + self._slice_s
        for _ in self._apply(view, sequence, payload):
            if time.perf_counter() > until:
                await asyncio.sleep(0)
                until = time.perf_counter() + self._slice_s


def apply_event(view: RankView, event: Event) -> None:
    """One event into a view."""
    if isinstance(event, BlockStored):
        parent = event.parent_block_hash
        view.stored(
            _key(event.session_id),
            None if parent is None else short_hash(parent),
            [short_hash(block) for block in event.block_hashes],
            event.block_size,
            event.medium,
            event.group_idx,
            event.kv_cache_spec_kind,
            event.kv_cache_spec_sliding_window,
        )
    elif isinstance(event, BlockRemoved):
        view.removed([short_hash(block) for block in event.block_hashes], event.medium, event.group_idx)
    else:
        view.cleared()


def _key(session_id: str | None) -> bytes | None:
    """A conversation's key from the session id that this gateway sent; None for others' sessions."""
    if session_id is None or len(session_id) != 2 * KEY_BYTES:
        return None
    try:
        return bytes.fromhex(session_id)
    except ValueError:
        return None
