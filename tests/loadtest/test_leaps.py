"""Many steps at once are the same as one after the other, and names are the same as tokens."""

import pytest

from loadtest.engine.leap import Leap
from loadtest.engine.request import Finish
from tests.loadtest.engine_traffic import PODS, Traffic

SEEDS = range(200)


def assert_same(one: Traffic, other: Traffic) -> None:
    """Same outputs at the same times; same counts and caches in the end, down to who is evicted next."""
    assert one.told() == other.told()
    assert all(abs(left - right) < 1e-9 for left, right in zip(one.times(), other.times(), strict=True))
    for name in PODS:
        left, right = one.cluster.engine(name), other.cluster.engine(name)
        assert left.stats == right.stats
        assert left.pool.num_free == right.pool.num_free
        assert len(left.pool.free_names()) == len(right.pool.free_names())


def test_leaping_is_the_same_as_stepping():
    events = [0, 0]
    preemptions, finishes = 0, set()
    for seed in SEEDS:
        leaping, stepping = (Traffic(seed, leaps=leaps).play() for leaps in (True, False))
        events = [events[0] + leaping.events, events[1] + stepping.events]
        assert_same(leaping, stepping)
        for name in PODS:
            assert leaping.cluster.engine(name).pool.free_names() == stepping.cluster.engine(name).pool.free_names()
        preemptions += sum(leaping.cluster.load(name).preemptions for name in PODS)
        finishes |= {output.finish for asked in leaping.asked for _, output in asked.outputs}
        finishes |= {asked.aborted_after is not None for asked in leaping.asked}
    assert events[0] < 0.6 * events[1], "it did leap"
    assert preemptions > 20, "blocks did run out"
    assert {Finish.LENGTH, Finish.ERROR, True} <= finishes


def test_prompts_by_name_are_the_same_as_prompts_of_tokens():
    for seed in SEEDS[:40]:
        assert_same(Traffic(seed).play(), Traffic(seed, named=False).play())


def test_the_time_of_so_many_steps_is_the_sum_of_each():
    """3 s, then half a second more each: 3, 6.5, 10.5, 15."""
    leap = Leap(10.0, 4, 3.0, 0.5, [])
    assert [leap.at(steps) for steps in range(5)] == [10.0, 13.0, 16.5, 20.5, 25.0]


@pytest.mark.parametrize(
    ("when", "end_s"),
    [(9.0, 13.0), (10.0, 13.0), (13.0, 13.0), (13.1, 16.5), (16.5, 16.5), (20.0, 20.5), (20.6, None), (99.0, None)],
)
def test_a_leap_ends_with_the_step_that_is_under_way_when_somebody_comes(when, end_s):
    leap = Leap(10.0, 4, 3.0, 0.5, [])
    assert leap.limit(when) == end_s
    assert leap.end_s == (end_s or 25.0)


def test_steps_that_take_no_time_leap_to_the_first():
    leap = Leap(1.0, 50, 0.0, 0.0, [])
    assert leap.limit(1.0) == 1.0
    assert leap.steps == 1
