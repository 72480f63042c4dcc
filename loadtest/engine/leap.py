"""A run of decode steps that are alike.

Rule of this room: times only. Each step reads as many KV tokens more as sequences run, and a step's cost is linear in
them (`StepCosts.duration_s`), so step i takes `first_s + i * growth_s` and j steps take a sum that needs no loop.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from loadtest.engine.request import EngineOutput, Job


@dataclass(slots=True)
class Leap:
    """`steps` steps of `jobs` from `begin_s` on. `applied`: the engine's state is that at the end."""

    begin_s: float
    steps: int
    first_s: float
    growth_s: float
    jobs: list[Job]
    applied: bool = False
    outputs: list[EngineOutput] = field(default_factory=list)

    def at(self, steps: int) -> float:
        """When so many steps are over."""
        return self.begin_s + steps * self.first_s + self.growth_s * (steps * (steps - 1) // 2)

    @property
    def end_s(self) -> float:
        return self.at(self.steps)

    def limit(self, when: float) -> float | None:
        """End with the first step that is over at `when` or later. Returns the new end, None if it stays."""
        if self.applied or self.at(self.steps - 1) < when:
            return None
        self.steps = self._over(when)
        return self.end_s

    def _over(self, when: float) -> int:
        """The least number of steps, at least 1 and below `steps`, that are not over before `when`."""
        left_s, first_s, growth_s = when - self.begin_s, self.first_s, self.growth_s
        if left_s <= first_s:
            return 1
        if growth_s > 0.0:
            half = first_s - growth_s / 2
            steps = (math.sqrt(half * half + 2 * growth_s * left_s) - half) / growth_s
        else:
            steps = left_s / first_s
        guess = min(max(1, math.ceil(steps)), self.steps - 1)
        while guess > 1 and self.at(guess - 1) >= when:
            guess -= 1
        while self.at(guess) < when:
            guess += 1
        return guess
