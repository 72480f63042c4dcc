"""`manifest.json`: what a table set is, beside its tables.

Rule of this room: the manifest is JSON that a person can read, every number in it has its unit beside it or in its
name, and what cannot be trusted (format, version, axes, file names, shapes) is refused when it is decoded.
"""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import Literal

import msgspec

from lut.assignment import is_table_name
from lut.axes import Axes
from lut.cell import ARMS, FIELDS, UNITS, Route
from lut.errors import refuse
from lut.lookup import table_shape

FORMAT = "ppd-lut"
VERSION = 1
FILE_NAME = "manifest.json"


class Shares(msgspec.Struct, frozen=True):
    """Shares of an arm's cells by where their numbers come from; they add up to 1."""

    measured: float
    interpolated: float
    nearest: float


class TableRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One table file."""

    file: str
    arms: tuple[Route, ...]
    shape: tuple[int, ...]
    """(context, new, output, rate, arms, fields)."""
    size_bytes: int
    xxh3_128: str
    """Of the whole file; `xxhsum -H2` prints the same."""
    shares: dict[str, Shares]
    """By arm."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The whole manifest. `gpu` and `network` are the operator's words."""

    format: str = FORMAT
    version: int = VERSION
    model: str
    block_size: int | None
    gpu: str
    network: str
    simulated: bool
    rate_counts: Literal["turns_per_s"] = "turns_per_s"
    """What the rate axis counts: turns per second that reach the gateway."""
    axes: Axes
    dtype: Literal["<f4"] = "<f4"
    fields: tuple[str, ...] = FIELDS
    units: dict[str, str] = msgspec.field(default_factory=UNITS.copy)
    tables: dict[str, TableRecord]
    """By node assignment."""
    left_out: dict[str, str] = {}
    """Node assignments that were measured but have no table, and why."""
    tool: str
    created: str
    """ISO 8601, UTC."""
    notes: tuple[str, ...] = ()


class _Head(msgspec.Struct):
    format: str
    version: int


def tool_version() -> str:
    """`ppd-gateway 0.1.0`, as installed."""
    import importlib.metadata

    try:
        return f"ppd-gateway {importlib.metadata.version('ppd-gateway')}"
    except importlib.metadata.PackageNotFoundError:
        return "ppd-gateway (not installed)"


def encode(manifest: Manifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def decode_head(path: Path, content: bytes) -> int:
    """The version, when `content` is a manifest of ours. Raises TableError naming `path`."""
    try:
        head = msgspec.json.decode(content, type=_Head)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise refuse(path, f"is not the manifest of a table set ({error})") from error
    if head.format != FORMAT:
        raise refuse(path, f"has the format {head.format!r}, not {FORMAT!r}")
    return head.version


def decode(path: Path, content: bytes) -> Manifest:
    """Raises TableError naming `path`."""
    version = decode_head(path, content)
    if version != VERSION:
        raise refuse(path, f"has the format version {version}; this version reads {VERSION}")
    try:
        manifest = msgspec.json.decode(content, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise refuse(path, error) from error
    _check(path, manifest)
    return manifest


def _check(path: Path, manifest: Manifest) -> None:
    if manifest.fields != FIELDS:
        raise refuse(path, f"has the fields {', '.join(manifest.fields)}, not {', '.join(FIELDS)}")
    if not manifest.tables:
        raise refuse(path, "lists no tables")
    for assignment, record in manifest.tables.items():
        if not is_table_name(assignment):
            raise refuse(path, f"table {assignment!r} is not a node assignment like 1P_3D")
        if record.file != PurePath(record.file).name or record.file in ("", ".", ".."):
            raise refuse(path, f"table {assignment} names the file {record.file!r} outside of its directory")
        if record.arms not in (ARMS[:2], ARMS):
            raise refuse(path, f"table {assignment} has the arms {', '.join(record.arms)}, not pd, local (, readback)")
        expected = table_shape(manifest.axes, record.arms)
        if record.shape != expected:
            raise refuse(path, f"table {assignment} has the shape {record.shape}; its axes and arms make {expected}")
