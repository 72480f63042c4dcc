"""What is measured: a grid of cells, each once per arm and repeat.

Rule of this room: a plan is data, the same for live and for simulated pods; it knows no pod and no clock. Order: all
of a repeat before the next, an arm at a time, and within a column (one shape) from the lowest rate up, so that an
overloaded cell ends its column.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from gateway.ops.profile import schedule
from gateway.ops.profile.errors import ProfileError
from lut.cell import Route

ARMS: tuple[Route, ...] = ("pd", "local")
MIN_CONTEXT = 32
"""A context holds at least a first message in its template and a reply."""

REPLY_TOKENS = 256
"""The part of a context that is the last answer, which P has not seen; at most half of the context."""

ASSUMED_PREFILL_TOKENS_PER_S = 20_000.0
ASSUMED_TPOT_S = 0.010
ASSUMED_TTFT_S = 0.15
ASSUMED_AT_ONCE = 64
ASSUMED_HOT_TOKENS = 500_000
"""For the estimate of a plan's duration, before anything was measured: a few H100s with an 8B model."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One workload. `reply_tokens` of the context are the answer of turn 1, the others its prompt."""

    context_tokens: int
    new_tokens: int
    output_tokens: int
    reply_tokens: int

    @property
    def total_tokens(self) -> int:
        return self.context_tokens + self.new_tokens + self.output_tokens

    def __str__(self) -> str:
        return f"ctx={self.context_tokens} in={self.new_tokens} out={self.output_tokens}"


@dataclass(frozen=True, slots=True)
class Task:
    """One raw line: one cell, arm and repeat. `samples` turns are measured, arriving at `rate` per second."""

    arm: Route
    shape: Shape
    rate: float
    repeat: int
    samples: int
    seed: str
    """The same for all arms, so that they see the same arrivals."""

    def __str__(self) -> str:
        return f"{self.arm:<5} {self.shape} q={self.rate:g} #{self.repeat}"


@dataclass(frozen=True, slots=True)
class Column:
    """The tasks that differ in their rate only, lowest first."""

    arm: Route
    repeat: int
    shape: Shape
    tasks: tuple[Task, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A grid and how often each of its cells is measured.

    samples: turns measured per cell and repeat, at least; window_s: and for at least so long.
    """

    shapes: tuple[Shape, ...]
    rates: tuple[float, ...]
    arms: tuple[Route, ...] = ARMS
    samples: int
    window_s: float
    repeats: int
    seed: int = 1

    def __post_init__(self) -> None:
        _increasing("--rates", self.rates)
        if self.samples < 2:
            raise ProfileError("--samples: at least 2 turns are needed")
        if self.repeats < 1:
            raise ProfileError("--repeats: must be 1 or more")
        if not self.arms or len(set(self.arms)) != len(self.arms):
            raise ProfileError("--arms: name each arm once")
        if not self.shapes:
            raise ProfileError("the plan is empty: no cell fits")

    @property
    def num_tasks(self) -> int:
        return len(self.shapes) * len(self.rates) * len(self.arms) * self.repeats

    def columns(self) -> Iterator[Column]:
        """All columns in the order of measuring."""
        for repeat, arm, shape in itertools.product(range(self.repeats), self.arms, self.shapes):
            yield Column(arm, repeat, shape, tuple(self._task(arm, shape, rate, repeat) for rate in self.rates))

    def tasks(self) -> Iterator[Task]:
        for column in self.columns():
            yield from column.tasks

    def up_to(self, max_model_len: int) -> Plan:
        """The plan without what no pod could hold."""
        return replace(self, shapes=tuple(shape for shape in self.shapes if shape.total_tokens <= max_model_len))

    def _task(self, arm: Route, shape: Shape, rate: float, repeat: int) -> Task:
        samples = max(self.samples, math.ceil(rate * self.window_s))
        return Task(arm, shape, rate, repeat, samples, f"{self.seed}/{shape}/{rate:g}/{repeat}")


def grid(
    contexts: Sequence[int], news: Sequence[int], outputs: Sequence[int], reply_tokens: int = REPLY_TOKENS
) -> tuple[Shape, ...]:
    """Every combination. Raises ProfileError for values that are not increasing or not possible."""
    for flag, values in (("--contexts", contexts), ("--news", news), ("--outputs", outputs)):
        _increasing(flag, values)
    if contexts[0] < MIN_CONTEXT:
        raise ProfileError(f"--contexts: {contexts[0]} is too small, a first turn and its answer need {MIN_CONTEXT}")
    if reply_tokens < 1:
        raise ProfileError("--reply-tokens: must be 1 or more")
    return tuple(
        Shape(context, new, output, min(reply_tokens, context // 2))
        for context, new, output in itertools.product(contexts, news, outputs)
    )


def _increasing(flag: str, values: Sequence[float]) -> None:
    if not values:
        raise ProfileError(f"{flag}: is empty")
    if not all(0 < value < 1e9 for value in values):
        raise ProfileError(f"{flag}: every value must be above 0")
    for before, after in pairwise(values):
        if not before < after:
            raise ProfileError(f"{flag}: not increasing: {before:g} before {after:g}")


def estimate_s(task: Task) -> float:
    """Roughly how long a task takes on pods that nothing is known of yet."""
    shape = task.shape
    turn_s = ASSUMED_TTFT_S + shape.new_tokens / ASSUMED_PREFILL_TOKENS_PER_S + shape.output_tokens * ASSUMED_TPOT_S
    conversations = schedule.conversations_needed(task.samples, task.rate, turn_s)
    conversations = min(conversations, max(1, ASSUMED_HOT_TOKENS // shape.total_tokens))
    prefill_s = conversations * shape.context_tokens / ASSUMED_PREFILL_TOKENS_PER_S
    reply_s = math.ceil(conversations / ASSUMED_AT_ONCE) * shape.reply_tokens * ASSUMED_TPOT_S
    turns = schedule.ramp_turns(task.rate, turn_s) + task.samples
    return prefill_s + reply_s + turns / task.rate + turn_s
