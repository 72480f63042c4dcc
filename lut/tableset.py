"""A table set: a directory with a manifest and one mapped file per node assignment. Reading.

Rule of this room: nothing that a file may hold gets past `open` and `verify` unseen; each refusal is one `TableError`
line. `open` is cheap (header, shape, size, version), `verify` reads everything once in small pieces (checksums, NaN,
ranges). A gateway calls both before it uses a new set.

A set is replaced as a whole directory (`lut.publish`). `open` holds the directory open and looks again when it was
replaced meanwhile, so it sees the old or the new set, never a mixture; files mapped before stay valid. A table file
must never be rewritten in place: the system kills a process whose mapped file becomes shorter.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from lut import assignment as assignments
from lut import manifest as manifests
from lut.cell import FIELDS, UNKNOWN_CI, Origin
from lut.errors import TableError, refuse
from lut.lookup import FloatArray, Table
from lut.manifest import Manifest, TableRecord

_CHUNK_ROWS = 16_384
_CHUNK_BYTES = 1 << 20
_OPEN_ATTEMPTS = 100
_REMEMBERED = 256
_MAGIC = b"\x93NUMPY"


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
            _verify_checksum(path, table.data, record.xxh3_128)
            _verify_values(path, table.data)
            _forget_pages(table.data)

    def describe(self) -> str:
        """One line for a log."""
        manifest = self.manifest
        shares = [share.measured for record in manifest.tables.values() for share in record.shares.values()]
        measured = f"{sum(shares) / len(shares):.0%} measured" if shares else "share measured unknown"
        cells = int(np.prod(manifest.axes.shape))
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


def _map(path: Path, record: TableRecord) -> FloatArray:
    try:
        size = path.stat().st_size
        if size != record.size_bytes:
            raise refuse(path, f"is {size} bytes long; the manifest says {record.size_bytes}")
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
        if magic != _MAGIC:
            raise refuse(path, "is not a NumPy array file")
        array: np.memmap[Any, np.dtype[np.float32]] = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise refuse(path, f"cannot be read ({error.strerror or error})") from error
    except (ValueError, EOFError, OverflowError) as error:
        raise refuse(path, f"is not a NumPy array file ({error})") from error
    if array.dtype != np.dtype("<f4"):
        raise refuse(path, f"holds {array.dtype.str}, not little-endian float32")
    if array.shape != record.shape:
        raise refuse(path, f"has the shape {array.shape}; the manifest says {record.shape}")
    if not array.flags.c_contiguous:
        raise refuse(path, "is in Fortran order")
    if size != array.offset + array.nbytes:
        raise refuse(path, f"is {size} bytes long; its header says {array.offset + array.nbytes}")
    return array


def _verify_checksum(path: Path, array: FloatArray, expected: str) -> None:
    mapped = array.base
    if not isinstance(mapped, mmap.mmap):
        raise refuse(path, "is not mapped from a file")
    digest = xxhash.xxh3_128()
    with memoryview(mapped) as content:
        for start in range(0, len(content), _CHUNK_BYTES):
            digest.update(content[start : start + _CHUNK_BYTES])
    if digest.hexdigest() != expected:
        raise refuse(path, f"has the checksum {digest.hexdigest()}; the manifest says {expected}")


def _verify_values(path: Path, array: FloatArray) -> None:
    for rows in _chunks(array):
        if not np.isfinite(rows).all():
            raise refuse(path, "holds NaN or infinity")
        for name, values in zip(FIELDS, rows.T, strict=True):
            if not _in_range(name, values):
                raise refuse(path, f"has {name} out of range ({values.min():g} to {values.max():g})")


def _forget_pages(array: FloatArray) -> None:
    """Take the pages that were only read to be checked out of this process's resident memory."""
    mapped = array.base
    if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


def _in_range(name: str, values: FloatArray) -> bool:
    if name == "success":
        return bool(((values >= 0) & (values <= 1)).all())
    if name == "origin":
        return bool(np.isin(values, [int(origin) for origin in Origin]).all())
    if name in ("ttft_ci", "tpot_ci"):
        return bool(((values >= 0) | (values == UNKNOWN_CI)).all())
    return bool((values >= 0).all())


def _chunks(array: FloatArray) -> Iterator[FloatArray]:
    """The array as rows of fields, some thousand at a time, without a copy."""
    rows = array.reshape(-1, array.shape[-1])
    for start in range(0, len(rows), _CHUNK_ROWS):
        yield rows[start : start + _CHUNK_ROWS]
