"""S, its noise, and arms that failed; all values worked out by hand."""

from __future__ import annotations

import math

import pytest

from lut.table import Score, Table, score
from tests.lut.examples import AXES, BOTH, arm, cell, filled


def test_staying_local_wins_what_it_saves_of_ttft_and_loses_what_it_adds_to_tpot() -> None:
    # (0.4 - 0.1) / 0.4 = 0.75; (0.012 - 0.010) / 0.010 = 0.2
    result = score(cell(arm(0.4, 0.010), arm(0.1, 0.012)), 1, 1)
    assert (result.dttft, result.dtpot, result.s) == pytest.approx((0.75, 0.2, 0.55))
    assert (result.route, result.tie, result.noise, result.degraded) == ("local", False, 0, None)


def test_weights_turn_the_decision() -> None:
    asked = cell(arm(0.4, 0.010), arm(0.1, 0.012))
    assert score(asked, 1, 6).s == pytest.approx(0.75 - 1.2)
    assert score(asked, 1, 6).route == "pd"
    assert score(asked, 0, 1).route == "pd"
    assert score(asked, 1, 0).route == "local"


def test_outputs_of_one_token_have_no_tpot_to_lose() -> None:
    assert score(cell(arm(0.2, 0.0), arm(0.1, 0.012)), 1, 9).dtpot == 0
    assert score(cell(arm(0.2, 0.01), arm(0.1, 0.0)), 1, 9).s == pytest.approx(0.5)


def test_a_pd_arm_without_a_ttft_gives_no_gain() -> None:
    assert score(cell(arm(0.0), arm(0.1)), 1, 1).dttft == 0


def test_noise_is_the_error_of_both_ratios() -> None:
    # d(L/P): 0.02/0.4 = 0.05 and 0.5 · 0.04/0.4 = 0.05; d(tpot): 0.001/0.01 = 0.1 and 1 · 0 (unknown)
    pd = arm(0.4, 0.010, ttft_ci=0.04)
    local = arm(0.2, 0.010, ttft_ci=0.02, tpot_ci=0.001)
    result = score(cell(pd, local), 1, 2)
    assert result.noise == pytest.approx(math.sqrt(0.05**2 + 0.05**2 + (2 * 0.1) ** 2))
    assert (result.s, result.route) == (pytest.approx(0.5), "local")


def test_a_difference_inside_the_noise_is_a_tie() -> None:
    result = score(cell(arm(0.1, ttft_ci=0.02), arm(0.09, ttft_ci=0.02)), 1, 1)
    assert (result.s, result.noise) == (pytest.approx(0.1), pytest.approx(math.hypot(0.2, 0.18)))
    assert (result.tie, result.route, result.leader, result.tied) == (True, None, "local", ("pd", "local"))


def test_equal_arms_and_weights_of_zero_are_a_tie() -> None:
    assert score(cell(arm(), arm()), 1, 1).tie
    assert score(cell(arm(0.4), arm(0.1)), 0, 0) == Score(
        0, pytest.approx(0.75), 0, 0, None, True, None, "local", "pd", ("pd", "local")
    )


def test_an_arm_below_95_percent_loses_whatever_s_says() -> None:
    result = score(cell(arm(0.4), arm(0.1, success=0.94)), 1, 1)
    assert (result.s, result.route, result.degraded, result.tie) == (pytest.approx(0.75), "pd", "local", False)
    result = score(cell(arm(0.1, success=0.5), arm(0.4)), 1, 1)
    assert (result.s, result.route, result.degraded) == (pytest.approx(-3), "local", "pd")


def test_exactly_95_percent_is_not_degraded_also_when_read_from_a_table() -> None:
    assert score(cell(arm(0.4), arm(0.1, success=0.95)), 1, 1).route == "local"
    table = Table("1P_3D", AXES, BOTH, filled(lambda name, *_: arm(0.4 if name == "pd" else 0.1, success=19 / 20)))
    assert score(table.nearest(0, 16, 32, 2), 1, 1)[4:7] == ("local", False, None)
    assert not table.nearest(0, 16, 32, 2).pd.degraded


def test_of_two_degraded_arms_the_higher_success_wins() -> None:
    result = score(cell(arm(0.4, success=0.6), arm(0.1, success=0.5)), 1, 1)
    assert (result.route, result.degraded) == ("pd", "pd+local")


def test_two_equally_degraded_arms_are_decided_by_s() -> None:
    result = score(cell(arm(0.4, success=0.5), arm(0.1, success=0.5)), 1, 1)
    assert (result.route, result.degraded, result.tie) == ("local", "pd+local", False)


def test_readback_leads_when_its_own_s_is_highest() -> None:
    result = score(cell(arm(0.4, 0.010), arm(0.2, 0.015), arm(0.24, 0.010)), 1, 1)
    assert (result.route, result.arm, result.s) == ("readback", "readback", pytest.approx(0.4))
    assert score(cell(arm(0.4, 0.010), arm(0.1, 0.010), arm(0.24, 0.010)), 1, 1).route == "local"
    assert score(cell(arm(0.1), arm(0.4), arm(0.2)), 1, 1)[:5] == (pytest.approx(-1), -1, 0, 0, "pd")


def test_a_tie_of_three_arms_names_those_inside_the_noise() -> None:
    # S: local 0.5, readback 0.44; each has a noise of 0.02/0.4 = 0.05, their difference 0.071; pd is 0.5 behind
    result = score(cell(arm(0.4), arm(0.2, ttft_ci=0.02), arm(0.224, ttft_ci=0.02)), 1, 1)
    assert (result.route, result.leader, result.tied) == (None, "local", ("local", "readback"))
    result = score(cell(arm(0.4), arm(0.2, ttft_ci=0.02), arm(0.23, ttft_ci=0.02)), 1, 1)
    assert (result.route, result.tied) == ("local", ())


def test_a_degraded_readback_is_left_out_and_a_healthy_one_wins_alone() -> None:
    result = score(cell(arm(0.4), arm(0.2), arm(0.1, success=0.1)), 1, 1)
    assert (result.route, result.degraded, result.arm) == ("local", "readback", "local")
    result = score(cell(arm(0.4, success=0), arm(0.2, success=0), arm(0.3)), 1, 1)
    assert (result.route, result.degraded, result.arm) == ("readback", "pd+local", "readback")


@pytest.mark.parametrize("weight", [math.nan, math.inf, -1.0, 1e308])
@pytest.mark.parametrize("readback", [None, arm(0.3, ttft_ci=0.1)])
def test_no_weight_and_no_number_makes_it_raise(weight: float, readback: object) -> None:
    for pd in (arm(), arm(0.0, 0.0), arm(math.nan, math.inf), arm(1e-45, 3e38, ttft_ci=3e38, success=math.nan)):
        for local in (arm(0.2), arm(math.nan), arm(3e38, ttft_ci=3e38)):
            result = score(cell(pd, local, readback), weight, 1.0)  # type: ignore[arg-type]
            assert result.tie is (result.route is None)


def test_an_s_that_is_no_number_is_a_tie_so_that_the_last_route_stays() -> None:
    assert score(cell(arm(0.4), arm(0.1)), math.nan, 1).tie
