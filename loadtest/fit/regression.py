"""Least squares that shrug off outliers and give no negative time.

Rule of this room: numbers in, numbers out. Residuals are relative, since a tenth of 5 ms matters as much as one of 5 s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

HUBER = 0.05
"""Relative residuals beyond this count linearly, not squared."""
_ROUNDS = 100
_SMALL = 1e-12


@dataclass(frozen=True, slots=True)
class Fitted:
    """`errors` are standard errors (0 for a value held at 0); `residuals` are (predicted − measured) / measured."""

    values: Vector
    errors: Vector
    residuals: Vector

    @property
    def median_error(self) -> float:
        return float(np.median(np.abs(self.residuals)))


def fit(features: Sequence[Sequence[float]], measured: Sequence[float]) -> Fitted:
    """Values ≥ 0 with features · values ≈ measured (all > 0), by reweighted least squares with Huber's weights.

    Raises ValueError when there are fewer measurements than values or one is not positive.
    """
    table, target = np.asarray(features, dtype=float), np.asarray(measured, dtype=float)
    if table.ndim != 2 or len(table) != len(target) or len(target) < table.shape[1]:
        raise ValueError(f"{len(target)} measurements cannot set {table.shape[-1]} values")
    if not (target > 0).all():
        raise ValueError("a measured time is not positive")
    table = table / target[:, None]
    scale = np.abs(table).max(axis=0)
    scale[scale == 0] = 1.0
    table = table / scale
    weights = np.ones(len(target))
    values = np.zeros(table.shape[1])
    for _ in range(_ROUNDS):
        before = values
        root = np.sqrt(weights)
        values = non_negative(table * root[:, None], root)
        away = np.abs(table @ values - 1.0)
        weights = np.where(away <= HUBER, 1.0, HUBER / np.maximum(away, _SMALL))
        if np.allclose(values, before, rtol=1e-9, atol=_SMALL):
            break
    residuals = table @ values - 1.0
    return Fitted(values / scale, _standard_errors(table, residuals, weights, values) / scale, residuals)


def non_negative(table: Vector, target: Vector) -> Vector:
    """min |table · x − target| with x ≥ 0 (Lawson and Hanson's active set)."""
    count = table.shape[1]
    free = np.zeros(count, dtype=bool)
    values = np.zeros(count)
    for _ in range(10 * count):
        gradient = table.T @ (target - table @ values)
        gradient[free] = -np.inf
        if free.all() or gradient.max() <= 1e-10:
            break
        free[int(gradient.argmax())] = True
        while True:
            trial = np.zeros(count)
            trial[free] = np.linalg.lstsq(table[:, free], target, rcond=None)[0]
            if (trial[free] > 0).all():
                values = trial
                break
            losing = free & (trial <= 0)
            step = (values[losing] / np.maximum(values[losing] - trial[losing], _SMALL)).min()
            values = values + step * (trial - values)
            free &= values > _SMALL
            values[~free] = 0.0
            if not free.any():
                break
    return values


def _standard_errors(table: Vector, residuals: Vector, weights: Vector, values: Vector) -> Vector:
    """Of the values that are not held at 0, from the weighted residuals."""
    free = values > 0
    errors = np.zeros(len(values))
    spare = len(residuals) - int(free.sum())
    if spare > 0 and free.any():
        held = table[:, free] * np.sqrt(weights)[:, None]
        variance = float((weights * residuals**2).sum()) / spare
        errors[free] = np.sqrt(np.maximum(np.diag(np.linalg.pinv(held.T @ held)) * variance, 0.0))
    return errors
