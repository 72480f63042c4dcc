"""Filling what was not measured.

Rule of this room: a filled number is made of measured ones by one stated method, gives the same result on every
machine, and keeps a mark of how it was made.

Inside the hull: an unknown cell that has known cells on both sides along an axis is interpolated linearly in that
axis's coordinate (`lut.axes`: logarithmic); when several axes allow it, the mean of their values, each weighted by one
over the distance between its two ends. That is repeated, with the cells just filled counting as known, until nothing
changes; so the hull is the set of cells that can be reached this way. Functions that are linear in every coordinate by
itself (sums, products) are reproduced exactly. Outside: the value of the nearest cell that is known by now, by
Euclidean distance of coordinates; of equally near ones the one with the lower index on the rate axis, then output,
new, context.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lut.cell import Origin

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Marks = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.intp]


def fill(values: Floats, known: Flags, coordinates: Sequence[Sequence[float]]) -> tuple[Floats, Marks]:
    """Fill `values` (axes…, fields) where `known` (axes…) is false.

    Returns the filled copy and an `Origin` per cell. Raises ValueError when nothing is known.
    """
    if not known.any():
        raise ValueError("nothing is known")
    axes = [np.asarray(axis, dtype=np.float64) for axis in coordinates]
    filled = np.where(known[..., None], values, 0.0)
    reached = known.copy()
    while _interpolate_once(filled, reached, axes):
        pass
    source = _nearest_known(reached, axes)
    flat = filled.reshape(-1, filled.shape[-1])
    origin = np.full(known.shape, Origin.NEAREST, dtype=np.uint8)
    origin[reached] = Origin.INTERPOLATED
    origin[known] = Origin.MEASURED
    return flat[source], origin


def _interpolate_once(filled: Floats, known: Flags, axes: Sequence[Floats]) -> bool:
    """One round over all axes, from what was known before it; fills in place, says whether it filled anything."""
    total = np.zeros_like(filled)
    weight = np.zeros(known.shape)
    for axis, coordinate in enumerate(axes):
        before, after, between = _neighbours(np.moveaxis(known, axis, -1))
        width = np.where(between, coordinate[after] - coordinate[before], 1.0)
        part = np.where(between, (coordinate - coordinate[before]) / width, 0.0)[..., None]
        values = np.moveaxis(filled, axis, -2)
        low = np.take_along_axis(values, before[..., None], axis=-2)
        high = np.take_along_axis(values, after[..., None], axis=-2)
        share = np.where(between, 1.0 / width, 0.0)
        total += np.moveaxis((low * (1.0 - part) + high * part) * share[..., None], -2, axis)
        weight += np.moveaxis(share, -1, axis)
    fresh = weight > 0
    filled[fresh] = total[fresh] / weight[fresh][:, None]
    known |= fresh
    return bool(fresh.any())


def _neighbours(known: Flags) -> tuple[Indices, Indices, Flags]:
    """Along the last axis: indices of the known cells before and after each unknown one, and whether both exist."""
    count = known.shape[-1]
    index = np.arange(count)
    before = np.maximum.accumulate(np.where(known, index, -1), axis=-1)
    after = np.minimum.accumulate(np.where(known, index, count)[..., ::-1], axis=-1)[..., ::-1]
    between = ~known & (before >= 0) & (after < count)
    return np.where(between, before, 0), np.where(between, after, 0), between


def _nearest_known(known: Flags, axes: Sequence[Floats]) -> Indices:
    """For each cell the flat index of the nearest known one (its own, when known). One axis after the other."""
    distance = np.where(known, 0.0, np.inf)
    source = np.arange(known.size).reshape(known.shape)
    for axis, coordinate in enumerate(axes):
        near, origin = np.moveaxis(distance, axis, -1), np.moveaxis(source, axis, -1)
        next_near, next_origin = np.empty_like(near), np.empty_like(origin)
        for index, here in enumerate(coordinate):
            squares = near + (coordinate - here) ** 2
            best = squares.argmin(axis=-1)[..., None]
            next_near[..., index] = np.take_along_axis(squares, best, axis=-1)[..., 0]
            next_origin[..., index] = np.take_along_axis(origin, best, axis=-1)[..., 0]
        distance, source = np.moveaxis(next_near, -1, axis), np.moveaxis(next_origin, -1, axis)
    return source
