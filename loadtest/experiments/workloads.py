"""Conversations as numbers: how many tokens are said, how many answered, how long people think.

Rule of this room: a workload makes scripts from dice and says where it is from (`origin`, which every report repeats).
A script knows nothing of pods or policies.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from loadtest.experiments.errors import ExperimentError


class TurnScript(NamedTuple):
    """One turn. new_tokens: what it adds to the prompt, besides the last answer; think_s: between that and this turn.

    not_before_s: of the experiment, for later turns that come at a time of their own.
    """

    new_tokens: int
    output_tokens: int
    think_s: float = 0.0
    not_before_s: float = 0.0


class Script(NamedTuple):
    """One conversation, at least one turn. tenant: whose it is. at_s: when it begins, where that was recorded."""

    turns: tuple[TurnScript, ...]
    tenant: str = ""
    at_s: float | None = None

    @property
    def total_tokens(self) -> int:
        return sum(turn.new_tokens + turn.output_tokens for turn in self.turns)


class Workload(Protocol):
    """Where scripts come from."""

    @property
    def name(self) -> str: ...

    @property
    def origin(self) -> str:
        """For the report: measured, published or made up, and with what parameters."""

    def scripts(self, dice: random.Random) -> Iterator[Script]:
        """Scripts without end, or as many as there are."""


@dataclass(frozen=True, slots=True)
class TwoTurns:
    """A synthetic workload of the paper: two turns, the second at once."""

    name: str
    first: TurnScript
    second: TurnScript

    @property
    def origin(self) -> str:
        first, second = self.first, self.second
        return (
            f"synthetic, as in the paper: {first.new_tokens}→{first.output_tokens} tokens, "
            f"then {second.new_tokens}→{second.output_tokens}, no time to think"
        )

    @property
    def context_tokens(self) -> int:
        """Before the second turn."""
        return self.first.new_tokens + self.first.output_tokens

    def scripts(self, dice: random.Random) -> Iterator[Script]:
        script = Script((self.first, self.second))
        while True:
            yield script


@dataclass(frozen=True, slots=True)
class LongTurns:
    """Several turns of one kind, with lengths spread around means and exponential thinking.

    spread: standard deviation of the logarithm of a length; 0 for exact ones.
    """

    name: str
    num_turns: int
    first_tokens: int
    new_tokens: int
    output_tokens: int
    think_s: float = 0.0
    spread: float = 0.0

    @property
    def origin(self) -> str:
        spread = f", lengths log-normal with sigma {self.spread:g}" if self.spread else ""
        think = f", {self.think_s:g} s to think on average" if self.think_s else ", no time to think"
        return (
            f"made up: {self.num_turns} turns, first {self.first_tokens} tokens, then {self.new_tokens}, "
            f"answers {self.output_tokens}{spread}{think}"
        )

    def scripts(self, dice: random.Random) -> Iterator[Script]:
        while True:
            yield Script(tuple(self._turn(dice, number) for number in range(self.num_turns)))

    def _turn(self, dice: random.Random, number: int) -> TurnScript:
        new = self._length(dice, self.first_tokens if number == 0 else self.new_tokens)
        output = self._length(dice, self.output_tokens)
        think_s = dice.expovariate(1.0 / self.think_s) if self.think_s and number else 0.0
        return TurnScript(new, output, think_s)

    def _length(self, dice: random.Random, mean: int) -> int:
        if not self.spread:
            return mean
        return max(1, round(mean * dice.lognormvariate(-self.spread * self.spread / 2, self.spread)))


@dataclass(frozen=True, slots=True)
class Recorded:
    """Scripts from a file, in its order; from the start again when there are too few, if `repeat`."""

    name: str
    origin: str
    recorded: Sequence[Script]
    repeat: bool = False

    def scripts(self, dice: random.Random) -> Iterator[Script]:
        yield from self.recorded
        while self.repeat:
            yield from self.recorded


@dataclass(frozen=True, slots=True)
class Mixed:
    """Each conversation is of one of several workloads, by shares that sum to any number above 0."""

    parts: tuple[tuple[float, Workload], ...]

    @property
    def name(self) -> str:
        return "+".join(f"{share:g}*{part.name}" for share, part in self.parts)

    @property
    def origin(self) -> str:
        return "; ".join(f"{share:g} × {part.name}: {part.origin}" for share, part in self.parts)

    def scripts(self, dice: random.Random) -> Iterator[Script]:
        shares = [share for share, _ in self.parts]
        sources = [part.scripts(random.Random(dice.random())) for _, part in self.parts]
        while True:
            (source,) = dice.choices(sources, shares)
            script = next(source, None)
            if script is None:
                return
            yield script


_FIRST = {"small": (128, 128), "large": (1024, 1024)}
_SECOND = {
    "tiny": (16, 32),
    "short_gen": (32, 256),
    "long_gen": (32, 512),
    "very_long_gen": (64, 1024),
    "small_bal": (64, 64),
    "mid_bal": (128, 128),
    "mid_paste": (256, 64),
    "big_paste": (512, 64),
    "huge_paste": (1024, 32),
}
"""Input and output tokens, from the paper."""

PAPER = tuple(
    TwoTurns(f"{size}_{kind}", TurnScript(*first), TurnScript(*second))
    for size, first in _FIRST.items()
    for kind, second in _SECOND.items()
)
"""The paper's 18 synthetic workloads."""

OTHERS: tuple[Workload, ...] = (
    LongTurns("chat", 8, 256, 128, 128, think_s=15.0, spread=0.6),
    LongTurns("steady", 8, 1024, 64, 128),
    LongTurns("agent", 16, 3000, 600, 80, think_s=1.0, spread=0.8),
    LongTurns("paste", 5, 2000, 1500, 100, think_s=20.0, spread=0.5),
)

SYNTHETIC: dict[str, Workload] = {workload.name: workload for workload in (*PAPER, *OTHERS)}


def synthetic(name: str) -> Workload:
    """By name. Raises ExperimentError."""
    found = SYNTHETIC.get(name)
    if found is None:
        raise ExperimentError(f"unknown workload {name!r}; known: {', '.join(SYNTHETIC)}")
    return found
