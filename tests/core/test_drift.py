"""Drift: alarms with a stated rate, corrections that shrink and fade, a budget for exploring."""

from __future__ import annotations

import math
import random

import pytest

from gateway.core.drift.detect import ALLOWANCE, BATCH_S, MIN_BATCH, REFERENCE_BATCHES, Series, threshold
from gateway.core.drift.explore import ENOUGH, Explorer
from gateway.core.drift.regions import BOUND, MAX_REGIONS, PULL, Corrections
from gateway.core.drift.tally import MAX_CELLS, Tally, Times

HOUR_S = 3600.0


def series(limit: float = 5.0) -> Series:
    return Series(tolerance=math.log1p(0.25), limit=limit)


def feed(of: Series, ratios: list[float], now_s: float) -> tuple[list[float], float]:
    """One batch per ratio, spread by nothing; gives when `drifting` changed."""
    changed = []
    for ratio in ratios:
        for turn in range(MIN_BATCH):
            at_s = now_s + turn * BATCH_S / (MIN_BATCH - 1)
            if of.add(ratio, at_s):
                changed.append(at_s)
        now_s += 2 * BATCH_S
    return changed, now_s


def noisy(dice: random.Random, middle: float, count: int) -> list[float]:
    return [middle * dice.lognormvariate(0.0, 0.1) for _ in range(count)]


# The alarm


def test_the_first_batches_are_the_reference_and_staying_there_is_no_drift() -> None:
    of = series()
    dice = random.Random(1)
    changed, _ = feed(of, noisy(dice, 0.6, 300), 0.0)
    assert changed == []
    assert math.exp(of.reference) == pytest.approx(0.6, rel=0.05)


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_twice_or_half_of_the_reference_is_drift_and_coming_back_clears_it(factor: float) -> None:
    of = series()
    dice = random.Random(2)
    _, now_s = feed(of, noisy(dice, 0.6, 2 * REFERENCE_BATCHES), 0.0)
    began_s = now_s
    changed, now_s = feed(of, noisy(dice, 0.6 * factor, 40), now_s)
    assert len(changed) == 1
    assert of.drifting
    assert changed[0] - began_s < 200
    changed, _ = feed(of, noisy(dice, 0.6, 60), now_s)
    assert len(changed) == 1
    assert not of.drifting


@pytest.mark.parametrize("seed", range(6))
def test_what_became_slower_and_much_noisier_is_heard_too(seed: int) -> None:
    """The noise it has now is not what it is judged by: else half of these would never be heard."""
    of, dice = series(limit=14.0), random.Random(seed)
    _, now_s = feed(of, noisy(dice, 1.0, 2 * REFERENCE_BATCHES), 0.0)
    changed, _ = feed(of, [2.0 * dice.lognormvariate(0.0, 0.8) for _ in range(60)], now_s)
    assert changed
    assert of.noise < 0.5


def test_more_noise_alone_is_no_drift() -> None:
    of, dice = series(limit=14.0), random.Random(10)
    _, now_s = feed(of, noisy(dice, 1.0, 2 * REFERENCE_BATCHES), 0.0)
    quiet = of.noise
    changed, _ = feed(of, [dice.lognormvariate(0.0, 0.4) for _ in range(400)], now_s)
    assert changed == []
    assert of.noise > 2 * quiet, "it has learned of it"


def test_a_difference_within_the_tolerance_is_no_drift() -> None:
    of = series()
    dice = random.Random(3)
    _, now_s = feed(of, noisy(dice, 1.0, REFERENCE_BATCHES), 0.0)
    changed, _ = feed(of, noisy(dice, 1.2, 300), now_s)
    assert changed == []


def test_a_table_that_was_never_right_is_drift_from_the_start() -> None:
    of = series()
    feed(of, noisy(random.Random(4), 8.0, REFERENCE_BATCHES + 20), 0.0)
    assert of.drifting
    assert math.exp(of.reference) == pytest.approx(2.5)


def test_one_turn_that_took_forever_is_no_alarm() -> None:
    of = series()
    dice = random.Random(5)
    _, now_s = feed(of, noisy(dice, 1.0, 2 * REFERENCE_BATCHES), 0.0)
    of.add(1e6, now_s)
    changed, _ = feed(of, noisy(dice, 1.0, 30), now_s)
    assert changed == []


def test_a_batch_needs_turns_and_time() -> None:
    of = series()
    for turn in range(3 * MIN_BATCH):
        of.add(1.0, turn * BATCH_S / (4 * MIN_BATCH))
    assert of.batches == 0
    of.add(1.0, BATCH_S)
    assert of.batches == 1


def test_the_limit_keeps_the_stated_rate_of_false_alarms() -> None:
    """Batches exactly at the tolerance, independent and normal: the run length is what the limit is made for."""
    wanted = 400.0
    per_day = 86_400 / BATCH_S * 2 / wanted
    limit = threshold(per_day, series=1)
    dice = random.Random(6)
    lengths = []
    for _ in range(300):
        total, length = 0.0, 0
        while total <= limit:
            total = max(0.0, total + dice.gauss(0.0, 1.0) - ALLOWANCE)
            length += 1
        lengths.append(length)
    assert sum(lengths) / len(lengths) == pytest.approx(wanted, rel=0.2)


@pytest.mark.parametrize("spread", [0.1, 0.3, 0.6])
def test_the_stated_rate_holds_for_neighbours_that_are_alike_with_the_noise_as_it_is_learned(spread: float) -> None:
    """Batches around the tolerance, one false alarm per 500 stated: 63 % of so long runs have one or more at most."""
    batches, runs, rho = 500, 60, 0.3
    limit, heard = threshold(86_400 / BATCH_S * 2 / batches, series=1), 0
    for seed in range(runs):
        of, dice, off = series(limit), random.Random(seed), 0.0
        for number in range(REFERENCE_BATCHES + batches):
            off = rho * off + dice.gauss(0.0, spread * math.sqrt(1 - rho * rho))
            middle = of.tolerance if number >= REFERENCE_BATCHES else 0.0
            if of._judge(middle + off):
                heard += 1
                break
    assert 0 < heard <= 0.63 * runs


def test_fewer_false_alarms_need_a_higher_limit() -> None:
    assert threshold(0.001, 6) > threshold(0.01, 6) > threshold(0.01, 1)


# Corrections


PLACE = (1, 1, 0, 0)
NEIGHBOUR = (0, 0, 1, 1)
FAR = (5, 5, 0, 0)


def test_without_evidence_nothing_is_corrected() -> None:
    assert Corrections(120.0).factor("ttft", "local", "1P_3D", PLACE) == 1.0


def test_a_cell_is_drawn_to_its_neighbourhood_and_that_to_its_arm() -> None:
    found = Corrections(1e9)
    for _ in range(20):
        found.add("ttft", "local", "1P_3D", PLACE, 2.0, 0.0)
    whole = (20 * 2.0 + PULL * 1.0) / (20 + PULL)
    near = (20 * 2.0 + PULL * whole) / (20 + PULL)
    cell = (20 * 2.0 + PULL * near) / (20 + PULL)
    assert found.factor("ttft", "local", "1P_3D", PLACE) == pytest.approx(cell)
    assert found.factor("ttft", "local", "1P_3D", NEIGHBOUR) == pytest.approx(near)
    assert found.factor("ttft", "local", "1P_3D", FAR) == pytest.approx(whole)
    assert found.factor("ttft", "pd", "1P_3D", PLACE) == 1.0


def test_slower_tokens_on_one_arm_are_expected_of_the_other_too() -> None:
    found = Corrections(1e9)
    for _ in range(200):
        found.add("tpot", "local", "1P_3D", PLACE, 2.0, 0.0)
    assert found.factor("tpot", "pd", "1P_3D", PLACE) == pytest.approx((200 * 2 + PULL) / (200 + PULL))


def test_what_was_seen_fades_by_half_in_its_half_life() -> None:
    found = Corrections(100.0)
    for _ in range(40):
        found.add("ttft", "pd", "1P_3D", PLACE, 2.0, 0.0)
    assert found.weight("ttft", "pd") == pytest.approx(40)
    found.now_s = 100.0
    assert found.weight("ttft", "pd") == pytest.approx(20)
    found.now_s = 5000.0
    assert found.factor("ttft", "pd", "1P_3D", PLACE) == pytest.approx(1.0, abs=1e-6)


def test_a_correction_has_bounds_and_one_turn_moves_little() -> None:
    found = Corrections(1e9)
    found.add("ttft", "pd", "1P_3D", PLACE, 1e9, 0.0)
    assert found.factor("ttft", "pd", "1P_3D", PLACE) < 1.5
    for _ in range(5000):
        found.add("ttft", "pd", "1P_3D", PLACE, 1e9, 0.0)
    assert found.factor("ttft", "pd", "1P_3D", PLACE) == BOUND


def test_the_reference_counts_as_one() -> None:
    found = Corrections(1e9)
    for _ in range(10_000):
        found.add("ttft", "pd", "1P_3D", PLACE, 1.2, 0.0)
    assert found.factor("ttft", "pd", "1P_3D", PLACE, 0.6) == pytest.approx(2.0, rel=0.01)
    assert found.factor("ttft", "local", "1P_3D", PLACE, 0.6) == pytest.approx(1.0)


def test_the_regions_are_bounded_and_arms_stay() -> None:
    found = Corrections(1e9)
    found.add("ttft", "pd", "1P_3D", PLACE, 2.0, 0.0)
    for number in range(MAX_REGIONS):
        found.add("ttft", "local", "1P_3D", (2 * number, 0, 0, 0), 2.0, 0.0)
    assert len(found) == MAX_REGIONS
    assert found.weight("ttft", "pd") == 1.0


# Exploring


def test_the_budget_of_exploring_is_never_exceeded() -> None:
    explorer = Explorer(0.02)
    for number in range(5000):
        explorer.wants(number.to_bytes(16, "big"), 2, 0.0, measured=0.0)
    assert 0 < explorer.explored <= 0.02 * 5000 + 1
    assert explorer.explored > 0.01 * 5000


def test_the_same_turns_explore_everywhere() -> None:
    first, second = Explorer(0.05), Explorer(0.05)
    keys = [number.to_bytes(16, "big") for number in range(500)]
    assert [first.wants(key, 3, 0.1, 0.0) for key in keys] == [second.wants(key, 3, 0.1, 0.0) for key in keys]


def test_close_calls_come_first() -> None:
    close, clear = Explorer(0.01), Explorer(0.01)
    close._saved = clear._saved = 3.0
    keys = [number.to_bytes(16, "big") for number in range(300)]
    first_close = next(index for index, key in enumerate(keys) if close.wants(key, 2, 0.0, 0.0))
    first_clear = next((index for index, key in enumerate(keys) if clear.wants(key, 2, 3.0, 0.0)), 300)
    assert first_close < first_clear


def test_a_route_that_is_measured_anyway_and_a_budget_of_nothing_explore_nothing() -> None:
    assert not any(Explorer(0.1).wants(bytes([n]), 2, 0.0, measured=ENOUGH) for n in range(200))
    assert not any(Explorer(0.0).wants(bytes([n]), 2, 0.0, measured=0.0) for n in range(200))


# The tally


def test_a_tally_has_means_and_a_p99_from_above() -> None:
    times = Times()
    for milliseconds in range(1, 101):
        times.add(milliseconds / 1000)
    assert times.mean_s == pytest.approx(0.0505)
    assert times.p99_s is not None
    assert 0.099 <= times.p99_s <= 0.099 * 1.05 * 1.05


def test_the_p99_of_one_time_is_not_below_it() -> None:
    times = Times()
    times.add(0.123)
    assert times.p99_s is not None
    assert times.p99_s >= 0.123


def test_failed_turns_count_and_have_no_times() -> None:
    tally = Tally()
    tally.count("1P_3D", PLACE, "pd", 2.0, good=True, ttft_s=0.1, tpot_s=0.01)
    tally.count("1P_3D", PLACE, "pd", 4.0, good=False, ttft_s=9.0)
    taken = tally.take()
    cell = taken["1P_3D", PLACE, "pd"]
    assert (cell.turns, cell.good, cell.rate, cell.ttft.count, cell.tpot.count) == (2, 1, 6.0, 1, 1)
    assert tally.cells == {}


def test_a_tally_is_bounded() -> None:
    tally = Tally()
    for number in range(MAX_CELLS + 5):
        tally.count("1P_3D", (number, 0, 0, 0), "pd", 1.0, good=True)
    assert (len(tally.cells), tally.left_out) == (MAX_CELLS, 5)
