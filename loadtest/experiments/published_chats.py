"""Conversations made up after what is published about ShareGPT and WildChat, for where the files are not.

Rule of this room: the published numbers stand in one place with their source; whoever uses these says so (`origin`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from loadtest.experiments.datasets import Filter
from loadtest.experiments.workloads import Script, TurnScript

_TRIES = 1000


@dataclass(frozen=True, slots=True)
class Published:
    """What is published of one data set.

    turns, conversations: of the 500 that the paper used, after its filter (arXiv 2603.13358, raw results).
    user_tokens, answer_tokens: mean and standard deviation of a message (arXiv 2405.01470, table 1).
    answer_s, first_token_s, token_s: of the paper's run on replicas at 2 conversations a second, from which the mean
    answer of those 500 follows, in the tokens of its own model.
    """

    turns: int
    conversations: int
    user_tokens: tuple[float, float]
    answer_tokens: tuple[float, float]
    answer_s: float
    first_token_s: float
    token_s: float

    @property
    def mean_turns(self) -> float:
        return self.turns / self.conversations

    @property
    def mean_answer_tokens(self) -> float:
        return 1 + (self.answer_s - self.first_token_s) / self.token_s


PUBLISHED = {
    "sharegpt": Published(2204, 500, (94.46, 626.39), (348.45, 269.93), 2.860, 0.038, 9.16e-3),
    "wildchat": Published(2056, 500, (295.58, 1609.18), (441.34, 410.91), 2.525, 0.037, 9.06e-3),
}


@dataclass(frozen=True, slots=True)
class PublishedChats:
    """Lengths are log-normal; turns geometric between the filter's bounds, with the published mean."""

    name: str
    published: Published
    wanted: Filter = field(default_factory=Filter)

    @property
    def origin(self) -> str:
        return (
            f"MADE UP after the published statistics of {self.name}, not the data set itself: {self.wanted}; "
            f"{self.published.mean_turns:.2f} turns and {self.published.mean_answer_tokens:.0f} tokens an answer on "
            "average, log-normal lengths"
        )

    def scripts(self, dice: random.Random) -> Iterator[Script]:
        shares = _geometric(self.wanted.min_turns, self.wanted.max_turns, self.published.mean_turns)
        counts = range(self.wanted.min_turns, self.wanted.max_turns + 1)
        while True:
            (count,) = dice.choices(counts, shares)
            yield self._script(dice, count)

    def _script(self, dice: random.Random, count: int) -> Script:
        """So many turns, that pass the filter; shorter and shorter ones when that is hard."""
        user_mean, user_spread = _log_normal(*self.published.user_tokens)
        share = self.published.answer_tokens[1] / self.published.answer_tokens[0]
        answer_mean, answer_spread = _log_normal(self.published.mean_answer_tokens, 1.0 * share, relative=True)
        for attempt in range(_TRIES):
            scale = 1.0 if attempt < 20 else 0.8 ** (attempt - 19)
            turns = tuple(
                TurnScript(
                    self._length(dice, user_mean, user_spread, scale),
                    self._length(dice, answer_mean, answer_spread, scale),
                )
                for _ in range(count)
            )
            script = Script(turns)
            if self.wanted.admits(script):
                return script
        raise AssertionError("no script passes the filter, however short")

    def _length(self, dice: random.Random, mean: float, spread: float, scale: float) -> int:
        while True:
            tokens = max(1, round(scale * dice.lognormvariate(mean, spread)))
            if tokens <= self.wanted.max_message_tokens:
                return tokens


def _log_normal(mean: float, deviation: float, *, relative: bool = False) -> tuple[float, float]:
    """Mean and deviation of the logarithm."""
    ratio = deviation if relative else deviation / mean
    variance = math.log(1.0 + ratio * ratio)
    return math.log(mean) - variance / 2, math.sqrt(variance)


def _geometric(least: int, most: int, mean: float) -> list[float]:
    """Shares of `least`, `least` + 1, …, `most`, each the same part of the one before, with that mean."""
    low, high = 1e-9, 10.0
    shares: list[float] = []
    for _ in range(60):
        ratio = (low + high) / 2
        shares = [ratio**step for step in range(most - least + 1)]
        found = sum((least + step) * share for step, share in enumerate(shares)) / sum(shares)
        low, high = (ratio, high) if found < mean else (low, ratio)
    return shares
