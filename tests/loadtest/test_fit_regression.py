"""Robust least squares with values from 0 up."""

import numpy as np
import pytest

from loadtest.fit.regression import fit, non_negative


def test_exact_measurements_give_the_values_back():
    features = [[1, 0], [1, 10], [1, 100], [1, 1000]]
    found = fit(features, [3 + 0.5 * row[1] for row in features])
    assert found.values == pytest.approx([3, 0.5])
    assert found.median_error == pytest.approx(0, abs=1e-9)


def test_one_wild_measurement_does_not_move_the_values_much():
    features = [[1, number] for number in range(1, 21)]
    measured = [2 + 0.1 * number for number in range(1, 21)]
    measured[7] *= 5
    found = fit(features, measured)
    assert found.values == pytest.approx([2, 0.1], rel=0.05)
    assert found.residuals[7] == pytest.approx(-0.8, abs=0.02), "and it is told as it is"
    assert max(abs(found.residuals)) > 0.5


def test_a_value_that_would_be_negative_is_held_at_0():
    found = fit([[1, 1], [1, 2], [1, 3]], [2.0, 1.9, 1.8])
    assert found.values[1] == 0
    assert found.errors[1] == 0
    assert found.values[0] == pytest.approx(1.9, rel=0.02)


def test_non_negative_agrees_with_an_exhaustive_search():
    draw = np.random.default_rng(3)
    for _ in range(20):
        table, target = draw.normal(size=(6, 3)), draw.normal(size=6)
        best = min(
            float(np.sum((table @ each - target) ** 2))
            for each in (_solved(table, target, chosen) for chosen in range(8))
            if (each >= 0).all()
        )
        found = non_negative(table, target)
        assert (found >= 0).all()
        assert float(np.sum((table @ found - target) ** 2)) == pytest.approx(best, rel=1e-6)


def _solved(table, target, chosen):
    columns = [index for index in range(3) if chosen >> index & 1]
    values = np.zeros(3)
    if columns:
        values[columns] = np.linalg.lstsq(table[:, columns], target, rcond=None)[0]
    return values


def test_what_cannot_be_fitted_is_refused():
    with pytest.raises(ValueError, match="1 measurements cannot set 2 values"):
        fit([[1, 2]], [1.0])
    with pytest.raises(ValueError, match="not positive"):
        fit([[1], [1]], [1.0, 0.0])
