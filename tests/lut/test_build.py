"""Raw measurements become a table set."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lut.axes import Axes
from lut.build import build
from lut.cell import Arm
from lut.publish import write_table_set
from lut.raw import RawPoint
from lut.repeats import combine, half_width, student_t
from lut.table import Origin, Table, TableError, TableSet, score
from tests.lut.examples import dead, field, located, raw


def both(**others: Any) -> list[RawPoint]:
    return [raw(arm="pd", **others), raw(arm="local", **others)]


def only_table(*points: RawPoint, **options: Any) -> Table:
    draft = build(located(*points), **options)
    ((name, table),) = draft.tables.items()
    return Table(name, draft.axes, table.arms, table.data)


def test_repeats_are_weighted_by_the_turns_that_succeeded_and_p99_is_the_worst() -> None:
    # 10 of 10 and 30 of 40 succeeded
    first = raw(samples=10, success=1.0, ttft_mean_s=0.1, ttft_p99_s=0.5, tpot_mean_s=0.01, tpot_p99_s=0.02)
    second = raw(samples=40, success=0.75, ttft_mean_s=0.2, ttft_p99_s=0.4, tpot_mean_s=0.03, tpot_p99_s=0.05)
    arm = combine([first, second])
    assert arm.ttft_mean == pytest.approx((10 * 0.1 + 30 * 0.2) / 40)
    assert arm.tpot_mean == pytest.approx((10 * 0.01 + 30 * 0.03) / 40)
    assert (arm.ttft_p99, arm.tpot_p99) == (0.5, 0.05)
    assert (arm.success, arm.samples, arm.origin) == (pytest.approx(40 / 50), 50, Origin.MEASURED)


def test_the_interval_is_students_t_times_the_error_of_the_mean_between_repeats() -> None:
    # 1, 2, 3: deviation 1, error 1/sqrt(3), t for 2 degrees of freedom 4.3027
    assert half_width([1, 2, 3]) == pytest.approx(4.3027 / math.sqrt(3))
    assert half_width([1, 3]) == pytest.approx(12.7062)  # deviation sqrt(2), error 1
    arm = combine([raw(ttft_mean_s=0.1, repeat=0), raw(ttft_mean_s=0.3, repeat=1)])
    assert (arm.ttft_ci, arm.tpot_ci) == (pytest.approx(1.27062), 0)


def test_one_repeat_has_no_interval() -> None:
    assert combine([raw()])[6:8] == (-1, -1)
    assert combine([raw(), dead(repeat=1)])[6:8] == (-1, -1)


@pytest.mark.parametrize(("freedom", "t"), [(1, 12.7062), (30, 2.0423), (31, 2.0395), (60, 2.0003), (1000, 1.9623)])
def test_students_t(freedom: int, t: float) -> None:
    assert student_t(freedom) == pytest.approx(t, abs=1e-4)


def test_axes_are_the_values_that_were_measured() -> None:
    table = only_table(*both(), *both(context_tokens=2048, rate=0.5), *both(new_tokens=16))
    assert table.axes == Axes(context_tokens=(256, 2048), new_tokens=(16, 64), output_tokens=(32,), rate=(0.5, 2.0))
    assert table.nearest(256, 64, 32, 2).pd == pytest.approx((0.1, 0.2, 0.01, 0.02, 1, 20, -1, -1, 0))


def test_given_axes_are_kept_and_what_lies_off_them_is_refused() -> None:
    axes = Axes(context_tokens=(0, 256), new_tokens=(64,), output_tokens=(32,), rate=(1.0, 2.0))
    assert only_table(*both(), axes=axes).nearest(0, 64, 32, 1).pd.origin == Origin.NEAREST
    with pytest.raises(TableError, match=r"^raw.jsonl:3: rate 3 is not on the axis$"):
        build(located(*both(), raw(rate=3.0)), axes=axes)


def test_cells_between_measured_ones_are_filled_and_marked() -> None:
    table = only_table(
        *both(rate=1.0, ttft_mean_s=0.1), *both(rate=4.0, ttft_mean_s=0.3), raw(arm="local", rate=2.0), raw(rate=8.0)
    )
    between = table.nearest(256, 64, 32, 2)
    assert between.pd == pytest.approx((0.2, 0.2, 0.01, 0.02, 1, 0, -1, -1, Origin.INTERPOLATED))
    assert between.local.origin == Origin.MEASURED
    outside = table.nearest(256, 64, 32, 8)
    assert outside.local == pytest.approx((0.3, 0.2, 0.01, 0.02, 1, 0, -1, -1, Origin.NEAREST))


def test_a_cell_where_nothing_succeeded_stays_measured_with_filled_latencies() -> None:
    table = only_table(
        *both(rate=1.0, ttft_mean_s=0.1),
        dead(arm="pd", rate=2.0, samples=7),
        raw(arm="local", rate=2.0),
        *both(rate=4.0, ttft_mean_s=0.3),
    )
    cell = table.nearest(256, 64, 32, 2)
    assert cell.pd == pytest.approx((0.2, 0.2, 0.01, 0.02, 0, 7, -1, -1, Origin.MEASURED))
    assert score(cell, 0, 1).route == "local"
    assert not np.isnan(table.data).any()


def test_beyond_an_overloaded_rate_a_filled_cell_is_overloaded_as_well() -> None:
    axes = Axes(context_tokens=(256,), new_tokens=(64,), output_tokens=(32,), rate=(1.0, 8.0, 32.0))
    points = (*both(rate=1.0), raw(arm="local", rate=8.0), dead(arm="pd", rate=8.0, stopped="overloaded"))
    table = only_table(*points, axes=axes)
    assert table.nearest(256, 64, 32, 32).pd.degraded
    assert not table.nearest(256, 64, 32, 32).local.degraded


def test_an_unknown_tpot_is_filled_but_one_token_outputs_have_none() -> None:
    nothing = {"tpot_mean_s": None, "tpot_p99_s": None}
    table = only_table(*both(output_tokens=1, **nothing), *both(output_tokens=32), *both(output_tokens=256, **nothing))
    assert [table.nearest(256, 64, output, 2).pd.tpot_mean for output in (1, 32, 256)] == pytest.approx([0, 0.01, 0.01])
    alone = only_table(*both(output_tokens=1, **nothing)).nearest(256, 64, 1, 2)
    assert (alone.pd.tpot_mean, alone.pd.origin) == (0, Origin.MEASURED)


def test_readback_becomes_a_third_arm_only_where_it_was_measured() -> None:
    draft = build(located(*both(), raw(arm="readback"), *both(assignment="2P_2D")))
    assert {name: table.arms for name, table in draft.tables.items()} == {
        "1P_3D": ("pd", "local", "readback"),
        "2P_2D": ("pd", "local"),
    }


def test_an_assignment_with_only_one_arm_gets_no_table_and_the_set_says_so(tmp_path: Path) -> None:
    draft = build(located(*both(), raw(assignment="2P_2D"), raw(assignment="3P_1D", arm="readback")))
    assert list(draft.tables) == ["1P_3D"]
    written = TableSet.open(write_table_set(tmp_path / "set", draft)).manifest
    assert written.left_out == {"2P_2D": "local not measured", "3P_1D": "pd and local not measured"}


def test_an_arm_that_never_succeeded_anywhere_gives_no_table() -> None:
    draft = build(located(*both(), raw(assignment="2P_2D", arm="pd"), dead(assignment="2P_2D", arm="local")))
    assert draft.left_out == {"2P_2D": "no turn of local succeeded anywhere"}
    with pytest.raises(TableError, match=r"^no node assignment .* \(1P_3D: local not measured\)$"):
        build(located(raw()))


@pytest.mark.parametrize(("name", "value"), [("model", "other"), ("block_size", 64), ("simulated", False)])
def test_measurements_of_different_things_are_not_mixed(name: str, value: object) -> None:
    with pytest.raises(TableError) as refused:
        build(located(*both(), raw(**{name: value})))
    was = getattr(raw(), name)
    expected = f"raw.jsonl:3: {name} is {value!r}, but {was!r} in raw.jsonl:1: a table set does not mix them"
    assert str(refused.value) == expected


def test_the_same_line_given_twice_is_refused() -> None:
    with pytest.raises(TableError, match=r"^raw.jsonl:3: is the same measurement as raw.jsonl:1$"):
        build(located(*both(), raw()))


def test_no_measurements_make_no_set() -> None:
    with pytest.raises(TableError, match="there are no raw lines"):
        build([])
    with pytest.raises(TableError, match="no raw line has samples"):
        build(located(dead(samples=0)))


def test_the_manifest_says_what_it_was_built_from() -> None:
    points = (*both(), dead(rate=8.0, stopped="overloaded"), dead(rate=16.0, samples=0))
    draft = build(located(*points), model="name", gpu="H100", network="NVLink", notes=["by hand"])
    assert (draft.model, draft.gpu, draft.network, draft.block_size, draft.simulated) == (
        *("name", "H100", "NVLink", 16, True),
    )
    assert draft.notes == (
        "by hand",
        "built from 3 measurements",
        "1 measurements were stopped as overloaded",
        "1 measurements without samples left out",
    )


def test_a_set_built_of_a_full_grid_passes_every_check(tmp_path: Path) -> None:
    grid = itertools.product((0, 128, 8192), (16, 512), (1, 64), (0.5, 2.0, 8.0), (0, 1, 2), ("pd", "local"))
    points = [
        raw(
            **{"context_tokens": c, "new_tokens": i, "output_tokens": o, "rate": q, "repeat": k, "arm": arm},
            ttft_mean_s=0.03 + c * 1e-5 + k * 1e-3,
        )
        for c, i, o, q, k, arm in grid
        if (c + i + o) % 3  # some cells are missing
    ]
    tables = TableSet.open(write_table_set(tmp_path / "set", build(located(*points))))
    tables.verify()
    data = tables.tables["1P_3D"].data
    measured = field(data, "origin", 0) == Origin.MEASURED
    assert 0 < measured.mean() < 1
    assert (field(data, "samples", 0)[measured] == 60).all()
    assert (field(data, "ttft_ci", 0)[~measured] == -1).all()
    # 0, 1 and 2 ms apart: 4.3027 · 1 ms / sqrt(3)
    assert field(data, "ttft_ci", 0)[measured] == pytest.approx(4.3027e-3 / math.sqrt(3))
    assert isinstance(tables.tables["1P_3D"].nearest(1, 1, 1, 1).pd, Arm)
