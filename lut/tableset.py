"""A table set: a directory with a manifest and one mapped file per node assignment. Reading.

Rule of this room: nothing that a file may hold gets past `open` and `verify` unseen; each refusal is one `TableError`
line. `open` is cheap (header, shape, size, version), `verify` reads everything once in small pieces (checksums, NaN,
ranges). A gateway calls both before it uses a new set.

A set is replaced as a whole directory (`lut.publish`). `open` holds the directory open and looks again when it was
replaced meanwhile, so it sees the old or the new set, never a mixture; files mapped before stay valid. A table file
must never be rewritten in place: the system kills a process whose mapped file becomes shorter.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import xxhash

from lut import assignment as assignments
from lut import manifest as manifests
from lut.cell import FIELDS, UNKNOWN_CI, Origin
from lut.errors import TableError, refuse
from lut.lookup import ARM_BYTES, Table
from lut.manifest import Manifest, TableRecord
from lut.npy import map_array

_CHUNK_ROWS = 1_024
_CHUNK_BYTES = 1 << 20
_NUMBER_BYTES = 4
_OPEN_ATTEMPTS = 100
_REMEMBERED = 256


@dataclass(frozen=True, slots=True)
class TableSet:
    """The tables of one model on one cluster. Immutable; safe to share between threads."""

    directory: Path
    manifest: Manifest
    tables: dict[str, Table]
    """By node assignment, in the order of the manifest; not empty."""
    _nearest: dict[str, str] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def open(cls, directory: Path | str) -> TableSet:
        """Map the tables in `directory`. Raises TableError."""
        directory = Path(directory)
        for attempt in range(_OPEN_ATTEMPTS):
            with _held(directory) as identity:
                try:
                    found = cls._open_once(directory)
                except TableError:
                    if attempt + 1 < _OPEN_ATTEMPTS and _identity(directory) != identity:
                        continue
                    raise
                if _identity(directory) == identity:
                    return found
        raise refuse(directory, "is replaced faster than it can be read")

    @classmethod
    def _open_once(cls, directory: Path) -> TableSet:
        path = directory / manifests.FILE_NAME
        try:
            content = path.read_bytes()
        except OSError as error:
            raise refuse(path, f"cannot be read ({error.strerror})") from error
        manifest = manifests.decode(path, content)
        tables = {}
        for name, record in manifest.tables.items():
            tables[name] = Table(name, manifest.axes, record.arms, _map(directory / record.file, record))
        return cls(directory, manifest, tables)

    def table(self, assignment: str) -> Table | None:
        """The table of exactly this node assignment."""
        return self.tables.get(assignment)

    def nearest_assignment(self, assignment: str) -> tuple[Table, str, bool]:
        """(table, its node assignment, whether that is the one asked for).

        By P:D ratio, then size (`lut.assignment`). Any string has an answer.
        """
        exact = self.tables.get(assignment)
        if exact is not None:
            return exact, assignment, True
        used = self._nearest.get(assignment)
        if used is None:
            used = assignments.nearest(assignment, self.tables)
            if len(self._nearest) < _REMEMBERED:
                self._nearest[assignment] = used
        return self.tables[used], used, False

    def verify(self) -> None:
        """Read every table once. Raises TableError for a wrong checksum, NaN or a value out of range."""
        for name, table in self.tables.items():
            record = self.manifest.tables[name]
            path = self.directory / record.file
            mapped = table.content.obj
            if not isinstance(mapped, mmap.mmap):
                raise refuse(path, "is not mapped from a file")
            _verify_checksum(path, mapped, record.xxh3_128)
            _verify_values(path, table.content)
            _forget_pages(mapped)

    def describe(self) -> str:
        """One line for a log."""
        manifest = self.manifest
        shares = [share.measured for record in manifest.tables.values() for share in record.shares.values()]
        measured = f"{sum(shares) / len(shares):.0%} measured" if shares else "share measured unknown"
        cells = math.prod(manifest.axes.shape)
        return (
            f"{'SIMULATED ' if manifest.simulated else ''}{manifest.model} on {manifest.gpu or 'unnamed GPU'}"
            f" ({manifest.network or 'unnamed network'}): {', '.join(manifest.tables)}; {cells} cells each, {measured};"
            f" made {manifest.created} by {manifest.tool}"
        )


@contextmanager
def _held(directory: Path) -> Iterator[tuple[int, int]]:
    """Keeps the directory open, so that its inode is given to no other, and yields its identity."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise refuse(directory, f"is not a table set ({error.strerror})") from error
    try:
        status = os.fstat(descriptor)
        yield status.st_dev, status.st_ino
    finally:
        os.close(descriptor)


def _identity(directory: Path) -> tuple[int, int] | None:
    try:
        status = directory.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _map(path: Path, record: TableRecord) -> memoryview[float]:
    try:
        size = path.stat().st_size
        if size != record.size_bytes:
            raise refuse(path, f"is {size} bytes long; the manifest says {record.size_bytes}")
        array = map_array(path)
    except OSError as error:
        raise refuse(path, f"cannot be read ({error.strerror or error})") from error
    except ValueError as error:
        raise refuse(path, f"is not a NumPy array file ({error})") from error
    if array.dtype != "<f4":
        raise refuse(path, f"holds {array.dtype}, not little-endian float32")
    if array.shape != record.shape:
        raise refuse(path, f"has the shape {array.shape}; the manifest says {record.shape}")
    if array.fortran_order:
        raise refuse(path, "is in Fortran order")
    end = array.offset + math.prod(array.shape) * _NUMBER_BYTES
    if end != len(array.content):
        raise refuse(path, f"is {len(array.content)} bytes long; its header says {end}")
    return memoryview(array.content)[array.offset :].cast("f", array.shape)


def _verify_checksum(path: Path, mapped: mmap.mmap, expected: str) -> None:
    digest = xxhash.xxh3_128()
    with memoryview(mapped) as content:
        for start in range(0, len(content), _CHUNK_BYTES):
            digest.update(content[start : start + _CHUNK_BYTES])
    if digest.hexdigest() != expected:
        raise refuse(path, f"has the checksum {digest.hexdigest()}; the manifest says {expected}")


def _verify_values(path: Path, content: memoryview) -> None:
    for columns in _chunks(content):
        if not all(math.isfinite(sum(values)) for values in columns):  # no sum of so few float32 overflows
            raise refuse(path, "holds NaN or infinity")
        for name, values in zip(FIELDS, columns, strict=True):
            if not _in_range(name, values):
                raise refuse(path, f"has {name} out of range ({min(values):g} to {max(values):g})")
        time.sleep(0)  # where this is a thread beside an event loop, that one is not kept waiting


def _forget_pages(mapped: mmap.mmap) -> None:
    """Take the pages that were only read to be checked out of this process's resident memory."""
    if hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


def _in_range(name: str, values: Sequence[float]) -> bool:
    if name == "success":
        return min(values) >= 0 and max(values) <= 1
    if name == "origin":
        return sum(values.count(float(origin)) for origin in Origin) == len(values)
    if name in ("ttft_ci", "tpot_ci") and min(values) < 0:
        return min(filter(UNKNOWN_CI.__ne__, values), default=0.0) >= 0
    return min(values) >= 0


def _chunks(content: memoryview) -> Iterator[list[tuple[float, ...]]]:
    """The values of every field, those of some thousand arms at a time."""
    step = _CHUNK_ROWS * ARM_BYTES
    for start in range(0, len(content), step):
        piece = content[start : start + step]
        numbers = struct.unpack(f"<{len(piece) // _NUMBER_BYTES}f", piece)
        yield [numbers[at :: len(FIELDS)] for at in range(len(FIELDS))]
