"""When turns arrive.

Rule of this room: open loop. An arrival never waits for an answer, and the times are fixed by the seed before the
first turn is sent.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from typing import TypeVar

RAMP_TURNS_LONG = 1.25
"""Turns that are not measured arrive first, for so many times the length of a turn on idle pods."""
SHORTEST_RAMP_S = 1.0

HOT_SHARE = 0.75
"""Of the pods' KV caches, for the conversations of one cell. When that is too few, they are used more than once."""

T = TypeVar("T")


def arrivals(rate: float, seed: str, ramp: int, samples: int) -> Iterator[float]:
    """Seconds since the start, without end: ramp, measured turns, then the tail.

    A Poisson process, given that the ramp's turns come in exactly ramp / rate seconds, the measured ones in
    samples / rate, and so on: so few turns would else come at any rate but the wanted one.
    """
    dice = random.Random(f"arrivals/{seed}")
    began_s = 0.0
    for count in itertools.chain((ramp, samples), itertools.repeat(samples)):
        length_s = count / rate
        yield from sorted(began_s + dice.random() * length_s for _ in range(count))
        began_s += length_s


def ramp_turns(rate: float, idle_turn_s: float) -> int:
    """How many turns come before the first measured one, until as many are in flight as there will be."""
    return round(rate * max(SHORTEST_RAMP_S, RAMP_TURNS_LONG * idle_turn_s))


def conversations_needed(samples: int, rate: float, idle_turn_s: float) -> int:
    """Ramp, measured turns, and those that keep up the load until the last measured turn has ended."""
    return samples + 2 * ramp_turns(rate, idle_turn_s)


def conversations_that_fit(hot_tokens: int | None, tokens: int) -> int:
    """How many conversations of so many tokens the pods' caches hold side by side, with room to spare; at least 1."""
    return 1 << 30 if hot_tokens is None else max(1, math.floor(HOT_SHARE * hot_tokens / tokens))


def shuffled(conversations: Sequence[T], seed: str) -> list[T]:
    """The order in which conversations go on: not that in which they were placed on the pods."""
    return random.Random(f"order/{seed}").sample(conversations, len(conversations))
