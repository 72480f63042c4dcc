"""The guard's two tests, against numbers that were worked out by hand or counted."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from math import comb

import numpy as np
import pytest

from gateway.core.evidence import Stratum, exceedances, failures


def stratum(canary: list[float], baseline: list[float]) -> Stratum:
    return Stratum(np.array(canary), np.array(baseline))


def counted(above: int, n_canary: int, n_baseline: int, rank: int) -> float:
    """P(at least so many above the rank-th largest of the baseline), by going through all orders."""
    total = hits = 0
    for places in combinations(range(n_canary + n_baseline), n_baseline):
        total += 1
        threshold = places[-rank]
        hits += sum(place > threshold for place in set(range(n_canary + n_baseline)) - set(places)) >= above
    return float(Fraction(hits, total))


@pytest.mark.parametrize("above", range(6))
@pytest.mark.parametrize(("quantile", "rank"), [(0.99, 1), (0.7, 2), (0.5, 3)])
def test_the_law_of_exceedances_is_that_of_all_orders(above: int, quantile: float, rank: int) -> None:
    baseline = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    canary = [100.0] * above + [0.0] * (5 - above)
    found = exceedances([stratum(canary, baseline)], quantile, 0.0)
    assert found.above == above
    assert found.p == pytest.approx(counted(above, 5, 6, rank), abs=1e-12)
    assert found.expected == pytest.approx(5 * rank / 7)


def test_the_margin_stretches_the_baseline() -> None:
    baseline, canary = [1.0] * 9 + [10.0], [12.0] * 10
    assert exceedances([stratum(canary, baseline)], 0.99, 0.0).above == 10
    assert exceedances([stratum(canary, baseline)], 0.99, 0.25).above == 0, "12 is not above 12.5"


def test_strata_have_thresholds_of_their_own_and_add_up() -> None:
    short, long = stratum([2.0, 0.5], [1.0, 0.9]), stratum([20.0, 21.0], [30.0, 31.0])
    both = exceedances([short, long], 0.99, 0.0)
    assert (both.above, both.canary, both.baseline) == (1, 4, 4)
    one = [counted(k, 2, 2, 1) for k in range(4)]
    law = [one[k] - one[k + 1] for k in range(3)]
    none_above = law[0] * law[0]
    assert both.p == pytest.approx(1 - none_above)


def test_longer_prompts_on_one_side_alone_prove_nothing() -> None:
    """All of the canary's requests are long ones, all of the baseline's short: nothing can be compared."""
    found = exceedances([stratum([9.0] * 50, []), stratum([], [1.0] * 50)], 0.99, 0.0)
    assert (found.above, found.p) == (0, 1.0)


def test_equal_times_are_not_above() -> None:
    assert exceedances([stratum([1.0] * 100, [1.0] * 100)], 0.99, 0.0).p == 1.0


def test_a_false_alarm_is_as_rare_as_it_says_whatever_the_distribution() -> None:
    draw = np.random.default_rng(3)
    p = []
    for _ in range(1500):
        heavy = Stratum(1.25 * draw.pareto(1.2, 150), draw.pareto(1.2, 600))
        light = Stratum(1.25 * draw.uniform(1, 2, 40), draw.uniform(1, 2, 160))
        p.append(exceedances([heavy, light], 0.99, 0.25).p)
    for alpha in (0.1, 0.01):
        assert np.mean(np.array(p) <= alpha) <= alpha * 1.3 + 0.002


def test_failures_of_which_the_answer_is_known() -> None:
    """No baseline failure in 1000: the bound at alpha/2 = 0.005 is 1 - 0.005^(1/1000) = 0.5284 %, plus 1 %."""
    share = 1 - 0.005 ** (1 / 1000) + 0.01
    binomial = sum(comb(100, k) * share**k * (1 - share) ** (100 - k) for k in range(5, 101))
    found = failures(5, 100, 0, 1000, 0.01, 0.01)
    assert found.p == pytest.approx(binomial + 0.005, rel=1e-6)


@pytest.mark.parametrize(
    ("canary_failed", "canary", "baseline_failed", "baseline"),
    [(0, 100, 0, 100), (0, 0, 0, 0), (5, 5, 5, 5), (1, 1, 0, 0), (3, 1000, 3, 1000), (50, 1000, 45, 1000)],
)
def test_what_proves_nothing(canary_failed: int, canary: int, baseline_failed: int, baseline: int) -> None:
    assert failures(canary_failed, canary, baseline_failed, baseline, 0.01, 1e-6).p > 1e-6


def test_a_broken_canary_is_seen_at_a_hundred_conversations() -> None:
    assert failures(30, 100, 0, 300, 0.01, 1e-7).p < 1e-7
    assert failures(0, 300, 30, 100, 0.01, 1e-7).p == 1.0, "a broken baseline is no fault of the canary"


def test_a_false_alarm_over_failures_is_as_rare_as_it_says_at_the_margin_itself() -> None:
    draw = np.random.default_rng(5)
    alarms = sum(
        failures(int(draw.binomial(200, 0.03)), 200, int(draw.binomial(800, 0.02)), 800, 0.01, 0.05).p <= 0.05
        for _ in range(250)
    )
    assert alarms / 250 <= 0.05
