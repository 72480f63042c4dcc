"""The four axes of a table and where a request lies on them.

Rule of this room: the only place that knows that the axes are logarithmic. A value v has the coordinate log(1 + v) on
the context axis, so that 0 (nothing in the context) is a point of its own, and log(v) on the other three. Everything
asked lies between the first and the last value: what is below (also negative numbers and NaN, "not known") is the
first value, what is above is the last.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import msgspec

AXIS_NAMES = ("context_tokens", "new_tokens", "output_tokens", "rate")

MAX_VALUES = 1024
"""More values than this on one axis is a mistake, not a table."""


@dataclass(frozen=True, slots=True)
class Scale:
    """One axis, ready for lookups. The three tuples are parallel, `midpoints` lies between them (one shorter)."""

    values: tuple[float, ...]
    coordinates: tuple[float, ...]
    midpoints: tuple[float, ...]
    coordinate: Callable[[float], float]

    @classmethod
    def of(cls, values: tuple[float, ...], *, from_zero: bool) -> Scale:
        forward, back = (math.log1p, math.expm1) if from_zero else (math.log, math.exp)
        coordinates = tuple(forward(value) for value in values)
        midpoints = tuple(back((a + b) / 2) for a, b in pairwise(coordinates))
        return cls(values, coordinates, midpoints, forward)

    def nearest(self, value: float) -> int:
        """Index of the nearest value by coordinate; exactly between two: the lower."""
        return bisect_left(self.midpoints, value)

    def bracket(self, value: float) -> tuple[int, int, float]:
        """(lower index, upper index, weight of the upper); both indices the same when no interpolation is needed."""
        values = self.values
        if not value > values[0]:
            return 0, 0, 0.0
        if value >= values[-1]:
            last = len(values) - 1
            return last, last, 0.0
        upper = bisect_right(values, value)
        lower = upper - 1
        if values[lower] == value:
            return lower, lower, 0.0
        low, high = self.coordinates[lower], self.coordinates[upper]
        return lower, upper, (self.coordinate(value) - low) / (high - low)

    def clamp(self, value: float) -> float:
        """The value itself inside the axis, else the end it is beyond; NaN is the first value."""
        if not value > self.values[0]:
            return self.values[0]
        return min(value, self.values[-1])


class Axes(msgspec.Struct, frozen=True, kw_only=True):
    """The values of the four axes, strictly increasing.

    Raises ValueError (msgspec.ValidationError when decoded) for axes that are empty, not increasing, not finite or
    not positive; only `context_tokens` may begin with 0.
    """

    context_tokens: tuple[int, ...]
    """Tokens already in the conversation before the measured turn."""
    new_tokens: tuple[int, ...]
    """Tokens the turn adds to the prompt."""
    output_tokens: tuple[int, ...]
    rate: tuple[float, ...]
    """Turns per second that reach the gateway."""

    def __post_init__(self) -> None:
        for name, values in zip(AXIS_NAMES, self.values, strict=True):
            _check(name, values)

    @property
    def values(self) -> tuple[tuple[float, ...], ...]:
        """The four axes in the order of the array's dimensions."""
        return self.context_tokens, self.new_tokens, self.output_tokens, self.rate

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return len(self.context_tokens), len(self.new_tokens), len(self.output_tokens), len(self.rate)

    def scales(self) -> tuple[Scale, Scale, Scale, Scale]:
        """One `Scale` per axis, in the order of the array's dimensions."""
        return (
            Scale.of(self.context_tokens, from_zero=True),
            Scale.of(self.new_tokens, from_zero=False),
            Scale.of(self.output_tokens, from_zero=False),
            Scale.of(self.rate, from_zero=False),
        )


def _check(name: str, values: tuple[float, ...]) -> None:
    if not 1 <= len(values) <= MAX_VALUES:
        raise ValueError(f"axis {name} has {len(values)} values (1 to {MAX_VALUES} are allowed)")
    if not all(math.isfinite(value) for value in values):
        raise ValueError(f"axis {name} is not finite")
    if values[0] < 0 or (values[0] == 0 and name != "context_tokens"):
        raise ValueError(f"axis {name} begins with {values[0]:g}, which is not positive")
    for before, after in pairwise(values):
        if not before < after:
            raise ValueError(f"axis {name} is not increasing: {before:g} before {after:g}")
