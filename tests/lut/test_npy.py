"""Mapping what NumPy wrote, without NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lut.npy import map_array


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24, dtype="<f4").reshape(2, 3, 4),
        np.arange(24, dtype=">f8").reshape(4, 6),
        np.asfortranarray(np.arange(24, dtype="<i2").reshape(4, 6)),
        np.arange(3, dtype="<f4"),
        np.float32(7),
    ],
    ids=["float32", "big endian", "fortran order", "one dimension", "no dimension"],
)
@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_it_reads_what_numpy_wrote(tmp_path: Path, array: np.ndarray[Any, Any], version: tuple[int, int]) -> None:
    path = tmp_path / "array.npy"
    with path.open("wb") as file:
        np.lib.format.write_array(file, np.asanyarray(array), version=version)
    found = map_array(path)
    assert (found.dtype, found.shape) == (array.dtype.str, array.shape)
    assert found.fortran_order == (not array.flags.c_contiguous)
    assert found.content[found.offset :] == array.tobytes("A")


def header(text: str, version: int = 1) -> bytes:
    """A file that consists of a header only."""
    return b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(2 if version == 1 else 4, "little") + text.encode()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no NumPy magic"),
        (b"\x93NUMPX\x01\x00", "no NumPy magic"),
        (header("{}", version=9), "an unknown format version"),
        (b"\x93NUMPY", "an unknown format version"),
        (b"\x93NUMPY\x01\x00", "an unreadable header"),
        (header(""), "an unreadable header"),
        (header("{}"), "an unreadable header"),
        (header("[1]"), "an unreadable header"),
        (header("{'descr': print(), 'fortran_order': False, 'shape': ()}"), "an unreadable header"),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': (1,)"), "an unreadable header"),
        (header("(" * 9_000), "an unreadable header"),
        (header("-" * 9_000 + "1"), "an unreadable header"),
        (header(" " * 10_001), "a header of 10001 bytes"),
        (header("x" * 4_000_000, version=2), "a header of 4000000 bytes"),
        (header("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}"), "a header of another kind"),
        (header("{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}"), "a header of another kind"),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': 1}"), "a header of another kind"),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}"), "a header of another kind"),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': (1.5,)}"), "a header of another kind"),
    ],
)
def test_what_is_no_array_file_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "array.npy"
    path.write_bytes(content)
    with pytest.raises(ValueError) as refused:
        map_array(path)
    assert str(refused.value) == words


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        map_array(tmp_path / "none.npy")
