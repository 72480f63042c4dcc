"""Admin calls in a gateway of several workers: each offers its own on a Unix socket, the first asks all of them.

Rule of this room: a change reaches every worker, also one that is started later: changes are kept in a file of the
workers' folder, by what they change, and a worker that starts makes them before it serves. A worker that does not
answer is left out, not waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from gateway.ops.admin.decisions import Reader, RecentDecisions
from gateway.ops.logs import MAIN

ANSWER_S = 5.0
RETRY_S = 1.0
_MAX_LINE = 16 << 20
_FOLLOW = "follow"


class Ask(msgspec.Struct, frozen=True):
    """A call on its way to another worker, not yet checked there."""

    name: str
    path: dict[str, str] = {}
    query: dict[str, Any] = {}
    body: msgspec.Raw = msgspec.Raw(b"null")


class Answer(msgspec.Struct, frozen=True):
    """status as HTTP has it; body as JSON."""

    status: int
    body: msgspec.Raw


Run = Callable[[Ask], Awaitable[Answer]]
"""Makes a call in this process."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which worker this is. folder: where the workers meet."""

    number: int
    count: int
    folder: Path


class Fan:
    """The workers, seen from one of them. `start` first, `stop` in the end."""

    def __init__(self, place: Place, run: Run, decisions: RecentDecisions) -> None:
        self._place = place
        self._run = run
        self._decisions = decisions
        self._server: asyncio.Server | None = None
        self._busy: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Make the changes that were made before, and offer this worker's calls."""
        for ask in self._kept().values():
            await self._run(ask)
        path = self._socket(self._place.number)
        path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._offer, path, limit=_MAX_LINE)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            for task in self._busy:
                task.cancel()
            await asyncio.gather(*self._busy, return_exceptions=True)
            await self._server.wait_closed()

    async def everywhere(self, ask: Ask) -> list[Answer]:
        """What all other workers answer, as far as they do."""
        found = await asyncio.gather(*(self._ask(number, ask) for number in self._others))
        return [answer for answer in found if answer is not None]

    async def change(self, ask: Ask, target: str) -> None:
        """Have all other workers make a change, now or when they start. target: what it changes; a later change of
        the same replaces this one."""
        with self._locked() as kept:
            kept.pop(target, None)
            kept[target] = ask
        for answer in await self.everywhere(ask):
            if answer.status >= 400:
                MAIN.warning("admin: a worker refused %s: %s", ask.name, bytes(answer.body).decode(errors="replace"))

    @asynccontextmanager
    async def following(self, reader: Reader) -> AsyncIterator[None]:
        """Meanwhile the other workers' decisions go to that reader too, as they come."""
        tasks = [asyncio.ensure_future(self._follow(number, reader)) for number in self._others]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def forget(self, *targets: str) -> None:
        """Workers that start from now on make no changes of these."""
        with self._locked() as kept:
            for target in targets:
                kept.pop(target, None)

    # ---- to other workers

    @property
    def _others(self) -> list[int]:
        return [number for number in range(1, self._place.count + 1) if number != self._place.number]

    def _socket(self, number: int) -> Path:
        return self._place.folder / f"{number}.admin"

    async def _ask(self, number: int, ask: Ask) -> Answer | None:
        try:
            async with asyncio.timeout(ANSWER_S):
                reader, writer = await asyncio.open_unix_connection(self._socket(number), limit=_MAX_LINE)
                try:
                    writer.write(msgspec.json.encode(ask) + b"\n")
                    return msgspec.json.decode(await reader.readline(), type=Answer)
                finally:
                    await _close(writer)
        except (OSError, TimeoutError, ValueError):
            return None

    async def _follow(self, number: int, to: Reader) -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_unix_connection(self._socket(number), limit=_MAX_LINE)
                try:
                    writer.write(msgspec.json.encode(Ask(_FOLLOW)) + b"\n")
                    while line := await reader.readline():
                        to.put(line.rstrip(b"\n"))
                finally:
                    await _close(writer)
            await asyncio.sleep(RETRY_S)

    # ---- from other workers

    async def _offer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._busy.add(task)
        try:
            ask = msgspec.json.decode(await reader.readline(), type=Ask)
            if ask.name == _FOLLOW:
                await self._tell(writer)
            else:
                writer.write(msgspec.json.encode(await self._run(ask)) + b"\n")
                await writer.drain()
        except (OSError, ValueError):
            return
        except asyncio.CancelledError:
            return  # by `stop`; before Python 3.12 asyncio calls a cancelled task of a server an error
        finally:
            self._busy.discard(task)
            await _close(writer)

    async def _tell(self, writer: asyncio.StreamWriter) -> None:
        reader: Reader | None = self._decisions.follow()
        if reader is None:
            return
        try:
            while (decision := await reader.next()) is not None:
                writer.write(decision + b"\n")
                await writer.drain()
        finally:
            self._decisions.leave(reader)

    # ---- for workers that start later

    def _kept(self) -> dict[str, Ask]:
        try:
            return msgspec.json.decode((self._place.folder / "changes.json").read_bytes(), type=dict[str, Ask])
        except (OSError, msgspec.DecodeError):
            return {}

    @contextlib.contextmanager
    def _locked(self) -> Iterator[dict[str, Ask]]:
        """The changes that are kept, to be changed; other workers wait meanwhile."""
        path = self._place.folder / "changes.json"
        descriptor = os.open(self._place.folder / "changes.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            kept = self._kept()
            yield kept
            temporary = path.with_suffix(".new")
            temporary.write_bytes(msgspec.json.encode(kept))
            temporary.replace(path)
        finally:
            os.close(descriptor)


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
