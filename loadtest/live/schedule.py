"""When each conversation begins, where and with which model.

Rule of this room: everything is decided by dice of a seed and nothing else, whatever servers answer; the same seed
gives both endpoints, and the next run, the same traffic.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from loadtest.live.talks import Source


@dataclass(frozen=True, slots=True)
class Window:
    """Seconds from the start. Turns due before warmup_s are sent but not counted; none is due from end_s on."""

    warmup_s: float
    end_s: float

    @property
    def measured_s(self) -> float:
        return self.end_s - self.warmup_s


@dataclass(frozen=True, slots=True)
class Arrivals:
    """rate: conversations per second, or turns when by_turn. lanes: conversations open at a time when by_turn."""

    rate: float
    poisson: bool = True
    by_turn: bool = False
    lanes: int = 1

    @property
    def words(self) -> str:
        kind = "Poisson" if self.poisson else "evenly spaced"
        if self.by_turn:
            return f"{self.rate:g} turns/s, {kind}, over {self.lanes} conversations at a time"
        return f"{self.rate:g} conversations/s, {kind}"

    def moments(self, end_s: float, dice: random.Random) -> Iterator[float]:
        """When something arrives, in order, before end_s."""
        moment_s = 0.0
        while True:
            moment_s += dice.expovariate(self.rate) if self.poisson else 1.0 / self.rate
            if moment_s >= end_s:
                return
            yield moment_s


@dataclass(frozen=True, slots=True)
class Planned:
    """One conversation to come.

    arm: index of the endpoint. pair: the source's number of what is said. due_s: when turn 1 is due, and every turn of
    which that is fixed beforehand; the others follow the answer before by the user's thinking time.
    """

    number: int
    pair: int
    arm: int
    model: str
    due_s: tuple[float, ...]
    fixed: bool


@dataclass(frozen=True, slots=True)
class Casting:
    """Who gets which conversation. models: with weights. paired: two in a row say the same, one to each endpoint."""

    arms: int
    models: Sequence[tuple[str, float]]
    paired: bool = True

    def pair_of(self, number: int) -> int:
        """The number of what conversation `number` says."""
        return number // 2 if self.arms == 2 and self.paired else number

    def cast(self, number: int, seed: int) -> tuple[int, str]:
        """Of conversation `number`: (arm, model)."""
        dice = random.Random(f"cast {seed} {self.pair_of(number)}")
        first = dice.randrange(self.arms)
        model = dice.choices([name for name, _ in self.models], [weight for _, weight in self.models])[0]
        swapped = self.arms == 2 and self.paired and number % 2
        return (1 - first if swapped else first), model


def plan(source: Source, arrivals: Arrivals, casting: Casting, window: Window, seed: int) -> Iterator[Planned]:
    """All conversations of a run, in the order in which they begin."""
    moments = arrivals.moments(window.end_s, random.Random(f"arrivals {seed}"))
    dues: Iterable[tuple[float, ...]] = ((moment_s,) for moment_s in moments)
    if arrivals.by_turn:
        dues = _dealt(source, arrivals.lanes, casting, moments)
    for number, due_s in enumerate(dues):
        arm, model = casting.cast(number, seed)
        yield Planned(number, casting.pair_of(number), arm, model, due_s, arrivals.by_turn)


def _dealt(source: Source, lanes: int, casting: Casting, moments: Iterable[float]) -> list[tuple[float, ...]]:
    """Arrivals are dealt to the lanes in turn; each lane holds one conversation after the other."""
    left = [0] * lanes
    open_now: list[list[float]] = [[] for _ in range(lanes)]
    begun: list[list[float]] = []
    for index, moment_s in enumerate(moments):
        lane = index % lanes
        if left[lane] == 0:
            left[lane] = source.num_turns(casting.pair_of(len(begun)))
            open_now[lane] = []
            begun.append(open_now[lane])
        left[lane] -= 1
        open_now[lane].append(moment_s)
    return [tuple(due_s) for due_s in begun]
