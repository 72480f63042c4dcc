"""Opening and checking a table set; everything that is refused, and with which words."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from lut.axes import Axes
from lut.lookup import table_shape
from lut.publish import DraftTable, write_table_set
from lut.table import TableError, TableSet
from tests.lut.examples import ALL, BOTH, arm, draft, numbered, written

FILE = "table-1P_3D.npy"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return written(tmp_path / "set").directory


def change(directory: Path, **changed: Any) -> None:
    """Overwrite values of the manifest."""
    path = directory / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))


def change_record(directory: Path, **changed: Any) -> None:
    tables = json.loads((directory / "manifest.json").read_text())["tables"]
    change(directory, tables={"1P_3D": {**tables["1P_3D"], **changed}})


def put(directory: Path, array: np.ndarray[Any, Any], **record: Any) -> None:
    """Another array as the table file, with the size and checksum that fit it."""
    path = directory / FILE
    np.save(path, array)
    digest = xxhash.xxh3_128_hexdigest(path.read_bytes())
    change_record(directory, size_bytes=path.stat().st_size, xxh3_128=digest, **record)


def complaint(directory: Path) -> str:
    """The one line with which the set is refused."""
    with pytest.raises(TableError) as refused:
        TableSet.open(directory).verify()
    line = str(refused.value)
    assert "\n" not in line
    return line


def test_a_written_set_is_read_back(directory: Path) -> None:
    tables = TableSet.open(directory)
    tables.verify()
    assert list(tables.tables) == ["1P_3D"]
    assert np.array_equal(tables.tables["1P_3D"].data, numbered())
    assert tables.manifest.model == "sim"
    assert tables.manifest.rate_counts == "turns_per_s"
    assert tables.manifest.tables["1P_3D"].shares["pd"].measured == 1
    assert tables.manifest.tables["1P_3D"].xxh3_128 == xxhash.xxh3_128_hexdigest((directory / FILE).read_bytes())


def test_the_line_for_the_log_says_what_it_is_and_that_it_is_simulated(directory: Path) -> None:
    assert re.fullmatch(
        r"SIMULATED sim on unnamed GPU \(unnamed network\): 1P_3D; 72 cells each, 100% measured;"
        r" made 20..-..-..T..:..:..\+00:00 by ppd-gateway .*",
        TableSet.open(directory).describe(),
    )


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    assert complaint(tmp_path / "none") == f"{tmp_path}/none: is not a table set (No such file or directory)"


def test_a_directory_without_a_manifest(tmp_path: Path) -> None:
    assert complaint(tmp_path) == f"{tmp_path}/manifest.json: cannot be read (No such file or directory)"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not the manifest of a table set"),
        (b'{"format": "ppd-lut", "version"', "is not the manifest of a table set"),
        (b"\xff\xfe\x00", "is not the manifest of a table set"),
        (b"[" * 100_000, "is not the manifest of a table set"),
        (b'{"format": "ppd-lut", "version": 1, "x": ' + b"[" * 100_000, "is not the manifest of a table set"),
        (b'{"name": "something", "version": 1}', "is not the manifest of a table set"),
        (b'{"format": "other", "version": 1}', "has the format 'other', not 'ppd-lut'"),
        (b'{"format": "ppd-lut", "version": 2}', "has the format version 2; this version reads 1"),
        (b'{"format": "ppd-lut", "version": 1}', "missing required field `model`"),
    ],
)
def test_a_manifest_that_is_none(directory: Path, content: bytes, words: str) -> None:
    (directory / "manifest.json").write_bytes(content)
    line = complaint(directory)
    assert line.startswith(f"{directory}/manifest.json: ")
    assert words in line


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"axes": {"context_tokens": [0], "new_tokens": [1], "output_tokens": [1], "rate": [2, 1]}}, "not increasing"),
        ({"axes": {"context_tokens": [0], "new_tokens": [1], "output_tokens": [1], "rate": [0]}}, "not positive"),
        ({"axes": {"context_tokens": [0], "new_tokens": [1], "output_tokens": [1]}}, "missing required field `rate`"),
        ({"fields": ["ttft_mean"]}, "has the fields ttft_mean, not ttft_mean, ttft_p99"),
        ({"rate_counts": "conversations_per_s"}, "Invalid enum value 'conversations_per_s'"),
        ({"tables": {}}, "lists no tables"),
    ],
)
def test_a_manifest_that_does_not_fit_its_tables(directory: Path, changed: dict[str, Any], words: str) -> None:
    change(directory, **changed)
    assert re.fullmatch(rf"{directory}/manifest.json: .*{words}.*", complaint(directory))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"file": "../../etc/passwd"}, "names the file '../../etc/passwd' outside of its directory"),
        ({"file": ".."}, "names the file '..' outside of its directory"),
        ({"arms": ["local", "pd"]}, "has the arms local, pd, not pd, local"),
        ({"arms": ["pd"]}, "has the arms pd, not pd, local"),
        ({"shape": [3, 2, 3, 4, 3, 9]}, r"has the shape (3, 2, 3, 4, 3, 9); its axes and arms make (3, 2, 3, 4, 2, 9)"),
    ],
)
def test_a_record_that_cannot_be(directory: Path, changed: dict[str, Any], words: str) -> None:
    change_record(directory, **changed)
    assert complaint(directory) == f"{directory}/manifest.json: table 1P_3D {words}" + (
        " (, readback)" if "arms" in changed else ""
    )


def test_a_table_under_a_foreign_name(directory: Path) -> None:
    tables = json.loads((directory / "manifest.json").read_text())["tables"]
    change(directory, tables={"4R": tables["1P_3D"]})
    assert complaint(directory).endswith("table '4R' is not a node assignment like 1P_3D")


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 4)


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"more")


def foreign(path: Path) -> None:
    path.write_bytes(b"x" * path.stat().st_size)


def empty_of_header(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:10] + b"\0" * 100 + content[110:])


def zip_archive(path: Path) -> None:
    path.write_bytes((b"PK\x03\x04" + b"x" * path.stat().st_size)[: path.stat().st_size])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (Path.unlink, r"cannot be read \(No such file or directory\)"),
        (truncate, r"is 5308 bytes long; the manifest says 5312"),
        (lengthen, r"is 5316 bytes long; the manifest says 5312"),
        (foreign, r"is not a NumPy array file \(no NumPy magic\)"),
        (empty_of_header, r"is not a NumPy array file \(an unreadable header\)"),
        (zip_archive, r"is not a NumPy array file \(no NumPy magic\)"),
    ],
)
def test_a_table_file_that_is_missing_cut_or_foreign(
    directory: Path, damage: Callable[[Path], None], words: str
) -> None:
    damage(directory / FILE)
    assert re.fullmatch(f"{directory}/{FILE}: {words}", complaint(directory))


@pytest.mark.parametrize(("damage", "size"), [(lengthen, 5316), (truncate, 5308)])
def test_a_table_file_with_more_or_less_in_it_than_its_header_says(
    directory: Path, damage: Callable[[Path], None], size: int
) -> None:
    damage(directory / FILE)
    change_record(directory, size_bytes=size)
    assert complaint(directory) == f"{directory}/{FILE}: is {size} bytes long; its header says 5312"


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (numbered().astype("<f8"), "holds <f8, not little-endian float32"),
        (numbered().astype(">f4"), "holds >f4, not little-endian float32"),
        (numbered()[:2], "has the shape (2, 2, 3, 4, 2, 9); the manifest says (3, 2, 3, 4, 2, 9)"),
        (np.asfortranarray(numbered()), "is in Fortran order"),
        (np.full_like(numbered(), np.nan), "holds NaN or infinity"),
    ],
)
def test_an_array_of_another_kind(directory: Path, array: np.ndarray[Any, Any], words: str) -> None:
    put(directory, array)
    assert complaint(directory) == f"{directory}/{FILE}: {words}"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"ttft_p99": np.nan}, "holds NaN or infinity"),
        ({"ttft_p99": np.inf}, "holds NaN or infinity"),
        ({"success": 1.5}, "has success out of range (1 to 1.5)"),
        ({"origin": 3}, "has origin out of range (0 to 3)"),
        ({"ttft_ci": -0.5}, "has ttft_ci out of range (-1 to -0.5)"),
        ({"samples": -1}, "has samples out of range (-1 to 30)"),
        ({"tpot_p99": -0.25}, "has tpot_p99 out of range (-0.25 to 0.02)"),
    ],
)
def test_one_value_that_cannot_be(directory: Path, value: dict[str, float], words: str) -> None:
    array = numbered()
    array[1, 1, 2, 3, 1] = arm(**value)
    put(directory, array)
    assert complaint(directory) == f"{directory}/{FILE}: {words}"


def test_one_flipped_bit(directory: Path) -> None:
    content = bytearray((directory / FILE).read_bytes())
    content[-1] ^= 1
    (directory / FILE).write_bytes(content)
    assert re.fullmatch(
        f"{directory}/{FILE}: has the checksum [0-9a-f]{{32}}; the manifest says [0-9a-f]{{32}}", complaint(directory)
    )


def test_a_table_may_have_a_third_arm_and_its_neighbour_not(tmp_path: Path) -> None:
    tables = {"1P_3D": DraftTable(ALL, numbered(arms=ALL)), "2P_2D": DraftTable(BOTH, numbered())}
    found = TableSet.open(write_table_set(tmp_path / "set", draft(tables)))
    found.verify()
    assert found.tables["1P_3D"].nearest(0, 16, 1, 2).readback is not None
    assert found.tables["2P_2D"].nearest(0, 16, 1, 2).readback is None


def test_the_nearest_assignment_is_by_ratio_then_by_size(tmp_path: Path) -> None:
    tables = written(tmp_path / "set", "1P_3D", "2P_6D", "2P_2D", "8P_8D", "3P_1D")

    def used(wanted: str) -> tuple[str, bool]:
        table, name, exact = tables.nearest_assignment(wanted)
        assert table is tables.table(name)
        return name, exact

    assert used("1P_3D") == ("1P_3D", True)
    assert used("3P_9D") == ("2P_6D", False)
    assert used("1P_1D") == ("2P_2D", False)
    assert used("4P_4D") == ("2P_2D", False)  # as far from 2P_2D as from 8P_8D: the smaller
    assert used("5P_5D") == ("8P_8D", False)
    assert used("6P_2D") == ("3P_1D", False)
    assert tables.table("1P_1D") is None


def test_equally_far_ratios_are_decided_by_size_and_then_by_fewer_prefill_pods(tmp_path: Path) -> None:
    tables = written(tmp_path / "set", "3P_1D", "1P_3D", "6P_2D")
    assert tables.nearest_assignment("2P_2D")[1] == "1P_3D"
    assert tables.nearest_assignment("4P_4D")[1] == "6P_2D"


@pytest.mark.parametrize(
    ("wanted", "used"), [("0P_3D", "1P_3D"), ("3P_0D", "3P_1D"), ("0P_0D", "2P_2D"), ("", "2P_2D")]
)
def test_a_cluster_without_pods_of_a_kind_has_a_nearest_assignment_too(tmp_path: Path, wanted: str, used: str) -> None:
    tables = written(tmp_path / "set", "1P_3D", "2P_2D", "3P_1D")
    assert tables.nearest_assignment(wanted)[1:] == (used, False)
    assert tables.nearest_assignment(wanted)[1:] == (used, False)
    assert tables.nearest_assignment("99999999P_1D")[2] is False


def test_a_mapped_table_costs_no_private_memory(tmp_path: Path) -> None:
    axes = Axes(
        context_tokens=tuple(range(20)),
        new_tokens=tuple(range(1, 21)),
        output_tokens=tuple(range(1, 21)),
        rate=(1.0, 2.0),
    )
    data = np.broadcast_to(np.array(arm(), dtype="<f4"), table_shape(axes, BOTH))
    directory = write_table_set(tmp_path / "set", draft({"1P_3D": DraftTable(BOTH, data)}, axes=axes))
    tables = TableSet.open(directory)
    assert mapping(directory / FILE)["Rss"] == 0
    tables.verify()
    tables.tables["1P_3D"].nearest(3, 3, 3, 1)
    usage = mapping(directory / FILE)
    assert usage["Size"] > 1100
    assert usage["Private_Dirty"] == 0
    assert usage["Rss"] <= 1024  # what verify read was let go; one lookup brings in the pages around it


def mapping(path: Path) -> dict[str, int]:
    """kB by name, of the mapping of `path` in this process."""
    blocks = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.MULTILINE)
    block = next(block for block in blocks if block.partition("\n")[0].endswith(str(path)))
    assert " r--s " in block
    return {name: int(value) for name, value in re.findall(r"^(\w+): +(\d+) kB$", block, flags=re.MULTILINE)}
