"""Which conversations are the canary's, and what turns it on and off."""

from __future__ import annotations

import random

import pytest

from gateway.core.canary import Canary, CanaryState, CanaryStatus, slot_of

_draw = random.Random(7)
KEYS = [_draw.randbytes(16) for _ in range(4000)]


def taken(canary: Canary) -> set[bytes]:
    return {key for key in KEYS if canary.takes(key)}


@pytest.mark.parametrize("percent", [0.0, 1.0, 20.0, 50.0, 100.0])
def test_a_percentage_is_that_share_of_the_conversations(percent: float) -> None:
    share = 100 * len(taken(Canary(percent))) / len(KEYS)
    assert abs(share - percent) < 2.5, "three standard deviations of 4000 draws at one half"
    assert share == percent or 0 < percent < 100


def test_a_conversation_stays_on_its_side_at_every_gateway() -> None:
    assert taken(Canary(20)) == taken(Canary(20))
    assert slot_of(b"\0" * 16) == slot_of(bytes(16))


def test_a_higher_percentage_only_adds_conversations() -> None:
    before: set[bytes] = set()
    for percent in (0, 0.5, 5, 20, 60, 99, 100):
        now = taken(Canary(percent))
        assert before <= now
        before = now


@pytest.mark.parametrize("percent", [-1, 100.5, float("nan")])
def test_what_is_no_percentage_is_refused(percent: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 100"):
        Canary(percent)
    canary = Canary(10)
    with pytest.raises(ValueError):
        canary.set_percent(percent, "told", 1.0)
    assert canary.status.percent == 10


def test_by_default_everything_is_the_canarys_and_there_is_nothing_to_compare() -> None:
    canary = Canary()
    assert canary.takes_all
    assert not canary.compares
    assert len(taken(canary)) == len(KEYS)


def test_off_takes_nothing_and_on_takes_the_same_again() -> None:
    canary = Canary(30)
    before = taken(canary)
    canary.turn(CanaryState.OFF, "told", 1.0)
    assert taken(canary) == set()
    assert not canary.compares
    canary.turn(CanaryState.ON, "told", 2.0)
    assert taken(canary) == before
    assert canary.status == CanaryStatus(CanaryState.ON, 30, "told", 2.0)


def test_the_guards_stop_stays_until_somebody_says_otherwise() -> None:
    canary = Canary(100)
    canary.stop("worse", 5.0)
    assert (canary.status.state, canary.stops, taken(canary)) == (CanaryState.STOPPED, 1, set())
    assert canary.status.percent == 100, "what it was, for whoever turns it on again"
    canary.set_percent(10, "told", 6.0)
    assert canary.status.state is CanaryState.ON
    assert canary.stops == 1


def test_another_percentage_in_the_configuration_turns_nothing_on() -> None:
    canary = Canary(20)
    canary.configure(30, 1.0)
    assert canary.status == CanaryStatus(CanaryState.ON, 30, "as configured", 1.0)
    canary.stop("worse", 2.0)
    canary.configure(50, 3.0)
    assert canary.status == CanaryStatus(CanaryState.STOPPED, 50, "worse", 2.0)
    assert taken(canary) == set()


def test_what_was_kept_is_taken_up_again() -> None:
    canary = Canary(100)
    canary.restore(CanaryStatus(CanaryState.STOPPED, 20, "worse", 5.0))
    assert taken(canary) == set()
    with pytest.raises(ValueError):
        canary.restore(CanaryStatus(CanaryState.ON, 120, "", 0))


def test_shadow_decides_for_its_share_and_compares_nothing() -> None:
    canary = Canary(100, shadow=True)
    assert not canary.takes_all
    assert not canary.compares
    assert len(taken(canary)) == len(KEYS)
    canary.note_shadow("local")
    canary.note_shadow("local")
    assert canary.shadowed == {"local": 2}
