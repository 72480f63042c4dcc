"""The workloads of the experiments, said aloud: numbers of tokens become words.

Rule of this room: what is simulated can be put on a live deployment under the same name.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from gateway.ops.profile.words import CANDIDATES
from loadtest.experiments.errors import ExperimentError
from loadtest.experiments.sources import resolve
from loadtest.experiments.workloads import Script, Workload
from loadtest.live.errors import LoadtestError
from loadtest.live.talks import Talk, Turn


@dataclass(slots=True)
class Said:
    """Scripts in their order, over and over where they are few. Words are of the seed and the conversation's number."""

    workload: Workload
    seed: int
    tokens_per_word: float
    _known: list[Script] = field(default_factory=list)
    _ended: bool = False
    _coming: Iterator[Script] = field(init=False)

    def __post_init__(self) -> None:
        self._coming = self.workload.scripts(random.Random(f"scripts {self.seed}"))

    @property
    def words(self) -> str:
        return f"{self.workload.name} ({self.workload.origin}), seed {self.seed}"

    def num_turns(self, number: int) -> int:
        return len(self._script(number).turns)

    def talk(self, number: int) -> Talk:
        dice = random.Random(f"talk {self.seed} {number}")
        turns = [
            Turn(
                " ".join(dice.choices(CANDIDATES, k=max(1, round(turn.new_tokens / self.tokens_per_word)))),
                turn.output_tokens,
                turn.think_s,
            )
            for turn in self._script(number).turns
        ]
        return Talk("", tuple(turns))

    def _script(self, number: int) -> Script:
        while len(self._known) <= number and not self._ended:
            script = next(self._coming, None)
            if script is None:
                self._ended = True
                if not self._known:
                    raise LoadtestError(f"--workload {self.workload.name}: holds no conversation")
            else:
                self._known.append(script)
        return self._known[number % len(self._known)]


def named(text: str) -> Workload:
    """As `ppd-gateway simulate` names them. Raises LoadtestError."""
    try:
        return resolve(text)
    except ExperimentError as error:
        raise LoadtestError(f"--workload: {error}") from None
