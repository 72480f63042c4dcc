"""When conversations begin.

Rule of this room: open loop. The times follow from the seed and the rates alone; nobody waits for an answer. A rate
that changes stretches the same dice, so two rates meet the same conversations in the same order.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple


class Rate(NamedTuple):
    """From `since_s` on, so many conversations begin per second."""

    since_s: float
    per_second: float


def poisson(rates: Sequence[Rate], dice: random.Random) -> Iterator[float]:
    """Seconds, increasing; ends when the last rate is 0. `rates`: in order of time, the first since 0."""
    return _at_work(itertools.accumulate(dice.expovariate(1.0) for _ in itertools.count()), rates)


def even(rates: Sequence[Rate]) -> Iterator[float]:
    """The same gap between any two while the rate stays."""
    return _at_work((float(number) for number in itertools.count(1)), rates)


def given(times_s: Iterable[float]) -> Iterator[float]:
    """The times of a trace, in order."""
    return iter(sorted(times_s))


def _at_work(works: Iterable[float], rates: Sequence[Rate]) -> Iterator[float]:
    """The times at which the integral of the rate reaches each of `works`, which increase."""
    index, since_s, done = 0, rates[0].since_s, 0.0
    for work in works:
        while True:
            rate = rates[index].per_second
            ends_s = rates[index + 1].since_s if index + 1 < len(rates) else None
            time_s = since_s + (work - done) / rate if rate > 0 else None
            if time_s is not None and (ends_s is None or time_s <= ends_s):
                yield time_s
                break
            if ends_s is None:
                return
            done += rate * (ends_s - since_s)
            index, since_s = index + 1, ends_s
