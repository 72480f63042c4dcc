"""The designed questions: what each is meant to tell apart, and the answers of real pods.

Rule of this room: one question at a time is open, and rounds go through all questions in turn, so that a slow minute of
the machine falls on all of them alike. Prompts are token ids, so lengths are exact. What a question costs on paper is
in `pods`.

- prefill: cold prompts of many lengths, one token. Fixed and per-token costs, several chunks for the long ones.
- context: a prompt whose head is cached already, some new tokens. What cached tokens cost.
- decode: a batch of sequences that all decode, at short and long contexts. The step's cost by batch and context.
- handover: prompts through P and D. What the second hop costs, by length.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from loadtest.fit.stream import PATIENCE_S, body_for, hand_over, stream

Kind: TypeAlias = Literal["prefill", "context", "decode", "handover"]

TOKEN_RANGE = 3000
"""Prompts are made of ids below this (and from 300 up): ordinary words in any vocabulary."""
PAUSE_S = 0.05
"""Between questions, so that a pod has let go of the last one."""


@dataclass(frozen=True, slots=True)
class Question:
    """tokens: new prompt tokens. context: cached ones (decode: per sequence). batch: sequences at once."""

    kind: Kind
    tokens: int
    context: int = 0
    batch: int = 1


@dataclass(frozen=True, slots=True)
class Answer:
    """seconds: the time to the first token; for decode the time per token while all are decoding.

    context: what the pod said was cached; for decode the mean number of tokens a sequence attended to.
    prefill_s: the seconds of P's leg, for handover.
    """

    question: Question
    seconds: float
    context: float
    prefill_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The questions of one round, and how often they are asked."""

    prefill: tuple[int, ...] = (64, 256, 512, 1024, 1536, 2048, 3072, 4096)
    context: tuple[int, ...] = (512, 1024, 2048, 4096)
    context_new: tuple[int, ...] = (32, 256)
    batch: tuple[int, ...] = (1, 2, 4, 8)
    batch_context: tuple[int, ...] = (64, 512, 1024)
    handover: tuple[int, ...] = (64, 512, 1024, 2048, 4096)
    decode_tokens: int = 64
    rounds: int = 5

    def questions(self) -> list[Question]:
        return [
            *(Question("prefill", tokens) for tokens in self.prefill),
            *(Question("context", new, cached) for cached in self.context for new in self.context_new),
            *(Question("decode", self.decode_tokens, cached, n) for cached in self.batch_context for n in self.batch),
            *(Question("handover", tokens) for tokens in self.handover),
        ]


QUICK = Plan(
    prefill=(64, 512, 1024, 2048),
    context=(512, 2048),
    context_new=(64,),
    batch=(1, 4),
    batch_context=(64, 768),
    handover=(64, 1024),
    decode_tokens=32,
    rounds=3,
)
"""A fit of some ten seconds."""


class Prompts:
    """Token ids that nobody has said before: a counter in the first place, words after it."""

    def __init__(self, seed: int) -> None:
        self._numbers = itertools.count(seed)

    def fresh(self, count: int) -> list[int]:
        number = next(self._numbers)
        return [300 + (number * 7919 + 31 * place) % (TOKEN_RANGE - 300) for place in range(count)]

    def salt(self) -> str:
        return f"fit-{next(self._numbers)}"


class Asker:
    """Asks a pod that serves alone (`serving`), and a prefill pod in front of it (None: no hand-overs)."""

    def __init__(self, model: str, serving: str, prefill: str | None, seed: int) -> None:
        self._model = model
        self._serving = serving
        self._prefill = prefill
        self._prompts = Prompts(seed)

    async def ask_all(self, plan: Plan, said: Callable[[int, int], None] = lambda *_: None) -> list[Answer]:
        """All questions, `plan.rounds` times, after one round that does not count for each kind."""
        questions = [question for question in plan.questions() if self._prefill or question.kind != "handover"]
        for question in {question.kind: question for question in reversed(questions)}.values():
            await self._ask(question)
        answers: list[Answer] = []
        for number, question in enumerate(self._order(questions, plan.rounds), 1):
            answer = await self._ask(question)
            if answer is not None:
                answers.append(answer)
            said(number, len(questions) * plan.rounds)
            await asyncio.sleep(PAUSE_S)
        return answers

    def _order(self, questions: list[Question], rounds: int) -> Iterator[Question]:
        for number in range(rounds):
            yield from questions if number % 2 == 0 else reversed(questions)

    async def _ask(self, question: Question) -> Answer | None:
        if question.kind == "decode":
            return await self._decode(question)
        salt = self._prompts.salt()
        prompt = self._prompts.fresh(question.context + question.tokens)
        body = body_for(self._model, prompt, 1, salt)
        if question.kind == "handover":
            assert self._prefill is not None
            timed, prefill_s = await hand_over(self._prefill, self._serving, body)
            return Answer(question, timed.ttft_s, 0.0, prefill_s)
        if question.kind == "context":
            await stream(self._serving, body | {"prompt": prompt[: question.context]})
            await asyncio.sleep(PAUSE_S)
        timed = await stream(self._serving, body)
        return Answer(question, timed.ttft_s, timed.cached_tokens)

    async def _decode(self, question: Question) -> Answer | None:
        """A batch that decodes together: gaps count from the last first token to the first end."""
        bodies = [
            body_for(self._model, self._prompts.fresh(question.context), question.tokens, self._prompts.salt())
            for _ in range(question.batch)
        ]
        async with asyncio.timeout(PATIENCE_S):
            sequences = await asyncio.gather(*(stream(self._serving, body) for body in bodies))
        begin = max(timed.token_s[0] for timed in sequences)
        end = min(timed.token_s[-1] for timed in sequences)
        means, places = [], []
        for timed in sequences:
            inside = [(place, moment) for place, moment in enumerate(timed.token_s) if begin <= moment <= end]
            if len(inside) > 1:
                (first, began_s), (last, ended_s) = inside[0], inside[-1]
                means.append((ended_s - began_s) / (last - first))
                places.append((first + last - 1) / 2)  # the gap after token i attends to i more
        if not means:  # the first had ended before the last began: a machine too busy to ask
            return None
        return Answer(question, statistics.median(means), question.context + statistics.mean(places))


def medians(answers: Sequence[Answer]) -> list[Answer]:
    """One answer per question: the middle one of its rounds. What else ran on the machine only ever adds."""
    rounds: dict[Question, list[Answer]] = {}
    for answer in answers:
        rounds.setdefault(answer.question, []).append(answer)
    return [sorted(each, key=lambda answer: answer.seconds)[(len(each) - 1) // 2] for each in rounds.values()]
