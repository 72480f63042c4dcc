"""The two ways to ask a table."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import numpy as np
import pytest

from lut.cell import Arm
from lut.lookup import Table
from tests.lut.examples import ALL, AXES, BOTH, arm, filled, numbered

TABLE = Table("1P_3D", AXES, BOTH, numbered())
STRANGE = (math.nan, math.inf, -math.inf, -1, 0, 0.0, 1e-308, 1e308, 10**400, 7)


def plane(name: str, context: float, new: float, output: float, rate: float) -> Arm:
    """Linear in each logarithmic coordinate by itself."""
    c, i, o, q = math.log1p(context), math.log(new), math.log(output), math.log(rate)
    ttft = 1 + 0.1 * c + 0.2 * i + 0.3 * o + 0.4 * q + 0.01 * c * q + (1 if name == "local" else 0)
    return arm(ttft, 0.01 + 0.001 * q + 0.002 * i * o)


def test_on_the_grid_nearest_is_the_cell_itself() -> None:
    for number, point in enumerate(itertools.product(*AXES.values)):
        found = TABLE.nearest(*point)
        assert found[3:] == point
        assert (found.pd.ttft_mean, found.local.ttft_mean, found.readback) == (2 * number, 2 * number + 1, None)


def test_a_cell_holds_the_fields_in_seconds_and_the_axis_values() -> None:
    found = TABLE.nearest(300, 60, 200, 10)
    assert (found.context_tokens, found.new_tokens, found.output_tokens, found.rate) == (256, 64, 256, 8.0)
    assert found.pd[1:] == pytest.approx((0.2, 0.01, 0.02, 1, 30, -1, -1, 0))


def test_nearest_is_what_a_search_over_all_cells_finds() -> None:
    scales = AXES.scales()
    grid = np.array(list(itertools.product(*(scale.coordinates for scale in scales))))
    generator = random.Random(3)
    for _ in range(2000):
        query = [generator.uniform(0, 3000), 10 ** generator.uniform(0.5, 2.5), generator.uniform(0.5, 400)]
        query.append(10 ** generator.uniform(-1, 2))
        at = np.array([scale.coordinate(value) for scale, value in zip(scales, query, strict=True)])
        best = int(((grid - at) ** 2).sum(axis=1).argmin())
        assert TABLE.nearest(*query).pd.ttft_mean == 2 * best


def test_no_number_makes_a_lookup_raise() -> None:
    for query in itertools.product(STRANGE, repeat=4):
        for found in (TABLE.nearest(*query), TABLE.interpolated(*query)):
            assert all(low <= value <= high for value, low, high in zip(found[3:], *ends(), strict=True))


def ends() -> tuple[list[float], list[float]]:
    return [values[0] for values in AXES.values], [values[-1] for values in AXES.values]


def test_unknown_is_the_first_value_and_infinity_the_last() -> None:
    assert TABLE.nearest(*[math.nan] * 4) == TABLE.nearest(*ends()[0])
    assert TABLE.nearest(*[math.inf] * 4) == TABLE.nearest(*ends()[1])
    assert TABLE.interpolated(*[math.nan] * 4) == TABLE.nearest(*ends()[0])
    assert TABLE.interpolated(200_000, 1e9, 1e9, 1e9) == TABLE.nearest(*ends()[1])


def test_readback_is_there_when_it_was_measured() -> None:
    table = Table("1P_3D", AXES, ALL, numbered(arms=ALL))
    found = table.nearest(0, 16, 1, 2.0)
    assert found.readback is not None
    assert (found.pd.ttft_mean, found.local.ttft_mean, found.readback.ttft_mean) == (3, 4, 5)
    between = table.interpolated(0, 16, 1, 1.0)
    assert between.readback is not None
    assert between.readback.ttft_mean == pytest.approx(3.5)


def test_interpolation_is_exact_for_what_is_linear_in_the_logarithms() -> None:
    table = Table("1P_3D", AXES, BOTH, filled(plane))
    generator = random.Random(4)
    for _ in range(300):
        query = (generator.uniform(0, 2048), generator.uniform(16, 64), generator.uniform(1, 256))
        rate = generator.uniform(0.5, 32)
        found = table.interpolated(*query, rate)
        assert found[3:] == (*query, rate)
        for name, blended in (("pd", found.pd), ("local", found.local)):
            assert blended[:4] == pytest.approx(plane(name, *query, rate)[:4], rel=1e-5)


def test_interpolation_half_way_between_two_cells_is_their_mean() -> None:
    found = TABLE.interpolated(0, 16, 1, 1.0)  # half way from 0.5 to 2, cells 0 and 1
    assert (found.pd.ttft_mean, found.local.ttft_mean, found.rate) == (pytest.approx(1), pytest.approx(2), 1.0)


def test_interpolation_keeps_the_fewest_samples_the_worst_origin_and_an_unknown_interval() -> None:
    data = numbered()
    data[0, 0, 0, 0, :] = arm(samples=10, ttft_ci=0.004, tpot_ci=0.002)
    data[0, 0, 0, 1, :] = arm(samples=0, origin=2, ttft_ci=0.002)
    found = Table("1P_3D", AXES, BOTH, data).interpolated(0, 16, 1, 1.0)
    assert (found.pd.samples, found.pd.origin, found.pd.tpot_ci) == (0, 2, -1)
    assert found.pd.ttft_ci == pytest.approx(0.003)


def test_a_degraded_corner_makes_interpolation_answer_with_the_nearest_cell() -> None:
    data = numbered()
    data[0, 0, 0, 1, 1] = arm(success=0.5)
    table = Table("1P_3D", AXES, BOTH, data)
    assert table.interpolated(0, 16, 1, 0.9) == table.nearest(0, 16, 1, 0.9)
    assert table.interpolated(0, 16, 1, 0.9).rate == 0.5
    assert table.interpolated(0, 16, 1, 0.5) == table.nearest(0, 16, 1, 0.5)
    assert table.interpolated(0, 16, 1, 4.0).local.success == 0.5  # 2.0 and 8.0 are equally far: the lower
    assert table.interpolated(0, 16, 1, 16.0).rate == 16.0


@pytest.mark.parametrize(
    "data",
    [numbered().astype("<f8"), numbered().astype(">f4"), numbered()[:2], np.asfortranarray(numbered())],
    ids=["float64", "big endian", "shape", "fortran"],
)
def test_an_array_that_is_no_table_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match="not little-endian float32"):
        Table("1P_3D", AXES, BOTH, data)


def test_arms_are_pd_local_and_perhaps_readback() -> None:
    with pytest.raises(ValueError, match="arms are"):
        Table("1P_3D", AXES, ("local", "pd"), numbered())
