"""When, where, which."""

import random
from itertools import pairwise

import pytest

from loadtest.live.schedule import Arrivals, Casting, Planned, Window, plan
from loadtest.live.talks import Listed, Talk, Turn

ONE, THREE = (Talk("", tuple(Turn(f"{n} {k}", 4, 1.0) for k in range(n))) for n in (1, 3))
ALL = Window(0.0, 10.0)


def made(source: Listed, arrivals: Arrivals, casting: Casting, window: Window = ALL, seed: int = 1) -> list[Planned]:
    return list(plan(source, arrivals, casting, window, seed))


def moments(arrivals: Arrivals, end_s: float) -> list[float]:
    return list(arrivals.moments(end_s, random.Random(3)))


def test_fixed_arrivals_are_evenly_spaced() -> None:
    assert moments(Arrivals(4.0, poisson=False), 1.2) == pytest.approx([0.25, 0.5, 0.75, 1.0])


def test_poisson_arrivals_have_their_rate_and_their_spread() -> None:
    found = moments(Arrivals(50.0), 200.0)
    gaps = [later - earlier for earlier, later in pairwise(found)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert mean == pytest.approx(1 / 50, rel=0.05)
    assert variance**0.5 == pytest.approx(mean, rel=0.05)  # of an exponential, both are the same
    assert found[-1] < 200.0


def test_conversations_arrive_and_their_later_turns_follow_the_answers() -> None:
    planned = made(Listed("x", [THREE]), Arrivals(1.0, poisson=False), Casting(1, [("m", 1.0)]), ALL, seed=1)
    assert [each.due_s for each in planned] == [(float(second),) for second in range(1, 10)]
    assert not any(each.fixed for each in planned)
    assert [each.pair for each in planned] == list(range(9))


def test_turns_arrive_and_are_dealt_to_the_open_conversations() -> None:
    """Six arrivals over two lanes; conversations have three turns, one turn, three turns, …"""
    arrivals = Arrivals(1.0, poisson=False, by_turn=True, lanes=2)
    planned = made(Listed("x", [THREE, ONE]), arrivals, Casting(1, [("m", 1.0)]), Window(0.0, 7.5), seed=1)
    # Lane 0 gets 1, 3, 5, 7; lane 1 gets 2, 4, 6.
    assert [(each.number, each.due_s) for each in planned] == [
        (0, (1.0, 3.0, 5.0)),
        (1, (2.0,)),
        (2, (4.0, 6.0)),
        (3, (7.0,)),
    ]
    assert all(each.fixed for each in planned)


def test_two_in_a_row_say_the_same_to_both_endpoints() -> None:
    planned = made(Listed("x", [ONE]), Arrivals(100.0), Casting(2, [("m", 1.0)]), ALL, seed=5)
    even = planned[: len(planned) // 2 * 2]
    assert len(even) > 500
    firsts = []
    for one, other in zip(even[::2], even[1::2], strict=True):
        assert one.pair == other.pair
        assert {one.arm, other.arm} == {0, 1}
        firsts.append(one.arm)
    assert 0.4 < sum(firsts) / len(firsts) < 0.6, "neither endpoint is always the first"


def test_a_coin_sends_each_conversation_somewhere() -> None:
    planned = made(Listed("x", [ONE]), Arrivals(100.0), Casting(2, [("m", 1.0)], paired=False), ALL, seed=5)
    assert [each.pair for each in planned] == [each.number for each in planned]
    assert 0.4 < sum(each.arm for each in planned) / len(planned) < 0.6


def test_models_come_by_their_weights() -> None:
    planned = made(Listed("x", [ONE]), Arrivals(100.0), Casting(1, [("a", 3.0), ("b", 1.0)]), ALL, seed=5)
    assert 0.7 < sum(each.model == "a" for each in planned) / len(planned) < 0.8


def test_the_same_seed_is_the_same_traffic() -> None:
    def traffic(seed: int) -> list[Planned]:
        return made(Listed("x", [ONE]), Arrivals(20.0), Casting(2, [("a", 1.0), ("b", 1.0)]), ALL, seed)

    assert traffic(1) == traffic(1)
    assert traffic(1) != traffic(2)
