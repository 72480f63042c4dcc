"""The connection to Redis or Valkey: questions are gathered, writes are queued.

Rule of this room: keys and values are opaque bytes here. Questions that come together go out as one; at most one is
on its way. A server that is away or hangs costs its callers nothing but an error.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from gateway.core.sharing import VERSION_BYTES, Entry

MAX_WAITING_WRITES = 10_000
"""Turns to remember while the server is away; beyond that the oldest are dropped."""

_BATCH = 256
_ASK_KEYS = 1024
_RETRY_S = (0.1, 0.25, 0.5, 1.0)
_FLUSH_S = 1.0

_PUT = f"""for i = 1, #KEYS do
  if redis.call('GETRANGE', KEYS[i], 0, {VERSION_BYTES - 1}) <= string.sub(ARGV[i + 1], 1, {VERSION_BYTES}) then
    redis.call('SET', KEYS[i], ARGV[i + 1], 'EX', ARGV[1])
  end
end"""
"""Sets every key unless it has a newer value."""


class LinkError(Exception):
    """The server could not be asked; says why, without any key or value."""


class RedisLink:
    """One server.

    url: `redis://` or `rediss://`, may hold a password. namespace: keeps clusters on one server apart.
    io_timeout_s: after so long without an answer a connection is given up.
    """

    def __init__(self, url: str, namespace: str, io_timeout_s: float = 0.25) -> None:
        self._client = Redis.from_url(
            url,
            protocol=2,
            socket_timeout=io_timeout_s,
            socket_connect_timeout=io_timeout_s,
            retry=Retry(NoBackoff(), 0),
        )
        self._prefix = f"ppd:{namespace}:".encode()
        self._name = secrets.token_hex(8)
        self._waiting: list[tuple[Sequence[bytes], asyncio.Future[list[bytes | None]]]] = []
        self._asked = asyncio.Event()
        self._asking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to answer `get`."""
        self._asking = asyncio.ensure_future(self._ask_all())

    async def stop(self) -> None:
        """Close all connections."""
        await end(self._asking)
        await self._client.aclose()

    def key(self, hashed: bytes) -> bytes:
        """A key as the server has it."""
        return self._prefix + hashed

    async def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of keys, in their order. Raises LinkError."""
        answer: asyncio.Future[list[bytes | None]] = asyncio.get_running_loop().create_future()
        self._waiting.append((keys, answer))
        self._asked.set()
        return await answer

    async def put(self, entries: Sequence[Entry], ttl_s: float) -> None:
        """Write finished turns. Raises LinkError when the server is away, ResponseError when it refuses."""
        ttl = max(1, int(ttl_s))
        pipeline = self._client.pipeline(transaction=False)
        for entry in entries:
            keys = [self.key(key) for key in entry.values]
            if keys:
                cast(Any, pipeline).eval(_PUT, len(keys), *keys, ttl, *entry.values.values())
            if entry.ends is not None:
                block, offset = entry.ends
                pipeline.setbit(self.key(block), offset, 1)
                pipeline.expire(self.key(block), ttl)
        await self._execute(pipeline)

    async def run(self, script: str, keys: Sequence[bytes], numbers: Sequence[float]) -> Any:
        """Run a script on some keys. Raises LinkError."""
        try:
            return await cast(Any, self._client).eval(script, len(keys), *map(self.key, keys), *numbers)
        except (RedisError, OSError) as error:
            raise LinkError(_why(error)) from None

    async def exchange_rate(self, own: float, every_s: float) -> list[float]:
        """Tell the other gateways this one's rate, and get theirs. Raises LinkError."""
        members, mine = self.key(b"gateways"), self.key(b"rate:" + self._name.encode())
        pipeline = self._client.pipeline(transaction=False)
        pipeline.set(mine, f"{own:.3f}", px=int(every_s * 3000))
        pipeline.sadd(members, self._name)
        pipeline.expire(members, 3600)
        pipeline.smembers(members)
        try:
            found = cast(Any, (await self._execute(pipeline))[-1])
            others = [name for name in found if name != self._name.encode()]
            if not others:
                return []
            reading = self._client.pipeline(transaction=False)
            reading.mget([self.key(b"rate:" + name) for name in others])
            rates = cast(Any, (await self._execute(reading))[0])
            gone = [name for name, rate in zip(others, rates, strict=True) if rate is None]
            if gone:
                forgetting = self._client.pipeline(transaction=False)
                forgetting.srem(members, *gone)
                await self._execute(forgetting)
            return [float(rate) for rate in rates if rate is not None]
        except (ResponseError, ValueError) as error:
            raise LinkError(_why(error)) from None

    async def _ask_all(self) -> None:
        while True:
            await self._asked.wait()
            self._asked.clear()
            while self._waiting:
                taken, size = 0, 0
                while taken < len(self._waiting) and (size == 0 or size + len(self._waiting[taken][0]) <= _ASK_KEYS):
                    size += len(self._waiting[taken][0])
                    taken += 1
                batch, self._waiting = self._waiting[:taken], self._waiting[taken:]
                await self._ask([(keys, answer) for keys, answer in batch if not answer.done()])

    async def _ask(self, batch: Sequence[tuple[Sequence[bytes], asyncio.Future[list[bytes | None]]]]) -> None:
        if not batch:
            return
        try:
            values = await cast(Any, self._client).mget([self.key(key) for keys, _ in batch for key in keys])
        except (RedisError, OSError) as error:
            for _, answer in batch:
                if not answer.done():
                    answer.set_exception(LinkError(_why(error)))
            return
        at = 0
        for keys, answer in batch:
            if not answer.done():
                answer.set_result(values[at : at + len(keys)])
            at += len(keys)

    async def _execute(self, pipeline: Any) -> list[object]:
        try:
            async with pipeline:
                return cast(list[object], await pipeline.execute())
        except ResponseError:
            raise
        except (RedisError, OSError) as error:
            raise LinkError(_why(error)) from None


class Writer:
    """Finished turns on their way to the server, in order; made again when it was away.

    count: told (op, result).
    """

    def __init__(self, link: RedisLink, ttl_s: float, count: Callable[[str, str], None]) -> None:
        self._link = link
        self._ttl_s = ttl_s
        self._count = count
        self._entries: deque[Entry] = deque()
        self._in_hand = 0
        self._added = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._entries) + self._in_hand

    def start(self) -> None:
        """Begin to write."""
        self._task = asyncio.ensure_future(self._write())

    async def stop(self) -> None:
        """Write what waits, if that takes no longer than a moment."""
        try:
            async with asyncio.timeout(_FLUSH_S):
                await self._empty.wait()
        except TimeoutError:
            for _ in range(len(self)):
                self._count("write", "dropped")
        await end(self._task)

    async def idle(self) -> None:
        """Wait until nothing waits."""
        await self._empty.wait()

    def add(self, entry: Entry) -> None:
        """Write that soon."""
        if len(self._entries) >= MAX_WAITING_WRITES:
            self._entries.popleft()
            self._count("write", "dropped")
        self._entries.append(entry)
        self._empty.clear()
        self._added.set()

    async def _write(self) -> None:
        failures = 0
        while True:
            await self._added.wait()
            self._added.clear()
            while self._entries:
                batch = [self._entries.popleft() for _ in range(min(_BATCH, len(self._entries)))]
                self._in_hand = len(batch)
                try:
                    await self._link.put(batch, self._ttl_s)
                except LinkError:
                    self._entries.extendleft(reversed(batch))
                    self._in_hand = 0
                    self._count("write", "error")
                    await asyncio.sleep(_RETRY_S[min(failures, len(_RETRY_S) - 1)])
                    failures += 1
                    continue
                except ResponseError:
                    self._count("write", "refused")
                else:
                    for _ in batch:
                        self._count("write", "ok")
                failures = 0
                self._in_hand = 0
            self._empty.set()


async def end(task: asyncio.Task[None] | None) -> None:
    """Cancel a task until it is over: the client library swallows a cancellation that meets it while it connects."""
    while task is not None and not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=0.05)


def _why(error: Exception) -> str:
    """A reason for the log; the library's own words may quote what was sent, so only its kind is told."""
    return type(error).__name__
