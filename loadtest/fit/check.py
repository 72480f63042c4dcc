"""A workload that no fit has seen, on real pods and on the engine model.

Rule of this room: the same script runs in both: the same prompts in tokens, the same starts, the same routes. Several
conversations are under way at once, so queues, batches and the prefix cache all take part, as in no question of
`sweeps`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadtest.engine.profile import Profile
from loadtest.fit.stream import Timed, body_for, hand_over, stream
from loadtest.fit.sweeps import Prompts
from loadtest.fit.world import Prompt, Turn, World


@dataclass(frozen=True, slots=True)
class Talk:
    """Two turns: the first through P and D (`pd`), the second `local` or `pd`. Tokens; start in seconds."""

    start_s: float
    first: int
    answer: int
    more: int
    last: int
    local: bool


@dataclass(frozen=True, slots=True)
class Took:
    """What one turn took, in seconds, measured and as the model says."""

    route: str
    turn: int
    ttft_s: float
    ttft_model_s: float
    tpot_s: float
    tpot_model_s: float

    @property
    def ttft_error(self) -> float:
        return self.ttft_model_s / self.ttft_s - 1

    @property
    def tpot_error(self) -> float:
        return self.tpot_model_s / self.tpot_s - 1


def script(count: int = 16, *, every_s: float = 0.8, seed: int = 7) -> list[Talk]:
    """Lengths that no question of a fit has, at random; starts somewhat apart."""
    draw = random.Random(seed)
    talks, start_s = [], 0.0
    for number in range(count):
        talks.append(
            Talk(start_s, draw.randint(150, 1900), draw.randint(20, 50), draw.randint(20, 400), 30, number % 2 == 0)
        )
        start_s += draw.expovariate(1 / every_s)
    return talks


def predict(profile: Profile, talks: Sequence[Talk]) -> list[tuple[Turn, Turn]]:
    """The model's times of both turns of every conversation."""
    world = World(profile, ("p", "d"))
    turns: list[list[Turn]] = [[] for _ in talks]
    for number, talk in enumerate(talks):
        first: Prompt = ((4 * number, talk.first),)
        # The last token of an answer has no KV, and its text is not asked back in tokens: prompts below do the same.
        second: Prompt = (*first, (4 * number + 1, talk.answer), (4 * number + 2, talk.more))

        def again(number: int = number, talk: Talk = talk, prompt: Prompt = second) -> None:
            prefill = None if talk.local else "p"
            turns[number].append(world.turn(prefill, "d", prompt, talk.last, 4 * number + 3, lambda: None))

        def begin(number: int = number, talk: Talk = talk, prompt: Prompt = first, then: object = again) -> None:
            assert callable(then)
            turns[number].append(world.turn("p", "d", prompt, talk.answer, 4 * number + 1, then))

        world.call_at(talk.start_s, begin)
    world.run()
    return [(first, second) for first, second in turns]


async def measure(model: str, prefill: str, decode: str, talks: Sequence[Talk], seed: int) -> list[tuple[Timed, Timed]]:
    """The same on real pods; the answer goes back as the very tokens (`return_token_ids`)."""
    prompts = Prompts(seed)
    began_s = time.monotonic()

    async def one(talk: Talk) -> tuple[Timed, Timed]:
        prompt, more, salt = prompts.fresh(talk.first), prompts.fresh(talk.more), prompts.salt()
        await asyncio.sleep(max(0.0, began_s + talk.start_s - time.monotonic()))
        body = body_for(model, prompt, talk.answer, salt) | {"return_token_ids": True}
        first, _ = await hand_over(prefill, decode, body)
        again = body_for(model, [*prompt, *first.token_ids, *more], talk.last, salt)
        if talk.local:
            return first, await stream(decode, again)
        return first, (await hand_over(prefill, decode, again))[0]

    return list(await asyncio.gather(*(one(talk) for talk in talks)))


def compare(
    talks: Sequence[Talk], measured: Sequence[tuple[Timed, Timed]], model: Sequence[tuple[Turn, Turn]]
) -> list[Took]:
    """Turn by turn."""
    return [
        Took(
            "pd" if number == 0 or not talk.local else "local",
            number + 1,
            real[number].ttft_s,
            said[number].ttft_s,
            real[number].tpot_s,
            said[number].tpot_s,
        )
        for talk, real, said in zip(talks, measured, model, strict=True)
        for number in (0, 1)
    ]


@dataclass(frozen=True, slots=True)
class Errors:
    """Of the turns of one route: median absolute relative errors, and of the means (bias, signed)."""

    turns: int
    ttft: float
    tpot: float
    mean_ttft: float
    mean_tpot: float


def errors(took: Sequence[Took], route: str | None = None) -> Errors:
    chosen = [each for each in took if route in (None, each.route)]

    def bias(measured: list[float], model: list[float]) -> float:
        return float(np.mean(model) / np.mean(measured) - 1)

    return Errors(
        len(chosen),
        float(np.median([abs(each.ttft_error) for each in chosen])),
        float(np.median([abs(each.tpot_error) for each in chosen])),
        bias([each.ttft_s for each in chosen], [each.ttft_model_s for each in chosen]),
        bias([each.tpot_s for each in chosen], [each.tpot_model_s for each in chosen]),
    )
