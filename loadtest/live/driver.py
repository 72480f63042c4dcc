"""Carries a plan out.

Rule of this room: a turn is sent when it is due, however slow the answers of others are; what makes it late (the
limit of requests in flight, its own conversation's last answer, this process) counts in its latency, which begins
when it was due. The clock and the servers are arguments.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from loadtest.live.answer import Answer
from loadtest.live.book import Book
from loadtest.live.schedule import Planned
from loadtest.live.talks import ASSUMED_TOKENS_PER_WORD, Dialogue, Source, Talk, Turn

_SPARE_TOKENS = 64
"""For what a chat template adds to a turn."""


class Clock(Protocol):
    """Seconds, of no particular beginning."""

    def now(self) -> float: ...

    async def until(self, moment_s: float) -> None:
        """Return at that moment; at once when it has passed."""
        ...


class Asks(Protocol):
    """A server that can be asked; see `client.Client`."""

    async def ask(self, body: bytes, conversation: str, turn: int, *, keep_text: bool = True) -> Answer: ...


@dataclass(frozen=True, slots=True)
class Manner:
    """How requests are made. mark: of this run, so that it meets no prefix that an earlier run left in a cache; "" for
    none. fields: of every body. max_model_len: tokens of a prompt and its answer together, None: unknown."""

    api: str = "chat"
    mark: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    max_in_flight: int = 100_000
    max_model_len: int | None = None


class Driver:
    """`await run()` once."""

    def __init__(
        self, planned: Iterable[Planned], source: Source, arms: Sequence[Asks], manner: Manner, book: Book, clock: Clock
    ) -> None:
        self._planned = planned
        self._source = source
        self._arms = arms
        self._manner = manner
        self._book = book
        self._clock = clock
        self._room = asyncio.Semaphore(manner.max_in_flight)

    async def run(self) -> None:
        """Hold all conversations; returns when the last answer has ended."""
        start_s = self._book.started_s
        async with asyncio.TaskGroup() as group:
            for planned in self._planned:
                talk = self._source.talk(planned.pair)
                conversation = _Conversation(self, planned, talk)
                first = conversation.say(talk.turns[0])  # made before it is due
                await self._clock.until(start_s + planned.due_s[0])
                group.create_task(conversation.hold(first))

    async def send(
        self, planned: Planned, name: str, number: int, due_s: float, body: bytes, *, keep_text: bool, behind: bool
    ) -> Answer:
        """One turn, at once or as soon as there is room for it. behind: the answer before it ended after it was due."""
        held_back = self._room.locked()
        async with self._room:
            self._book.sends()
            try:
                came = await self._arms[planned.arm].ask(body, name, number, keep_text=keep_text)
            except asyncio.CancelledError:
                self._book.in_flight -= 1
                raise
        self._book.ended(planned, number, due_s, came, held_back=held_back, behind=behind)
        return came

    @property
    def book(self) -> Book:
        return self._book

    @property
    def clock(self) -> Clock:
        return self._clock

    @property
    def manner(self) -> Manner:
        return self._manner


class _Conversation:
    """One user."""

    def __init__(self, driver: Driver, planned: Planned, talk: Talk) -> None:
        manner = driver.manner
        self._driver = driver
        self._planned = planned
        self._talk = talk
        self._name = f"{manner.mark or 'loadtest'}-{planned.number}"
        mark = f"[{manner.mark}-{planned.number}]" if manner.mark else ""
        self._dialogue = Dialogue(manner.api, planned.model, talk, mark, manner.fields)

    def say(self, turn: Turn) -> bytes:
        return self._dialogue.say(turn)

    async def hold(self, body: bytes) -> None:
        driver, planned = self._driver, self._planned
        turns = self._talk.turns[: len(planned.due_s)] if planned.fixed else self._talk.turns
        due_s, behind = planned.due_s[0], False
        for number in range(1, len(turns) + 1):
            is_last = number == len(turns)
            came = await driver.send(planned, self._name, number, due_s, body, keep_text=not is_last, behind=behind)
            ended_s = came.end_s - driver.book.started_s
            if came.fault is not None:
                self._leave_unsaid(number, ended_s)
                return
            if is_last:
                return
            following = turns[number]
            due_s = planned.due_s[number] if planned.fixed else ended_s + following.think_s
            behind = ended_s > due_s
            if due_s >= driver.book.window.end_s:
                return
            if self._too_long(came, following):
                driver.book.too_long += 1
                return
            self._dialogue.hear(came.text)
            body = self.say(following)
            await driver.clock.until(driver.book.started_s + due_s)

    def _leave_unsaid(self, failed: int, ended_s: float) -> None:
        """The turns behind a failed one, each as if the answers before it had taken no time."""
        due_s = ended_s
        for number, turn in enumerate(self._talk.turns[failed:], start=failed + 1):
            if self._planned.fixed and number > len(self._planned.due_s):
                return
            due_s = self._planned.due_s[number - 1] if self._planned.fixed else due_s + turn.think_s
            if due_s >= self._driver.book.window.end_s:
                return
            self._driver.book.not_sent(self._planned, number, due_s)

    def _too_long(self, came: Answer, following: Turn) -> bool:
        limit = self._driver.manner.max_model_len
        if limit is None or came.prompt_tokens is None:
            return False
        new = len(following.text.split()) * 1.5 * ASSUMED_TOKENS_PER_WORD + _SPARE_TOKENS
        return came.prompt_tokens + came.output_tokens + new + following.max_tokens > limit
