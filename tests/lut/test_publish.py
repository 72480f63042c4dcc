"""Putting a table set in the place of another, under the eyes of readers."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from lut import publish
from lut.publish import Draft, DraftTable, FloatArray, write_table_set
from lut.table import TableError, TableSet
from tests.lut.examples import BOTH, draft, numbered, written

DIFFERENT_SETS = 25


def of_one_value(value: int) -> Draft:
    """Two tables whose every TTFT is `value`, which is also the name of the model."""
    data: FloatArray = numbered()
    data[..., 0] = value
    return draft({"1P_3D": DraftTable(BOTH, data), "2P_2D": DraftTable(BOTH, data)}, model=str(value))


def values_in(tables: TableSet) -> set[float]:
    return {float(tables.manifest.model)}.union(*(np.unique(table.data[..., 0]) for table in tables.tables.values()))


def test_readers_see_the_old_set_or_the_new_one_while_it_is_replaced_again_and_again(tmp_path: Path) -> None:
    directory = write_table_set(tmp_path / "set", of_one_value(0))
    enough = threading.Event()
    last = [0]

    def replace() -> None:
        while not enough.is_set():
            write_table_set(directory, of_one_value(last[0] + 1))
            last[0] += 1

    writer = threading.Thread(target=replace)
    writer.start()
    held: list[tuple[float, TableSet]] = []
    try:
        while writer.is_alive() and len({value for value, _ in held}) < DIFFERENT_SETS:
            tables = TableSet.open(directory)
            tables.verify()
            (value,) = values_in(tables)
            held.append((value, tables))
    finally:
        enough.set()
        writer.join()
    seen = [value for value, _ in held]
    assert len(set(seen)) == DIFFERENT_SETS
    assert seen == sorted(seen)
    assert values_in(TableSet.open(directory)) == {last[0]}
    assert all(values_in(tables) == {value} for value, tables in held)
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_a_set_that_is_mapped_stays_valid_when_another_takes_its_place(tmp_path: Path) -> None:
    directory = write_table_set(tmp_path / "set", of_one_value(1))
    old = TableSet.open(directory)
    write_table_set(directory, of_one_value(2))
    assert old.tables["1P_3D"].nearest(0, 16, 1, 2).pd.ttft_mean == 1
    old.verify()
    assert TableSet.open(directory).tables["1P_3D"].nearest(0, 16, 1, 2).pd.ttft_mean == 2


def test_where_directories_cannot_be_exchanged_two_renames_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "_exchange", lambda _one, _other: False)
    for value in (1, 2):
        write_table_set(tmp_path / "set", of_one_value(value))
    assert values_in(TableSet.open(tmp_path / "set")) == {2}
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


@pytest.mark.parametrize("new", ["1P_3D", "3P_1D"])
def test_a_reader_that_met_the_old_manifest_and_the_new_tables_looks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new: str
) -> None:
    directory = write_table_set(tmp_path / "set", of_one_value(1))
    read_bytes = Path.read_bytes
    replaced: list[Path] = []

    def replace_after_reading(path: Path) -> bytes:
        content = read_bytes(path)
        if path == directory / "manifest.json" and not replaced:
            replaced.append(path)
            write_table_set(directory, draft({new: of_one_value(2).tables["1P_3D"]}, model="2"))
        return content

    monkeypatch.setattr(Path, "read_bytes", replace_after_reading)
    assert values_in(TableSet.open(directory)) == {2}


def test_a_set_can_be_reached_and_replaced_through_a_symbolic_link(tmp_path: Path) -> None:
    directory = write_table_set(tmp_path / "set", of_one_value(1))
    (tmp_path / "current").symlink_to("set")
    assert write_table_set(tmp_path / "current", of_one_value(2)) == directory
    assert (tmp_path / "current").is_symlink()
    assert values_in(TableSet.open(tmp_path / "current")) == {2}


def test_a_directory_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("dear")
    with pytest.raises(TableError, match="home: exists and is not a table set; not replaced"):
        write_table_set(tmp_path / "home", draft())
    with pytest.raises(TableError, match=r"letter.txt: exists and is not a table set; not replaced"):
        write_table_set(tmp_path / "home" / "letter.txt", draft())
    assert (tmp_path / "home" / "letter.txt").read_text() == "dear"


def test_an_empty_directory_and_a_set_of_another_version_may_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    write_table_set(tmp_path / "set", draft())
    (tmp_path / "set" / "manifest.json").write_text('{"format": "ppd-lut", "version": 99}')
    write_table_set(tmp_path / "set", draft())
    TableSet.open(tmp_path / "set").verify()


def test_a_draft_that_makes_no_set_is_refused_and_nothing_is_left_behind(tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"no tables \(1P_3D: local not measured\)"):
        write_table_set(tmp_path / "set", draft({}, left_out={"1P_3D": "local not measured"}))
    with pytest.raises(TableError, match="'4R' is not a node assignment"):
        write_table_set(tmp_path / "set", draft({"4R": DraftTable(BOTH, numbered())}))
    with pytest.raises(TableError, match=r"1P_3D has the shape \(2, .*, not \(3, "):
        write_table_set(tmp_path / "set", draft({"1P_3D": DraftTable(BOTH, numbered()[:2])}))
    (tmp_path / "file").touch()
    with pytest.raises(TableError, match="cannot be written"):
        write_table_set(tmp_path / "file" / "set", draft())
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_time_and_notes_are_kept(tmp_path: Path) -> None:
    made = datetime(2026, 11, 29, 16, 5, 7, tzinfo=UTC)
    directory = write_table_set(tmp_path / "set", draft(notes=("a", "b"), gpu="H100"), created=made)
    manifest = TableSet.open(directory).manifest
    assert (manifest.created, manifest.notes, manifest.gpu) == ("2026-11-29T16:05:07+00:00", ("a", "b"), "H100")


def test_files_can_be_read_by_other_users(tmp_path: Path) -> None:
    directory = written(tmp_path / "set").directory
    plain = tmp_path / "plain"
    plain.mkdir()
    assert directory.stat().st_mode == plain.stat().st_mode
