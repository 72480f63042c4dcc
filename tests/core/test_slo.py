"""Targets and the controller that moves the weights."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from gateway.core.admission.classes import ServiceClass
from gateway.core.slo import SloController, SloSettings, Targets, Window
from gateway.core.weights import Weights

S = ServiceClass.STANDARD
PER_S = 20


def controller(ttft_ms: float | None = 500, tpot_ms: float | None = 30, e2e_s: float | None = None) -> SloController:
    return SloController(SloSettings({S: Targets(ttft_ms, tpot_ms, e2e_s)}, window_s=10.0, min_samples=50))


Plant = Callable[[int, random.Random], tuple[float, float]]
"""(TTFT, TPOT) of a request at a step of the controller."""


def drive(found: SloController, plant: Plant, seconds: int, from_s: int = 0) -> list[int]:
    """The step after every second."""
    dice, steps = random.Random(1), []
    for second in range(from_s, from_s + seconds):
        for number in range(PER_S):
            ttft_s, tpot_s = plant(found.step, dice)
            now_s = second + number / PER_S
            found.seen(S, now_s, ttft_s=ttft_s, tpot_s=tpot_s, total_s=ttft_s + 100 * tpot_s)
            found.tick(now_s)
        steps.append(found.step)
    return steps


def linear(ttft_s: float, tpot_s: float, noise: float = 0.02) -> Plant:
    """Every step towards the first token makes it 20 % faster and tokens 10 % slower."""

    def plant(step: int, dice: random.Random) -> tuple[float, float]:
        return (
            ttft_s * 0.8**step * dice.lognormvariate(0, noise),
            tpot_s * 1.1**step * dice.lognormvariate(0, noise),
        )

    return plant


def test_with_both_targets_met_the_weights_stay_as_configured() -> None:
    found = controller()
    assert set(drive(found, linear(0.3, 0.02), 200)) == {0}
    assert found.shifted(Weights(2.0, 1.0)) == Weights(2.0, 1.0)


def test_a_violated_first_token_gets_more_weight_until_it_recovers() -> None:
    found = controller()
    steps = drive(found, linear(0.6, 0.02), 300)
    assert 0 < steps[-1] <= 2
    moved = found.shifted(Weights(1.0, 1.0))
    assert moved.w_ttft > 1 > moved.w_tpot
    assert moved.w_ttft * moved.w_tpot == pytest.approx(1.0)
    assert all(not standing.violated for standing in found.standings(299.9))


def test_a_violated_time_per_token_pulls_the_other_way() -> None:
    found = controller()
    assert drive(found, linear(0.1, 0.034), 300)[-1] < 0


def test_at_steady_load_it_does_not_move_by_more_than_a_step() -> None:
    for ttft_s in (0.45, 0.6, 0.9):
        for tpot_s in (0.012, 0.024):
            steps = drive(controller(), linear(ttft_s, tpot_s, 0.1), 400)
            settled = steps[150:]
            assert max(settled) - min(settled) <= 1, (ttft_s, tpot_s, settled[::10])


def test_a_step_back_that_was_too_early_is_tried_later_and_later() -> None:
    found = controller(tpot_ms=None)

    def plant(step: int, dice: random.Random) -> tuple[float, float]:
        return (0.7 if step == 0 else 0.2), 0.02

    steps = drive(found, plant, 1500)
    tries = [second for second in range(1, 1500) if steps[second] == 0 != steps[second - 1]]
    waits = [later - earlier for earlier, later in pairwise(tries)]
    assert len(tries) >= 3
    assert all(later > 1.4 * earlier for earlier, later in pairwise(waits))


def test_when_both_are_violated_alike_no_weights_help_and_it_says_so() -> None:
    found = controller()
    assert set(drive(found, linear(0.75, 0.045, 0.0), 100)) == {0}
    assert "no weights help both" in found.why


def test_the_worse_of_two_violated_targets_recovers_first() -> None:
    assert drive(controller(), linear(1.5, 0.033, 0.0), 60)[-1] > 0


def test_it_goes_no_further_than_it_may() -> None:
    found = controller(tpot_ms=None)
    assert drive(found, linear(50.0, 0.02), 400)[-1] == 4
    assert found.factor == pytest.approx(16.0)
    assert "at the end of its range" in found.why


def test_it_comes_back_when_the_load_is_gone() -> None:
    found = controller()
    assert drive(found, linear(0.9, 0.015), 200)[-1] > 0
    assert drive(found, linear(0.1, 0.01), 600, from_s=200)[-1] == 0


def test_too_few_samples_say_nothing() -> None:
    found = controller()
    for second in range(100):
        found.seen(S, float(second), ttft_s=9.0, tpot_s=9.0, total_s=9.0)
        assert not found.tick(float(second))


def test_requests_that_fail_violate_every_target() -> None:
    found = controller()
    for number in range(100):
        found.seen(S, number / 100, ttft_s=math.inf, tpot_s=math.inf, total_s=math.inf)
    assert [standing.violated for standing in found.standings(1.0)] == [True, True]


def test_a_late_whole_answer_pulls_towards_what_most_of_it_is() -> None:
    slow_tokens = controller(None, None, 3.0)
    assert drive(slow_tokens, lambda step, dice: (0.2, 0.05), 30)[-1] < 0
    slow_start = controller(None, None, 3.0)
    assert drive(slow_start, lambda step, dice: (4.0, 0.005), 30)[-1] > 0


def test_a_class_without_targets_is_not_looked_at() -> None:
    found = controller()
    found.seen(ServiceClass.BATCH, 0.0, ttft_s=99.0, tpot_s=99.0, total_s=99.0)
    assert [standing.samples for standing in found.standings(0.0)] == [0, 0]


def test_a_quantile_of_the_window_is_within_a_twentieth_and_forgets() -> None:
    window, dice = Window(12.0), random.Random(3)
    values = [dice.lognormvariate(-1, 0.7) for _ in range(5000)]
    for number, value in enumerate(values):
        window.add(value, number / 1000)
    exact = sorted(values)[math.ceil(0.99 * len(values)) - 1]
    assert window.quantile(0.99, 5.0) == pytest.approx(exact, rel=0.05)
    assert window.count(5.0) == 5000
    assert window.count(30.0) == 0
    assert math.isnan(window.quantile(0.99, 30.0))


def test_other_targets_go_on_from_the_step_and_what_was_measured_where_it_means_the_same() -> None:
    found = controller(tpot_ms=None)
    steps = drive(found, linear(0.9, 0.02), 100)
    assert steps[-1] > 0
    samples = found.standings(99.9)[0].samples
    found.reconfigure(SloSettings({S: Targets(2000, 30, None)}, window_s=10.0, min_samples=50))
    assert found.step == steps[-1]
    assert [(each.target, each.samples) for each in found.standings(99.9)] == [(2000, samples), (30, 0)]
    assert drive(found, linear(0.9, 0.02), 50, from_s=100)[-1] == steps[-1] - 1, "at once: it learns to wait anew"


def test_without_targets_the_weights_are_as_configured_again() -> None:
    found = controller()
    drive(found, linear(0.9, 0.02), 100)
    found.reconfigure(SloSettings())
    assert found.standings(100.0) == []
    assert found.shifted(Weights(2.0, 1.0)) == Weights(2.0, 1.0)
    assert set(drive(found, linear(0.9, 0.02), 100, from_s=100)) == {0}
