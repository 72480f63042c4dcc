"""What may be said of a difference."""

import random

import pytest

from loadtest.live.book import TurnRecord
from loadtest.live.compare import compare, verdict
from loadtest.live.slo import Slo
from tests.loadtest.live.live_support import turn

DRAWS = 400


def both(pairs: int, factor: float = 1.0, **of_b: float) -> list[TurnRecord]:
    """Pairs of conversations of two turns whose times vary much; B's first tokens take `factor` times as long."""
    dice = random.Random(7)
    made = []
    for number in range(pairs):
        for which in (1, 2):
            ttft_s = dice.lognormvariate(-2.0, 0.7)
            made.append(turn(ttft_s, arm=0, number=number, turn=which))
            made.append(turn(ttft_s * factor, arm=1, number=number, turn=which, **of_b))
    return made


def test_a_clear_difference_is_shown_and_named() -> None:
    found = {each.name: each for each in compare(both(60, 0.5), None, seed=1, draws=DRAWS)}
    later = found["TTFT P50, turns 2+"]
    assert later.verdict == "B"
    assert later.b == pytest.approx(later.a / 2)
    assert later.low < later.difference < later.high < 0
    assert found["TPOT P50, all turns"].verdict == ""
    assert found["TPOT P50, all turns"].difference == pytest.approx(0.0, abs=1e-9)
    assert "B is better than A in TTFT P50, turn 1 (-50%); TTFT P50, turns 2+ (-50%)" in verdict(list(found.values()))


def test_the_slower_one_loses_whichever_it_is() -> None:
    found = compare(both(60, 2.0, tpot_s=0.02), None, seed=1, draws=DRAWS)
    assert {each.verdict for each in found if each.name != "success"} == {"A"}
    assert verdict(found).startswith("A is better than B in ")


def test_the_same_server_twice_shows_no_difference() -> None:
    """Two samples of one distribution, twenty times: 95 % of the verdicts must name nothing."""
    named = 0
    for seed in range(20):
        dice = random.Random(seed)
        made = [
            turn(dice.lognormvariate(-2.0, 0.7), tpot_s=dice.uniform(0.01, 0.02), arm=arm, number=number)
            for number in range(40)
            for arm in (0, 1)
        ]
        named += any(each.verdict for each in compare(made, None, seed=seed, draws=DRAWS))
    assert named <= 3


def test_failures_decide_success_and_infinite_figures_have_no_number() -> None:
    good = [turn(0.1, arm=0, number=number) for number in range(40)]
    bad = [turn(None if number < 30 else 0.1, arm=1, number=number) for number in range(40)]
    found = {each.name: each for each in compare([*good, *bad], Slo(ttft_s=0.5), seed=1, draws=DRAWS)}
    assert (found["success"].a, found["success"].b, found["success"].verdict) == (1.0, 0.25, "A")
    assert (found["within SLO"].b, found["within SLO"].verdict) == (0.25, "A")
    slow = found["TTFT P50, turn 1"]
    assert (slow.b, slow.difference, slow.verdict) == (None, None, "A")


def test_a_few_conversations_prove_nothing() -> None:
    found = compare(both(5, 0.1), None, seed=1, draws=DRAWS)
    assert {each.low for each in found} == {None}
    assert verdict(found) == "no difference between A and B is shown"


def test_nothing_measured_is_no_difference() -> None:
    assert verdict(compare([], None, seed=1, draws=DRAWS)) == "no difference between A and B is shown"


def test_the_same_turns_and_seed_give_the_same_intervals() -> None:
    assert compare(both(20, 0.8), None, 3, DRAWS) == compare(both(20, 0.8), None, 3, DRAWS)
