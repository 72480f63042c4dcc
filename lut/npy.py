"""A `.npy` file, mapped without NumPy: a gateway that only looks numbers up has no need of a numerical library.

Rule of this room: the header is read and nothing else; whether this is the array that was expected is the caller's to
say. The format is NumPy's (`numpy/lib/_format_impl.py`): magic, version, length of the header, the header as a Python
literal, the array.
"""

from __future__ import annotations

import ast
import mmap
from pathlib import Path
from typing import NamedTuple

_MAGIC = b"\x93NUMPY"
_LENGTH_BYTES = {b"\1\0": 2, b"\2\0": 4, b"\3\0": 4}
"""By the format's version: how many bytes the length of the header takes."""

_MAX_HEADER = 10_000


class Array(NamedTuple):
    """What the header says, and where the array begins in the mapped file. dtype: as NumPy writes it, like "<f4"."""

    dtype: str
    shape: tuple[int, ...]
    fortran_order: bool
    offset: int
    content: mmap.mmap


def map_array(path: Path) -> Array:
    """Map the file for reading. Raises OSError, and ValueError when it is no NumPy array file."""
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise ValueError("no NumPy magic")
        length_bytes = _LENGTH_BYTES.get(file.read(2))
        if length_bytes is None:
            raise ValueError("an unknown format version")
        length = int.from_bytes(file.read(length_bytes), "little")
        if length > _MAX_HEADER:
            raise ValueError(f"a header of {length} bytes")
        dtype, shape, fortran_order = _fields(file.read(length))
        offset = file.tell()
        return Array(dtype, shape, fortran_order, offset, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _fields(header: bytes) -> tuple[str, tuple[int, ...], bool]:
    try:
        found = ast.literal_eval(header.decode())
        dtype, shape, fortran_order = found["descr"], found["shape"], found["fortran_order"]
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError) as error:
        raise ValueError("an unreadable header") from error
    if not (isinstance(dtype, str) and isinstance(fortran_order, bool) and isinstance(shape, tuple)):
        raise ValueError("a header of another kind")
    if not all(isinstance(length, int) and length >= 0 for length in shape):
        raise ValueError("a header of another kind")
    return dtype, shape, fortran_order
