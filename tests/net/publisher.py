"""A pod's event publisher under the test's control: it publishes, withholds, replays and restarts on command."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Self

import msgspec
import zmq
import zmq.asyncio

LOOPBACK = "tcp://127.0.0.1"


class Publisher:
    """An XPUB (so that a subscription can be waited for) and a ROUTER for replays, on ports of the kernel's choice.

    kept: batches that a replay can bring, as (sequence number, payload). drop_from_replay: those that the next replay
    leaves out, once, as vLLM's does when its reader is slow. answers: False to leave replay requests unanswered.
    """

    def __init__(self, *, replay: bool = True) -> None:
        self._context = zmq.asyncio.Context()
        self._context.linger = 0
        self._socket = self._context.socket(zmq.XPUB)
        self.endpoint = f"{LOOPBACK}:{self._socket.bind_to_random_port(LOOPBACK)}"
        self._router: zmq.asyncio.Socket | None = None
        self.replay_endpoint: str | None = None
        if replay:
            self._router = self._context.socket(zmq.ROUTER)
            self.replay_endpoint = f"{LOOPBACK}:{self._router.bind_to_random_port(LOOPBACK)}"
        self.next = 0
        self.kept: list[tuple[int, bytes]] = []
        self.asked: list[int] = []
        self.drop_from_replay: set[int] = set()
        self.answers = True
        self._answering: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._router is not None:
            self._answering = asyncio.ensure_future(self._answer(self._router))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._answering is not None:
            self._answering.cancel()
            await asyncio.gather(self._answering, return_exceptions=True)
        self._context.destroy(linger=0)

    async def subscribed(self) -> None:
        """Wait for a subscription."""
        frame = await self._socket.recv()
        assert frame[:1] == b"\x01"

    async def publish(self, *events: dict[str, Any], lose: bool = False, keep: bool = True) -> None:
        """One batch. lose: do not send it; keep: a replay will have it."""
        payload = msgspec.msgpack.encode([1000.0 + self.next, list(events), 0])
        if keep:
            self.kept.append((self.next, payload))
        if not lose:
            await self._socket.send_multipart([b"kv@test", self.next.to_bytes(8, "big"), payload])
        self.next += 1

    async def publish_raw(self, *frames: bytes) -> None:
        """Whatever the test wants."""
        await self._socket.send_multipart(list(frames))

    def restart(self) -> None:
        """A new process behind the same ports."""
        self.next = 0
        self.kept.clear()

    async def _answer(self, router: zmq.asyncio.Socket) -> None:
        while True:
            who, _, start = await router.recv_multipart()
            self.asked.append(int.from_bytes(start, "big"))
            if not self.answers:
                continue
            for sequence, payload in self.kept:
                if sequence in self.drop_from_replay:
                    self.drop_from_replay.discard(sequence)
                elif sequence >= self.asked[-1]:
                    await router.send_multipart([who, b"", b"kv@test", sequence.to_bytes(8, "big"), payload])
            await router.send_multipart([who, b"", b"", (-1).to_bytes(8, "big", signed=True), b""])


def stored(
    session: bytes | None, parent: int | bytes | None, blocks: Sequence[int | bytes], **more: Any
) -> dict[str, Any]:
    """A BlockStored of blocks of 16 tokens, with the fields that a real one has and the gateway does not read."""
    return {
        "type": "BlockStored",
        "block_hashes": list(blocks),
        "parent_block_hash": parent,
        "token_ids": list(range(16 * len(blocks))),
        "block_size": 16,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [["salt"], *([None] * (len(blocks) - 1))],
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
        "session_id": None if session is None else session.hex(),
        **more,
    }


def removed(*blocks: int) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(blocks), "medium": "GPU", "group_idx": 0}


CLEARED = {"type": "AllBlocksCleared"}


async def until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    """Let the loop run until something holds that no event announces."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0.001)
