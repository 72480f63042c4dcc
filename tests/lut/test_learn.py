"""A new table from an old one and what was measured in production."""

from __future__ import annotations

from pathlib import Path

import pytest

from lut.cell import UNKNOWN_CI, Origin
from lut.errors import TableError
from lut.learn import FILLED_COUNTS, learn, merged
from lut.publish import write_table_set
from lut.raw import Located
from lut.tableset import TableSet
from tests.lut.examples import arm, draft, raw, written
from tests.lut.test_cli import lut, raw_file


def located(*points: object) -> list[Located]:
    return [Located(f"raw:{number}", point) for number, point in enumerate(points)]  # type: ignore[arg-type]


def test_old_and_new_are_averaged_by_their_turns() -> None:
    found = merged(arm(0.1, 0.01, samples=100), arm(0.3, 0.02, samples=300), prior=1000)
    assert found.ttft_mean == pytest.approx((100 * 0.1 + 300 * 0.3) / 400)
    assert found.tpot_mean == pytest.approx((100 * 0.01 + 300 * 0.02) / 400)
    assert (found.samples, found.ttft_p99, found.origin) == (400, 0.6, Origin.MEASURED)


def test_the_old_numbers_count_for_no_more_than_the_prior() -> None:
    assert merged(arm(0.1, samples=1e6), arm(0.3, samples=100), prior=100).ttft_mean == pytest.approx(0.2)


def test_a_filled_cell_counts_for_little() -> None:
    found = merged(arm(0.1, samples=0, origin=Origin.NEAREST), arm(0.3, samples=95), prior=1000)
    assert found.ttft_mean == pytest.approx((FILLED_COUNTS * 0.1 + 95 * 0.3) / (FILLED_COUNTS + 95))


def test_few_turns_do_not_lower_the_p99() -> None:
    assert merged(arm(0.3), arm(0.1, samples=20), prior=10).ttft_p99 == 0.6
    assert merged(arm(0.3), arm(0.1, samples=200), prior=10).ttft_p99 == 0.2


def test_intervals_are_combined_and_stay_unknown() -> None:
    both = merged(arm(samples=100, ttft_ci=0.03), arm(samples=100, ttft_ci=0.04), prior=100)
    assert both.ttft_ci == pytest.approx(0.025)
    assert merged(arm(samples=100, ttft_ci=0.03), arm(samples=100), prior=100).ttft_ci == UNKNOWN_CI


def test_turns_of_one_token_leave_the_time_per_token(tmp_path: Path) -> None:
    found = merged(arm(0.1, 0.01), arm(0.3, float("nan"), samples=100), prior=10)
    assert (found.tpot_mean, found.tpot_p99) == (0.01, 0.02)


def test_only_cells_with_turns_change(tmp_path: Path) -> None:
    old = written(tmp_path / "old")
    point = raw(arm="local", samples=100, ttft_mean_s=0.5, ttft_p99_s=0.9)
    found = learn(old, located(point), prior=0)
    new = TableSet.open(write_table_set(tmp_path / "new", found.draft))
    new.verify()
    place = (point.context_tokens, point.new_tokens, point.output_tokens, point.rate)
    assert new.tables["1P_3D"].nearest(*place).local.ttft_mean == pytest.approx(0.5)
    changed = (new.tables["1P_3D"].data != old.tables["1P_3D"].data).any(axis=-1)
    assert changed.sum() == 1
    assert (found.turns, found.cells) == (100, 1)
    assert new.manifest.notes[-1].startswith("learned from 100 turns in 1 cells; ")


def test_cells_with_few_turns_and_assignments_without_a_table_are_passed_over(tmp_path: Path) -> None:
    old = written(tmp_path / "old")
    points = located(
        raw(arm="pd", samples=50), raw(arm="local", samples=3), raw(assignment="2P_2D"), raw(arm="readback", samples=99)
    )
    found = learn(old, points)
    assert found.passed_over == {
        "no table of 2P_2D": 1,
        "fewer than 20 turns in a cell": 1,
        "no arm readback in the table of 1P_3D": 1,
    }


@pytest.mark.parametrize(
    ("points", "words"),
    [
        ([raw(model="other")], "raw:0: model is 'other', but 'sim' in the table"),
        ([raw(simulated=False)], "raw:0: simulated is False, but True in the table"),
        ([raw(context_tokens=77)], "raw:0: context_tokens 77 is not on the axis"),
        ([raw(), raw()], "raw:1: is the same measurement as raw:0"),
        ([raw(samples=3)], "nothing to learn from"),
        ([], "nothing to learn from"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(tmp_path: Path, points: list[object], words: str) -> None:
    with pytest.raises(TableError, match=words):
        learn(written(tmp_path / "old"), located(*points))


def test_the_command_replaces_a_set_in_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "set"
    write_table_set(directory, draft())
    file = raw_file(tmp_path / "m.jsonl", raw(arm="pd", samples=400, ttft_mean_s=0.7, ttft_p99_s=0.8))
    with file.open("ab") as torn:
        torn.write(b'{"torn')
    assert lut("learn", directory, file, "-o", directory, "--prior", 0) == 0
    printed = capsys.readouterr()
    assert "learned from 400 turns; 1 of " in printed.out
    assert "torn line" in printed.err
    assert TableSet.open(directory).tables["1P_3D"].nearest(256, 64, 32, 2).pd.ttft_mean == pytest.approx(0.7)


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "set"
    write_table_set(directory, draft())
    assert lut("learn", directory, tmp_path / "no", "-o", directory) == 2
    assert capsys.readouterr().err.count("\n") == 1
