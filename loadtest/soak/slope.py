"""Does it grow? A line through samples, and how sure that is.

Rule of this room: numbers in, numbers out. Neighbouring samples of a process's memory are alike, so their means over
some seconds are what the line is laid through: otherwise its error would look smaller than it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

BIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Slope:
    """Units per second, and the standard error; error is None for fewer than three points."""

    value: float
    error: float | None
    points: int


def slope(samples: Sequence[tuple[float, float]], bin_s: float = 0.0) -> Slope:
    """By least squares. bin_s: over how many seconds samples are averaged first; 0: none."""
    points = _binned(samples, bin_s) if bin_s else samples
    if len(points) < 2:
        return Slope(0.0, None, len(points))
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if not spread:
        return Slope(0.0, None, len(points))
    value = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    if len(points) < 3:
        return Slope(value, None, len(points))
    rest = sum((y - mean_y - value * (x - mean_x)) ** 2 for x, y in points)
    return Slope(value, math.sqrt(rest / (len(points) - 2) / spread), len(points))


def _binned(samples: Sequence[tuple[float, float]], bin_s: float) -> list[tuple[float, float]]:
    bins: dict[int, list[tuple[float, float]]] = {}
    for sample in samples:
        bins.setdefault(int(sample[0] // bin_s), []).append(sample)
    return [(sum(x for x, _ in each) / len(each), sum(y for _, y in each) / len(each)) for each in bins.values()]
