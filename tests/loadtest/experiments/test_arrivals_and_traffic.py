"""When conversations begin, and which."""

from __future__ import annotations

import itertools
import random

import pytest

from loadtest.experiments import arrivals
from loadtest.experiments.arrivals import Rate
from loadtest.experiments.errors import ExperimentError
from loadtest.experiments.scenario import ChangeMix, ChangeRate
from loadtest.experiments.traffic import Arrival, Extent, Stream, traffic
from loadtest.experiments.workloads import Recorded, Script, TurnScript, synthetic

CHAT = Stream(synthetic("chat"), 2.0)


def play(streams: list[Stream], seed: str = "1", events: list[object] | None = None, **extent: object) -> list[Arrival]:
    return list(traffic(streams, events or [], Extent(**extent), seed))  # type: ignore[arg-type]


def test_even_arrivals_follow_the_rate_through_its_changes() -> None:
    times = arrivals.even([Rate(0.0, 2.0), Rate(1.0, 0.0), Rate(3.0, 4.0)])
    assert list(itertools.islice(times, 6)) == [0.5, 1.0, 3.25, 3.5, 3.75, 4.0]


def test_arrivals_end_where_the_last_rate_is_zero() -> None:
    assert list(arrivals.even([Rate(0.0, 2.0), Rate(1.2, 0.0)])) == [0.5, 1.0]


def test_poisson_arrivals_have_the_wanted_mean_rate() -> None:
    times = list(itertools.islice(arrivals.poisson([Rate(0.0, 5.0)], random.Random("x")), 5000))
    assert times == sorted(times)
    assert 5000 / times[-1] == pytest.approx(5.0, rel=0.05)


def test_twice_the_rate_is_the_same_dice_in_half_the_time() -> None:
    slow, fast = (list(itertools.islice(arrivals.poisson([Rate(0.0, rate)], random.Random("x")), 9)) for rate in (1, 2))
    assert fast == pytest.approx([time / 2 for time in slow])


def test_the_same_seed_is_the_same_traffic_and_another_is_not() -> None:
    assert play([CHAT], conversations=20) == play([CHAT], conversations=20)
    assert play([CHAT], conversations=20) != play([CHAT], "2", conversations=20)


def test_conversations_end_with_the_time_or_the_number() -> None:
    assert all(arrival.at_s < 10 for arrival in play([CHAT], until_s=10.0))
    assert len(play([CHAT], conversations=7)) == 7


def test_nobody_says_how_much() -> None:
    with pytest.raises(ExperimentError, match="--duration"):
        Extent()


def test_a_rate_change_of_one_tenant_leaves_the_others_where_they_were() -> None:
    streams = [Stream(synthetic("chat"), 2.0, "a"), Stream(synthetic("chat"), 2.0, "b")]
    before = play(streams, until_s=20.0)
    after = play(streams, until_s=20.0, events=[ChangeRate(5.0, 20.0, "a")])
    of = lambda arrivals, tenant: [(a.at_s, a.script) for a in arrivals if a.tenant == tenant]  # noqa: E731
    assert of(before, "b") == of(after, "b")
    assert len(of(after, "a")) > 3 * len(of(before, "a"))


def test_a_mix_changes_for_new_conversations_only() -> None:
    stream = Stream(synthetic("small_tiny"), 1.0, arrivals="even")
    found = play([stream], until_s=4.5, events=[ChangeMix(2.5, "large_tiny")])
    assert [arrival.script.turns[0].new_tokens for arrival in found] == [128, 128, 1024, 1024]


def test_a_trace_begins_when_it_did() -> None:
    scripts = [Script((TurnScript(5, 5),), "x", at_s) for at_s in (0.5, 2.0, 7.0)]
    found = play([Stream(Recorded("t", "o", scripts), None)], until_s=5.0)
    assert [(arrival.at_s, arrival.tenant) for arrival in found] == [(0.5, "x"), (2.0, "x")]


def test_thinking_is_put_before_later_turns_only() -> None:
    (arrival,) = play([Stream(synthetic("small_tiny"), 1.0, think_s=10.0)], conversations=1)
    first, second = arrival.script.turns
    assert first.think_s == 0.0
    assert second.think_s > 0.0


def test_texts_differ_in_bytes_per_token_so_that_an_estimate_is_one() -> None:
    sizes = {round(arrival.bytes_per_token, 6) for arrival in play([CHAT], conversations=20)}
    assert len(sizes) == 20
