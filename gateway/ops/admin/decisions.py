"""The last requests that are over, and whoever wants to see them come.

Rule of this room: bounded in number and in what a slow reader may hold; a request pays for one append.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator

import msgspec

from gateway.net.records import IdleObserver, RequestRecord
from gateway.ops.admin.schemas import Decision
from gateway.ops.logs import request_fields

KEPT = 2000
MAX_BEHIND = 1000
"""Decisions that a reader of the stream may be behind before it is dropped."""

MAX_READERS = 16


class Reader:
    """One follower of decisions as JSON. `next` gives the next one, None once it was dropped."""

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        self._more = asyncio.Event()
        self.dropped = False

    def put(self, decision: bytes) -> None:
        """One more; a reader that is too far behind is dropped."""
        if len(self._waiting) >= MAX_BEHIND:
            self.drop()
        else:
            self._waiting.append(decision)
            self._more.set()

    def drop(self) -> None:
        """Nothing more for this one."""
        self.dropped = True
        self._waiting.clear()
        self._more.set()

    async def next(self) -> bytes | None:
        while not self._waiting:
            if self.dropped:
                return None
            self._more.clear()
            await self._more.wait()
        return self._waiting.popleft()


class RecentDecisions(IdleObserver):
    """Remembers the last KEPT requests that were routed."""

    def __init__(self) -> None:
        self.records: deque[tuple[float, RequestRecord]] = deque(maxlen=KEPT)
        self._readers: set[Reader] = set()

    def finished(self, record: RequestRecord) -> None:
        if record.route is None:
            return
        now = time.time()
        self.records.append((now, record))
        if self._readers:
            decision = msgspec.json.encode(shown(now, record))
            for reader in self._readers:
                reader.put(decision)

    def last(self, limit: int) -> list[Decision]:
        """The newest first."""
        newest: list[Decision] = []
        for when, record in reversed(self.records):
            if len(newest) == limit:
                break
            newest.append(shown(when, record))
        return newest

    def of(self, request_id: str) -> list[Decision]:
        """All that are remembered under that id; a client may have used it more than once."""
        return [shown(when, record) for when, record in self.records if record.request_id == request_id]

    def since(self, time_s: float) -> Iterator[RequestRecord]:
        """Those that ended after that."""
        for when, record in reversed(self.records):
            if when < time_s:
                return
            yield record

    def follow(self) -> Reader | None:
        """A new reader; None when there are too many. Give it back with `leave`."""
        if len(self._readers) >= MAX_READERS:
            return None
        reader = Reader()
        self._readers.add(reader)
        return reader

    @property
    def readers(self) -> int:
        """How many follow now."""
        return len(self._readers)

    def leave(self, reader: Reader) -> None:
        self._readers.discard(reader)

    def drop_all(self) -> None:
        """End all streams."""
        for reader in self._readers:
            reader.drop()


def shown(when: float, record: RequestRecord) -> Decision:
    """A decision as the API tells it."""
    fields = request_fields(record)
    return Decision(time=round(when, 3), score=record.score, service=fields.pop("class", None), **fields)
