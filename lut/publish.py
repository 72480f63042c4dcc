"""Writing a table set and putting it in the place of another.

Rule of this room: a reader sees the old set or the new one. The new directory is written beside the old one, flushed to
disk, and the two change names in one step (`renameat2` with RENAME_EXCHANGE; an ordinary rename when there was none);
the old one is deleted afterwards, which files that are already mapped survive. Where the system or the file system
cannot exchange, two renames take its place: between them, for some microseconds, the directory is missing, `open`
refuses, and a gateway keeps the set it has.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import shutil
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from lut import manifest as manifests
from lut.assignment import is_table_name
from lut.axes import Axes
from lut.cell import FIELDS, Origin, Route
from lut.errors import TableError, refuse
from lut.lookup import table_shape
from lut.manifest import Manifest, Shares, TableRecord

FloatArray = npt.NDArray[np.float32]

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_CANNOT_EXCHANGE = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP}


@dataclass(frozen=True, slots=True)
class DraftTable:
    """One table before it is written; `data` as for `lut.lookup.Table`."""

    arms: tuple[Route, ...]
    data: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A table set before it is written."""

    model: str
    block_size: int | None
    simulated: bool
    axes: Axes
    tables: dict[str, DraftTable]
    """By node assignment."""
    gpu: str = ""
    network: str = ""
    left_out: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def write_table_set(directory: Path | str, draft: Draft, *, created: datetime | None = None) -> Path:
    """Write `draft` to `directory`, replacing the table set there; returns the real path of the directory.

    Raises TableError when the draft has no tables or a wrong shape, when the directory holds something other than a
    table set (it is left alone), or when it cannot be written.
    """
    target = Path(directory).resolve()
    _check(target, draft)
    fresh = target.parent / f".{target.name}.{secrets.token_hex(6)}"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh.mkdir()
        try:
            _write(fresh, draft, created or datetime.now(UTC))
            _put_in_place(fresh, target)
            _flush(target.parent)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    except OSError as error:
        raise refuse(target, f"cannot be written ({error.strerror})") from error
    return target


def _check(target: Path, draft: Draft) -> None:
    if not draft.tables:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in draft.left_out.items())
        raise refuse(target, f"not written, the set has no tables{f' ({reasons})' if reasons else ''}")
    for name, table in draft.tables.items():
        expected = table_shape(draft.axes, table.arms)
        if not is_table_name(name):
            raise refuse(target, f"not written, {name!r} is not a node assignment like 1P_3D")
        if table.data.shape != expected:
            raise refuse(target, f"not written, table {name} has the shape {table.data.shape}, not {expected}")
    if not _may_be_replaced(target):
        raise refuse(target, "exists and is not a table set; not replaced")


def _may_be_replaced(target: Path) -> bool:
    if not target.exists():
        return True
    if not target.is_dir():
        return False
    path = target / manifests.FILE_NAME
    if not path.exists():
        return not any(target.iterdir())
    try:
        manifests.decode_head(path, path.read_bytes())
    except TableError:
        return False
    return True


def _write(directory: Path, draft: Draft, created: datetime) -> None:
    records = {name: _write_table(directory, name, table) for name, table in draft.tables.items()}
    manifest = Manifest(
        model=draft.model,
        block_size=draft.block_size,
        gpu=draft.gpu,
        network=draft.network,
        simulated=draft.simulated,
        axes=draft.axes,
        tables=records,
        left_out=draft.left_out,
        tool=manifests.tool_version(),
        created=created.astimezone(UTC).isoformat(timespec="seconds"),
        notes=draft.notes,
    )
    path = directory / manifests.FILE_NAME
    path.write_bytes(manifests.encode(manifest))
    _flush(path)
    _flush(directory)


def _write_table(directory: Path, name: str, table: DraftTable) -> TableRecord:
    path = directory / f"table-{name}.npy"
    np.save(path, np.ascontiguousarray(table.data, dtype="<f4"), allow_pickle=False)
    _flush(path)
    return TableRecord(
        file=path.name,
        arms=table.arms,
        shape=table.data.shape,
        size_bytes=path.stat().st_size,
        xxh3_128=xxhash.xxh3_128_hexdigest(path.read_bytes()),
        shares={arm: shares(table.data[..., index, :]) for index, arm in enumerate(table.arms)},
    )


def shares(arm: FloatArray) -> Shares:
    """How much of one arm (…, fields) was measured, interpolated and taken from the nearest cell."""
    origin = arm[..., FIELDS.index("origin")]
    return Shares(*(float(np.mean(origin == int(kind))) for kind in Origin))


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _put_in_place(fresh: Path, target: Path) -> None:
    """After this `target` is what `fresh` was, and `fresh` what `target` was, if there was one."""
    if not target.exists():
        fresh.rename(target)
    elif not _exchange(fresh, target):
        aside = fresh.with_name(f"{fresh.name}.old")
        target.rename(aside)
        fresh.rename(target)
        aside.rename(fresh)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names atomically; False where that cannot be done. Raises OSError for other failures."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    if renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _CANNOT_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number), os.fspath(other))
