"""The paper's own synthetic benchmark, played on the engine model under the virtual clock.

Rule of this room: what is peculiar to that benchmark and its prototype is here, and named, so that the engine model
need not know it.

- Conversations arrive at random over ten seconds (as many as the run had), two turns each, no think time.
- The client has 50 slots; a conversation keeps its slot between its turns. The wait for one is in turn 1's TTFT.
- Pods are picked by a hash of the conversation, whatever their load. In 2 of 9 conversations the text of turn 2 changes
  that hash (turn 1 in one of the three prompt formats, turn 2 in another), and turn 2 is treated as a first turn.
- The answer comes back as text, and text does not become the very tokens that the pod generated: of a conversation's
  answer only a head of random length is still the same tokens (`answer_kept_tokens` on average); KV after that is no
  use.
"""

from __future__ import annotations

import random
import statistics
from collections import deque
from dataclasses import dataclass, field
from functools import partial

from loadtest.engine.profile import Profile
from loadtest.fit.grid import Measured, Point
from loadtest.fit.world import Turn, World

WINDOW_S = 10.0
SLOTS = 50
REHASHED = 2 / 9


@dataclass(frozen=True, slots=True)
class Client:
    """What of the benchmark's client and prototype is not known from its code."""

    answer_kept_tokens: float
    """Mean length of the head of an answer that is the same tokens when it comes back as text."""


@dataclass(slots=True)
class _Talk:
    """One conversation: where it lives, and what its turns took."""

    number: int
    arrives_s: float
    kept: int
    rehashed: bool
    places: tuple[str | None, str]
    places_again: tuple[str | None, str]
    turns: list[Turn] = field(default_factory=list)


def play(profile: Profile, client: Client, point: Point, seed: int) -> Measured:
    """One run of a point of the grid; the same seed draws the same conversations whatever the profile."""
    return _Run(profile, client, point, seed).measured()


class _Run:
    def __init__(self, profile: Profile, client: Client, point: Point, seed: int) -> None:
        self._point = point
        pods = point.layout
        self._prefill = [f"p{number}" for number in range(pods.prefill)]
        self._serving = [f"r{number}" for number in range(pods.replicas)]
        self._serving += [f"d{number}" for number in range(pods.decode)]
        self._serving += [f"l{number}" for number in range(pods.local)]
        self._world = World(profile, [*self._prefill, *self._serving])
        self._free = SLOTS
        self._queue: deque[_Talk] = deque()
        draw = random.Random(f"{point.workload}/{point.rate}/{seed}")
        self._talks = [self._draw(draw, client, number) for number in range(point.conversations)]

    def measured(self) -> Measured:
        for talk in self._talks:
            self._world.call_at(talk.arrives_s, partial(self._arrive, talk))
        end_s = self._world.run()
        first = [talk.turns[0] for talk in self._talks]
        second = [talk.turns[1] for talk in self._talks]
        out = sum(turn.output_tokens for turn in (*first, *second))
        return Measured(
            ttft1_s=statistics.fmean(talk.turns[0].first_s - talk.arrives_s for talk in self._talks),
            ttft2_s=statistics.fmean(turn.ttft_s for turn in second),
            ttft2_median_s=statistics.median(turn.ttft_s for turn in second),
            tpot1_s=statistics.fmean(turn.tpot_s for turn in first),
            tpot2_s=statistics.fmean(turn.tpot_s for turn in second),
            tokens_per_s=out / (end_s - min(talk.arrives_s for talk in self._talks)),
        )

    def _draw(self, draw: random.Random, client: Client, number: int) -> _Talk:
        mean = max(client.answer_kept_tokens, 1e-9)
        kept = min(self._point.turn1_tokens, int(draw.expovariate(1.0) * mean))
        return _Talk(
            number, draw.uniform(0.0, WINDOW_S), kept, draw.random() < REHASHED, self._pick(draw), self._pick(draw)
        )

    def _pick(self, draw: random.Random) -> tuple[str | None, str]:
        serving = draw.choice(self._serving)
        prefill = draw.choice(self._prefill) if self._prefill else None
        return (None if serving.startswith("r") else prefill), serving

    def _arrive(self, talk: _Talk) -> None:
        if self._free:
            self._free -= 1
            self._begin(talk)
        else:
            self._queue.append(talk)

    def _begin(self, talk: _Talk) -> None:
        tokens = self._point.turn1_tokens
        prefill, serving = talk.places
        prompt = ((4 * talk.number, tokens),)
        talk.turns.append(
            self._world.turn(prefill, serving, prompt, tokens, 4 * talk.number + 1, lambda: self._again(talk))
        )

    def _again(self, talk: _Talk) -> None:
        point, number = self._point, 4 * talk.number
        prompt = [(number, point.turn1_tokens), (number + 1, talk.kept)]
        prompt.append((number + 2, point.turn1_tokens - talk.kept + point.new_tokens))
        prefill, serving = talk.places_again if talk.rehashed else talk.places
        if not talk.rehashed and serving.startswith("l"):
            prefill = None
        segments = tuple((name, length) for name, length in prompt if length)
        talk.turns.append(self._world.turn(prefill, serving, segments, point.output_tokens, number + 3, self._leave))

    def _leave(self) -> None:
        if self._queue:
            self._begin(self._queue.popleft())
        else:
            self._free += 1
