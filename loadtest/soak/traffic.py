"""Conversations at a steady rate, with think times of milliseconds.

Rule of this room: what a client cannot make sense of has a word of its own and is never excused.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import aiohttp
import orjson

from loadtest.soak.ledger import Ended, Ledger

TURNS = (1, 4)
THINK_S = (0.01, 0.3)
PATIENCE_S = 30.0
MOST_AT_ONCE = 150
"""Conversations. Beyond it the machine cannot keep the rate; what is not begun is counted."""

_WORDS = ("river", "engine", "cache", "window", "summer", "letter", "market", "doctor", "garden", "mountain", "student")


class Traffic:
    """Clients of one gateway."""

    def __init__(self, url: str, ledger: Ledger, rate: float, seed: int) -> None:
        self._url = url
        self._ledger = ledger
        self._rate = rate
        self._random = random.Random(seed)
        self._talks: set[asyncio.Task[None]] = set()
        self._began = time.monotonic()

    async def run(self, session: aiohttp.ClientSession, seconds: float) -> None:
        """Begin conversations for so long, then let all end."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        end = due + seconds
        while due < end:
            await asyncio.sleep(max(0.0, due - loop.time()))
            if len(self._talks) < MOST_AT_ONCE:
                self._ledger.conversations += 1
                talk = asyncio.create_task(self._talk(session))
                self._talks.add(talk)
                talk.add_done_callback(self._talks.discard)
            else:
                self._ledger.held_back += 1
            due += self._random.expovariate(self._rate)
        while self._talks:
            await asyncio.wait(list(self._talks))

    async def _talk(self, session: aiohttp.ClientSession) -> None:
        messages: list[dict[str, str]] = []
        for _ in range(self._random.randint(*TURNS)):
            text = " ".join(self._random.choices(_WORDS, k=self._random.randint(20, 120)))
            messages.append({"role": "user", "content": text})
            stream = self._random.random() < 0.7
            body = {"model": "sim", "messages": messages, "max_tokens": self._random.randint(4, 24), "stream": stream}
            began = time.monotonic()
            how, reply = await _ask(session, self._url, body)
            self._ledger.note(Ended(how, began - self._began, time.monotonic() - self._began))
            if how == "ok":
                messages.append({"role": "assistant", "content": reply})
            else:
                messages.pop()
            await asyncio.sleep(self._random.uniform(*THINK_S))


async def _ask(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> tuple[str, str]:
    """How it ended, and the reply."""
    headers = {"Content-Type": "application/json"}
    try:
        async with asyncio.timeout(PATIENCE_S):
            async with session.post(url + "/v1/chat/completions", data=orjson.dumps(body), headers=headers) as answer:
                raw = await answer.read()
    except TimeoutError:
        return "no end within 30 s", ""
    except (aiohttp.ClientError, OSError) as error:
        return f"connection: {type(error).__name__}", ""
    try:
        return _judge(answer.status, raw, bool(body["stream"]))
    except (ValueError, KeyError, IndexError, TypeError) as error:
        return f"not well-formed: {type(error).__name__}", ""


def _judge(status: int, raw: bytes, stream: bool) -> tuple[str, str]:
    if status != 200:
        orjson.loads(raw)["error"]["message"]
        return str(status), ""
    if not stream:
        return "ok", str(orjson.loads(raw)["choices"][0]["message"]["content"])
    events = raw.removesuffix(b"\n\n").split(b"\n\n")
    chunks = [orjson.loads(event.removeprefix(b"data: ")) for event in events if event != b"data: [DONE]"]
    if "error" in chunks[-1]:
        return "broken", ""
    if events[-1] != b"data: [DONE]":
        return "not well-formed: no [DONE]", ""
    return "ok", "".join(c["delta"].get("content") or "" for chunk in chunks for c in chunk["choices"])
