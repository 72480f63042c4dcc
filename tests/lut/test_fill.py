"""Filling cells that were not measured."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest

from lut.cell import Origin
from lut.fill import Flags, Floats, fill

MEASURED, INTERPOLATED, NEAREST = Origin.MEASURED, Origin.INTERPOLATED, Origin.NEAREST
LOGS = [[math.log(value) for value in values] for values in ((16, 64, 512), (32, 256), (1, 8, 20), (1, 2, 4, 8, 40))]


def on_grid(function: Callable[..., float]) -> Floats:
    shape = tuple(len(axis) for axis in LOGS)
    return np.array([function(*point) for point in itertools.product(*LOGS)]).reshape(*shape, 1)


def only(values: Floats, known: Flags) -> Floats:
    return np.where(known[..., None], values, np.nan)


def line(values: list[float], coordinates: list[float]) -> tuple[list[float], list[int]]:
    """Fill one axis; NaN is unknown."""
    array = np.array(values).reshape(-1, 1, 1, 1, 1)
    filled, origin = fill(array, ~np.isnan(array[..., 0]), [coordinates, [0], [0], [0]])
    return filled.ravel().tolist(), origin.ravel().tolist()


def test_between_two_measured_cells_the_logarithmic_line_is_followed_outside_the_nearest_is_taken() -> None:
    values, origin = line([math.nan, 1, math.nan, math.nan, 4, math.nan], [-9, 0, 1, 2, 3, 9])
    assert values == pytest.approx([1, 1, 2, 3, 4, 4])
    assert origin == [NEAREST, MEASURED, INTERPOLATED, INTERPOLATED, MEASURED, NEAREST]


@pytest.mark.parametrize(
    "function",
    [
        lambda c, i, o, q: 3 + 0.5 * c - 0.25 * i + 2 * o + q,
        lambda c, i, o, q: 1 + c * q + 0.5 * c * i * o,
    ],
    ids=["sum", "products"],
)
def test_what_is_linear_in_every_logarithm_is_reproduced_exactly_from_the_corners(
    function: Callable[..., float],
) -> None:
    truth = on_grid(function)
    known = np.zeros(truth.shape[:-1], dtype=bool)
    known[np.ix_([0, 2], [0, 1], [0, 2], [0, 4])] = True
    filled, origin = fill(only(truth, known), known, LOGS)
    assert np.allclose(filled, truth, rtol=1e-12, atol=1e-12)
    assert (origin[known] == MEASURED).all()
    assert (origin[~known] == INTERPOLATED).all()


def test_what_is_linear_is_reproduced_inside_the_hull_of_scattered_cells_too() -> None:
    truth = on_grid(lambda c, i, o, q: c + 2 * i + 3 * o + 4 * q)
    known = np.random.default_rng(7).random(truth.shape[:-1]) < 0.5
    filled, origin = fill(only(truth, known), known, LOGS)
    inside = origin != NEAREST
    assert (origin == INTERPOLATED).sum() > 10
    assert np.allclose(filled[inside], truth[inside], rtol=1e-12, atol=1e-12)


def test_where_two_axes_disagree_the_shorter_gap_counts_more() -> None:
    values = np.full((3, 3, 1, 1, 1), np.nan)
    values[0, 1], values[2, 1] = 1, 1  # half way over a gap of 2
    values[1, 0], values[1, 2] = 4, 4  # half way over a gap of 4
    filled, _ = fill(values, ~np.isnan(values[..., 0]), [[0, 1, 2], [0, 2, 4], [0], [0]])
    assert filled[1, 1, 0, 0, 0] == pytest.approx((1 / 2 + 4 / 4) / (1 / 2 + 1 / 4))


def test_one_measured_cell_fills_everything() -> None:
    values = np.full((2, 3, 1, 4, 2), np.nan)
    values[1, 0, 0, 2] = (5, 6)
    filled, origin = fill(values, ~np.isnan(values[..., 0]), [[0, 1], [0, 1, 2], [0], [0, 1, 2, 3]])
    assert (filled == (5, 6)).all()
    assert (origin == NEAREST).sum() == origin.size - 1


def test_an_axis_along_which_nothing_was_measured_is_filled_from_the_plane_that_was() -> None:
    truth = on_grid(lambda c, i, o, q: i + q)  # does not depend on context and output
    known = np.zeros(truth.shape[:-1], dtype=bool)
    known[1, :, 1, :] = True
    filled, origin = fill(only(truth, known), known, LOGS)
    assert np.array_equal(filled, truth[1:2, :, 1:2, :].repeat(3, axis=0).repeat(3, axis=2))
    assert (origin[~known] == NEAREST).all()


def test_nearest_is_what_a_search_over_all_known_cells_finds() -> None:
    generator = np.random.default_rng(11)
    known = np.zeros((3, 2, 3, 5), dtype=bool)
    known[0, 0, 0, 1] = known[2, 1, 2, 4] = True  # no two on one line: nothing can be interpolated
    values = generator.random((3, 2, 3, 5, 1))
    filled, _ = fill(only(values, known), known, LOGS)
    for place in np.ndindex(*known.shape):
        here = [axis[index] for axis, index in zip(LOGS, place, strict=True)]
        sources = [tuple(source) for source in np.argwhere(known)]
        distances = [math.dist(here, [axis[k] for axis, k in zip(LOGS, source, strict=True)]) for source in sources]
        assert filled[place] == values[sources[distances.index(min(distances))]]


def test_of_two_equally_near_cells_the_lower_index_is_taken() -> None:
    values, _ = line([1, math.nan], [0, 1])
    assert values == [1, 1]
    square = np.full((2, 2, 1, 1, 1), np.nan)
    square[0, 1], square[1, 0] = 1, 2
    filled, _ = fill(square, ~np.isnan(square[..., 0]), [[0, 1], [0, 1], [0], [0]])
    # the axis of new tokens is decided after that of context: the lower of its indices
    assert (filled[0, 0, 0, 0, 0], filled[1, 1, 0, 0, 0]) == (2, 2)


def test_nothing_known_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing is known"):
        fill(np.zeros((1, 1, 1, 1, 1)), np.zeros((1, 1, 1, 1), dtype=bool), [[0], [0], [0], [0]])


def test_the_input_is_left_as_it_was_and_the_result_is_the_same_each_time() -> None:
    truth = on_grid(lambda c, i, o, q: c + i * o - q)
    known = np.random.default_rng(1).random(truth.shape[:-1]) < 0.3
    given = only(truth, known)
    before = given.copy()
    first, second = fill(given, known, LOGS), fill(given, known, LOGS)
    assert np.array_equal(given, before, equal_nan=True)
    assert first[0].tobytes() == second[0].tobytes()
    assert np.isfinite(first[0]).all()
