"""Where a value lies on a logarithmic axis."""

from __future__ import annotations

import math
import random

import msgspec
import pytest

from lut.axes import Axes, Scale
from tests.lut.examples import AXES

TOKENS = Scale.of((16, 64, 256), from_zero=False)
CONTEXT = Scale.of((0, 255, 2047), from_zero=True)


def test_between_two_values_the_geometric_mean_decides() -> None:
    assert [TOKENS.nearest(value) for value in (31.9, 32.1, 127.9, 128.1)] == [0, 1, 1, 2]


def test_exactly_in_the_middle_the_lower_value_is_taken() -> None:
    assert TOKENS.nearest(TOKENS.midpoints[0]) == 0


def test_zero_is_a_point_of_its_own() -> None:
    # log(1 + v) of 0, 255: 0 and log 256; the middle is log 16, so 15 tokens
    assert CONTEXT.midpoints[0] == pytest.approx(15)
    assert [CONTEXT.nearest(value) for value in (0, 14, 16)] == [0, 0, 1]


@pytest.mark.parametrize("value", [0, -5, -math.inf, math.nan, 1e-300, 15.9])
def test_what_is_below_the_axis_or_unknown_is_its_first_value(value: float) -> None:
    assert TOKENS.nearest(value) == 0
    assert TOKENS.bracket(value) == (0, 0, 0.0)
    assert TOKENS.clamp(value) == 16


@pytest.mark.parametrize("value", [256, 257, 1e300, math.inf, 10**400])
def test_what_is_above_the_axis_is_its_last_value(value: float) -> None:
    assert TOKENS.nearest(value) == 2
    assert TOKENS.bracket(value) == (2, 2, 0.0)
    assert TOKENS.clamp(value) == 256


def test_a_bracket_has_the_share_of_the_logarithmic_way() -> None:
    lower, upper, weight = TOKENS.bracket(32)
    assert (lower, upper, weight) == (0, 1, pytest.approx(0.5))
    assert TOKENS.bracket(64) == (1, 1, 0.0)
    assert CONTEXT.bracket(15) == (0, 1, pytest.approx(0.5))


def test_an_axis_of_one_value_answers_everything_with_it() -> None:
    scale = Scale.of((8,), from_zero=False)
    assert [scale.nearest(value) for value in (0, 8, 100, math.nan)] == [0, 0, 0, 0]
    assert [scale.bracket(value) for value in (1, 8, 9)] == [(0, 0, 0.0)] * 3


def test_nearest_is_what_a_search_over_all_values_finds() -> None:
    generator = random.Random(5)
    for scale, low in ((TOKENS, 1e-3), (CONTEXT, 0.0)):
        for _ in range(2000):
            value = generator.uniform(low, 1) * 10 ** generator.uniform(0, 5)
            distances = [abs(scale.coordinate(value) - coordinate) for coordinate in scale.coordinates]
            assert scale.nearest(value) == distances.index(min(distances))


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"rate": (1.0, 1.0)}, "axis rate is not increasing: 1 before 1"),
        ({"new_tokens": (64, 16)}, "axis new_tokens is not increasing: 64 before 16"),
        ({"new_tokens": (0, 16)}, "axis new_tokens begins with 0, which is not positive"),
        ({"rate": (0.0, 1.0)}, "axis rate begins with 0, which is not positive"),
        ({"context_tokens": (-1, 16)}, "axis context_tokens begins with -1, which is not positive"),
        ({"rate": (1.0, math.inf)}, "axis rate is not finite"),
        ({"rate": (math.nan,)}, "axis rate is not finite"),
        ({"output_tokens": ()}, "axis output_tokens has 0 values (1 to 1024 are allowed)"),
    ],
)
def test_axes_that_are_none_are_refused(changed: dict[str, tuple[float, ...]], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint.replace("(", r"\(").replace(")", r"\)")):
        msgspec.structs.replace(AXES, **changed)


def test_axes_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        AXES.rate = (1.0,)  # type: ignore[misc]
    assert Axes(context_tokens=(0,), new_tokens=(1,), output_tokens=(1,), rate=(0.1,)).shape == (1, 1, 1, 1)
