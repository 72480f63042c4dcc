"""Conversations that begin at a steady rate, with think times of milliseconds.

Rule of this room: the load is open: a conversation begins when it is due, whatever became of the others, and how late
it was is written down.
"""

from __future__ import annotations

import asyncio
import random
import time
from array import array
from typing import Any

import orjson

from loadtest.live.client import Client, Patience
from loadtest.live.endpoint import endpoint_of
from loadtest.soak.answers import OK, judge
from loadtest.soak.ledger import Ended, Ledger
from loadtest.soak.pods import ECHO, Pod

TURNS = (2, 4)
THINK_S = (0.05, 0.5)
MAX_TOKENS = (4, 24)
STREAMED = 0.7
PATIENCE = Patience(connect_s=10.0, first_s=30.0, total_s=30.0)
MOST_AT_ONCE = 3000
"""Conversations. Beyond it the machine cannot keep the rate; what is not begun is counted."""
_TEXTS = 256
BEFORE_S = 1e6
"""What happens before the run has times far below zero, where no fault is."""

_WORDS = ("river", "engine", "cache", "window", "summer", "letter", "market", "doctor", "garden", "mountain", "student")


class Traffic:
    """Clients of one gateway. pod: one of those behind it. late_s: of the beginning of each conversation.

    most_at_once: conversations.
    """

    def __init__(self, url: str, pod: Pod, ledger: Ledger, rate: float, seed: int) -> None:
        self._client = Client(endpoint_of(url), "chat", PATIENCE, time.monotonic)
        self._pod = pod
        self._ledger = ledger
        self._rate = rate
        self._random = random.Random(seed)
        self._texts = [" ".join(self._random.choices(_WORDS, k=self._random.randint(20, 120))) for _ in range(_TEXTS)]
        self._talks: set[asyncio.Task[None]] = set()
        self._began = time.monotonic() + BEFORE_S
        self._number = 0
        self.late_s = array("d")
        self.most_at_once = 0

    async def run(self, seconds: float) -> None:
        """Begin conversations for so long, then let all end."""
        now = time.monotonic
        self._began = due = now()
        end = due + seconds
        while due < end:
            if (wait := due - now()) > 0:
                await asyncio.sleep(wait)
            if len(self._talks) < MOST_AT_ONCE:
                self.late_s.append(now() - due)
                self._begin()
            else:
                self._ledger.held_back += 1
                await asyncio.sleep(0)
            due += self._random.expovariate(self._rate)
        while self._talks:
            await asyncio.wait(list(self._talks))

    async def calm(self, count: int) -> None:
        """So many conversations, one after the other, without thinking; no connection stays open."""
        for _ in range(count):
            self._begin(thinks=False)
            await asyncio.wait(list(self._talks))
        self.close()

    @property
    def opened(self) -> int:
        """Connections to the gateway so far."""
        return self._client.opened

    def close(self) -> None:
        """Hang up."""
        self._client.close()

    def _begin(self, *, thinks: bool = True) -> None:
        self._ledger.conversations += 1
        self._number += 1
        talk = asyncio.create_task(self._talk(self._number, thinks))
        self._talks.add(talk)
        talk.add_done_callback(self._ended)
        self.most_at_once = max(self.most_at_once, len(self._talks))

    def _ended(self, talk: asyncio.Task[None]) -> None:
        self._talks.discard(talk)
        if not talk.cancelled() and (error := talk.exception()) is not None:
            raise error

    async def _talk(self, number: int, thinks: bool) -> None:
        messages: list[dict[str, str]] = []
        dice = self._random
        for turn in range(dice.randint(*TURNS)):
            if turn and thinks:
                await asyncio.sleep(dice.uniform(*THINK_S))
            mark = f"talk-{number:07d}-{turn:03d}"
            messages.append({"role": "user", "content": f"{ECHO}{mark} {dice.choice(self._texts)}"})
            reply = await self._ask(messages, mark, dice.randint(*MAX_TOKENS), dice.random() < STREAMED)
            if reply is None:
                messages.pop()
            else:
                messages.append({"role": "assistant", "content": reply})

    async def _ask(self, messages: list[dict[str, str]], mark: str, max_tokens: int, stream: bool) -> str | None:
        body: dict[str, Any] = {"model": self._pod.model, "messages": messages, "max_tokens": max_tokens}
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        began = time.monotonic()
        answer = await self._client.ask_plain("POST", "/v1/chat/completions", orjson.dumps(body), mark)
        expected = f"{mark}token{' token' * (max_tokens - 1)}" if self._pod.echoes else None
        how, reply = judge(answer, stream=stream, max_tokens=max_tokens, expected=expected)
        self._ledger.note(Ended(how, mark, began - self._began, time.monotonic() - self._began))
        return reply if how == OK else None
