"""The conversations in a file, so that a restart of the gateway forgets none.

Rule of this room: the file is whole or it is not used. It is made in slices between which the event loop runs, and
put in place by rename; when that fails, the old one stays and requests are served as before.

Layout: magic, format version, wall time, length of the rest, checksum; then frames of a length and a MessagePack list.
The first frame tells the pods' processes (URL → instance) and, by the key `drift`, what is known of that; the others
hold conversations, in no order.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import xxhash

from gateway.core.memory import ConversationRecord, Memory, instance_of
from gateway.core.pods import Fleet

FORMAT = 1
_MAGIC = b"PPDSTATE"
_HEAD = struct.Struct("<8sHxxxxxxdQ16s")
_FRAME = struct.Struct("<I")
_AHEAD_S = 60.0
"""How far in the future a file's time may lie: clocks are set now and then."""

_DRIFT = "drift"
"""The one key of the first frame that is no pod's URL."""

_SLICE_S = 0.001
_SLICE_CONVERSATIONS = 50
_SAY_AGAIN_S = 600.0

_encoder = msgspec.msgpack.Encoder()
_pods_decoder = msgspec.msgpack.Decoder(dict[str, str])
_records_decoder = msgspec.msgpack.Decoder(list[ConversationRecord])


class SnapshotError(Exception):
    """A file that is not used, and why."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a file holds. age_s: since it was made. drift: what was known of it, as its owner wrote it."""

    age_s: float
    instances: dict[str, str]
    records: list[ConversationRecord]
    drift: str = ""


def read(path: Path, max_age_s: float, wall_s: float) -> Snapshot | None:
    """Read a file; None when there is none. Raises SnapshotError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise SnapshotError(f"{path}: not a file")
            data = file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SnapshotError(f"{path}: {error.strerror or error}") from None
    if data[: len(_MAGIC)] != _MAGIC[: len(data)]:
        raise SnapshotError(f"{path}: not a state file")
    if len(data) < _HEAD.size:
        raise SnapshotError(f"{path}: torn: it ends within its head")
    _, version, written_s, length, digest = _HEAD.unpack_from(data)
    if version != FORMAT:
        raise SnapshotError(f"{path}: format {version}, this gateway reads {FORMAT}")
    body = memoryview(data)[_HEAD.size :]
    if len(body) != length:
        raise SnapshotError(f"{path}: torn: {len(body)} of {length} bytes")
    hasher = _hasher(version, written_s)
    hasher.update(body)
    if hasher.digest() != digest:
        raise SnapshotError(f"{path}: damaged: its checksum does not fit")
    age_s = wall_s - written_s
    if not age_s <= max_age_s:
        raise SnapshotError(f"{path}: too old: {age_s:.0f} s")
    if age_s < -_AHEAD_S:
        raise SnapshotError(f"{path}: made {-age_s:.0f} s in the future: is the clock right?")
    try:
        first, *rest = _frames(body)
        records = [record for frame in rest for record in _records_decoder.decode(frame)]
        instances = _pods_decoder.decode(first)
        drift = instances.pop(_DRIFT, "")
        return Snapshot(max(0.0, age_s), instances, records, drift)
    except (msgspec.DecodeError, ValueError, struct.error):
        raise SnapshotError(f"{path}: not readable, though its checksum fits") from None


class Body:
    """The rest of a file, piece by piece."""

    def __init__(self, wall_s: float) -> None:
        self.pieces: deque[bytes] = deque()
        self.length = 0
        self._wall_s = wall_s
        self._hasher = _hasher(FORMAT, wall_s)

    def add(self, content: object) -> None:
        """One more frame."""
        frame = _encoder.encode(content)
        for piece in (_FRAME.pack(len(frame)), frame):
            self.pieces.append(piece)
            self._hasher.update(piece)
            self.length += len(piece)

    @property
    def head(self) -> bytes:
        """What goes before it."""
        return _HEAD.pack(_MAGIC, FORMAT, self._wall_s, self.length, self._hasher.digest())


def write(path: Path, body: Body) -> None:
    """Put a file in place, or leave the old one; uses the body up. Raises OSError."""
    temporary = path.with_name(f".{path.name}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(body.head)
            while body.pieces:
                file.write(body.pieces.popleft())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class Snapshots:
    """Writes a store to a file every `interval_s`, and once more at `stop`.

    on_failure: told why a file could not be written, at most every ten minutes for the same reason.
    on_end: told of every write whether it went well. written: (conversations, bytes, seconds) of the last one.
    drift: gives what is known of that, to be kept as well.
    """

    def __init__(
        self,
        path: Path,
        interval_s: float,
        memory: Memory,
        fleet: Fleet,
        *,
        on_failure: Callable[[str], None],
        on_end: Callable[[bool], None] = lambda well: None,
    ) -> None:
        self.path = path
        self._interval_s = interval_s
        self._memory = memory
        self._fleet = fleet
        self._on_failure = on_failure
        self._on_end = on_end
        self.drift: Callable[[], str] | None = None
        self.written: tuple[int, int, float] | None = None
        self._task: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        self._said: tuple[str, float] | None = None

    def restore(self, ttl_s: float) -> Snapshot | None:
        """Take in what the file holds, before anything is served. None when there is no file. Raises SnapshotError.

        The pods are expected to be the processes they were; whoever probes them finds out if they are not.
        """
        snapshot = read(self.path, ttl_s, time.time())
        if snapshot is None:
            return None
        for pod in self._fleet:
            if instance := snapshot.instances.get(pod.url):
                pod.facts = msgspec.structs.replace(pod.facts, instance=instance)
        now_s, memory = time.monotonic(), self._memory
        aged = [msgspec.structs.replace(record, age_s=record.age_s + snapshot.age_s) for record in snapshot.records]
        for record in sorted(aged, key=lambda record: -record.age_s):
            if record.age_s <= ttl_s and memory.store.get(record.key) is None:
                memory.put_back(record, now_s)
        memory.store.sort_alike()
        return snapshot

    def start(self) -> None:
        """Begin to write."""
        self._task = asyncio.ensure_future(self._write_often())

    async def stop(self) -> None:
        """Write once more, and end. A gateway that never came to serve leaves the file as it is."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            await self.save()

    async def save(self) -> None:
        """Write now."""
        async with self._writing:
            began_s, wall_s = time.monotonic(), time.time()
            body = Body(wall_s)
            count = await self._fill(body)
            writing = asyncio.ensure_future(asyncio.to_thread(write, self.path, body))
            try:
                await asyncio.shield(writing)
            except OSError as error:
                self._complain(error.strerror or str(error))
                self._on_end(False)
            except asyncio.CancelledError:
                await asyncio.wait([writing])
                writing.exception()
                raise
            else:
                self._said = None
                self.written = (count, body.length + _HEAD.size, time.monotonic() - began_s)
                self._on_end(True)

    async def _fill(self, body: Body) -> int:
        """Write everything down, and let others run in between; gives the number of conversations."""
        first = {pod.url: instance_of(pod) for pod in self._fleet}
        if self.drift is not None:
            first[_DRIFT] = self.drift()
        body.add(first)
        memory, keys = self._memory, self._memory.store.keys()
        count = 0
        slice_began_s = time.perf_counter()
        for start in range(0, len(keys), _SLICE_CONVERSATIONS):
            now_s = time.monotonic()
            found = [memory.store.get(key) for key in keys[start : start + _SLICE_CONVERSATIONS]]
            records = [memory.record(known, now_s) for known in found if known is not None and known.turn > 0]
            body.add(records)
            count += len(records)
            if time.perf_counter() - slice_began_s >= _SLICE_S:
                await asyncio.sleep(0)
                slice_began_s = time.perf_counter()
        return count

    async def _write_often(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self.save()

    def _complain(self, why: str) -> None:
        now_s = time.monotonic()
        if self._said is None or self._said[0] != why or now_s - self._said[1] >= _SAY_AGAIN_S:
            self._said = (why, now_s)
            self._on_failure(f"{self.path}: {why}; the old file stays")


def _hasher(version: int, written_s: float) -> xxhash.xxh3_128:
    return xxhash.xxh3_128(struct.pack("<Hd", version, written_s))


def _frames(body: memoryview) -> Iterator[memoryview]:
    at = 0
    while at < len(body):
        (length,) = _FRAME.unpack_from(body, at)
        at += _FRAME.size
        if at + length > len(body):
            raise ValueError("a frame is longer than the file")
        yield body[at : at + length]
        at += length
