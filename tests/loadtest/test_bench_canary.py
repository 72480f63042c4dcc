"""The guard in virtual time: traffic whose turns and minutes hang together, on both sides alike or not."""

from __future__ import annotations

import dataclasses

import pytest

from gateway.core.guard import GuardSettings
from loadtest.bench.canary import World, first_alarm, samples

BUSY = World(rate=2.0, percent=20.0)
ALLOWED_PER_RUN = 0.2
QUARTER_HOUR = 0.25


def test_a_canary_at_the_margin_is_stopped_no_oftener_than_allowed() -> None:
    """Fifteen quarters of an hour of the hardest good canary: 3 alarms are allowed, more than 7 are 4 in 1000."""
    settings = GuardSettings(look_s=30.0, min_samples=30, false_alarms=ALLOWED_PER_RUN * 24 / QUARTER_HOUR)
    world = dataclasses.replace(BUSY, slower=1 + settings.latency_margin)
    alarms = sum(first_alarm(world, settings, QUARTER_HOUR, seed) is not None for seed in range(15))
    assert alarms <= 7


@pytest.mark.parametrize("bad", [{"slower": 2.0}, {"failing": 0.5}], ids=["slow", "failing"])
def test_a_bad_canary_is_stopped_within_a_quarter_of_an_hour(bad: dict[str, float]) -> None:
    world = dataclasses.replace(BUSY, **bad)
    assert first_alarm(world, GuardSettings(), QUARTER_HOUR, 1) is not None


def test_a_better_canary_is_never_stopped() -> None:
    world = dataclasses.replace(BUSY, slower=0.5)
    assert first_alarm(world, GuardSettings(), QUARTER_HOUR, 1) is None


def test_the_same_seed_is_the_same_traffic() -> None:
    assert samples(BUSY, 0.02, 3) == samples(BUSY, 0.02, 3) != samples(BUSY, 0.02, 4)
    times = [at for at, _ in samples(BUSY, 0.02, 3)]
    assert times == sorted(times)
