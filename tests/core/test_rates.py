"""The request rate follows the traffic within seconds."""

from __future__ import annotations

import pytest

from gateway.core.rates import WINDOW_S, RequestRate


def steady(rate: RequestRate, start_s: float, end_s: float, per_second: float) -> float:
    """Count turns at an even rate; returns the time of the last."""
    count = round((end_s - start_s) * per_second)
    for number in range(count):
        rate.count(start_s + number / per_second)
    return end_s


def test_a_steady_rate_is_seen_as_it_is() -> None:
    rate = RequestRate(100.0)
    now = steady(rate, 100.0, 120.0, 8.0)
    assert rate.per_second(now) == pytest.approx(8.0, rel=0.1)


def test_it_rises_and_falls_within_the_window_and_is_no_average_since_the_start() -> None:
    rate = RequestRate(0.0)
    now = steady(rate, 0.0, 1000.0, 1.0)
    now = steady(rate, now, now + WINDOW_S, 50.0)
    assert rate.per_second(now) == pytest.approx(50.0, rel=0.1)
    assert rate.per_second(now + WINDOW_S + 0.5) == 0.0


def test_in_the_first_seconds_the_window_is_as_long_as_the_gateway_has_run() -> None:
    rate = RequestRate(50.0)
    steady(rate, 50.0, 52.0, 10.0)
    assert rate.per_second(52.0) == pytest.approx(10.0, rel=0.1)
    early = RequestRate(0.0)
    early.count(0.01)
    assert early.per_second(0.02) == 1.0


def test_a_long_silence_costs_no_time_and_leaves_nothing() -> None:
    rate = RequestRate(0.0)
    rate.count(0.0)
    assert rate.per_second(1e9) == 0.0
    rate.count(1e9)
    assert rate.per_second(1e9) == pytest.approx(1 / WINDOW_S)


def test_a_clock_that_steps_back_is_survived() -> None:
    rate = RequestRate(10.0)
    rate.count(20.0)
    rate.count(19.0)
    assert rate.per_second(20.0) == pytest.approx(2 / WINDOW_S)
