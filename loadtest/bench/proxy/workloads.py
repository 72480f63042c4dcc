"""What is asked of a proxy.

Rule of this room: the figures of a workload are here and nowhere else, and a body is the same whenever it is made.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

MARK = "@@@@@@@@"
"""The load client writes the request's number here, so that every request is a conversation of its own."""

REPLY_TOKENS = 8
"""Of the first turns that lie behind a later one, and of answers that are not streamed."""

_WORDS = (
    "alpha",
    "river",
    "context",
    "because",
    "token",
    "lattice",
    "engine",
    "of",
    "the",
    "señal",
    '"quoted"',
    "line\n",
)


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests of one kind.

    tokens: of an answer. gap_us: between two of them at the pod. at_once: requests in flight. later_turn: turn 2 of
    conversations whose first turn the same proxy has served, so that it may leave the prefill pod out.
    """

    name: str
    words: str
    body_bytes: int
    tokens: int
    stream: bool
    gap_us: int
    at_once: int
    later_turn: bool = False

    @property
    def events(self) -> int:
        """Of a complete stream: the role, the tokens, the usage and [DONE]; 0 when it is not streamed."""
        return self.tokens + 3 if self.stream else 0

    @property
    def duration_ms(self) -> int:
        """Of one answer at the pod's pace."""
        return self.tokens * self.gap_us // 1000

    def body(self) -> bytes:
        """The request, with MARK where its number goes."""
        return _encode(self._messages(), self.tokens, self.stream)

    def first_turn(self) -> bytes:
        """The turn before it."""
        return _encode(self._messages()[:-2], REPLY_TOKENS, stream=False)

    def _messages(self) -> list[dict[str, Any]]:
        system = {"role": "system", "content": "You are a helpful assistant."}
        if self.later_turn:
            reply = {"role": "assistant", "content": " ".join(["token"] * REPLY_TOKENS)}
            half = self.body_bytes // 2 - 200
            return [system, _user(f"{MARK} {_text(half, 1)}"), reply, _user(_text(half, 2))]
        if self.body_bytes < 8192:
            return [system, _user(f"{MARK} {_text(self.body_bytes - 350, 1)}")]
        turns: list[dict[str, Any]] = []
        for number in range((self.body_bytes - 300) // 3900 // 2 * 2 + 1):
            says = _text(3800, number)
            turns.append({"role": "assistant", "content": says} if number % 2 else _user(says))
        turns[0]["content"] = f"{MARK} {turns[0]['content']}"
        return [system, *turns]


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _encode(messages: list[dict[str, Any]], tokens: int, stream: bool) -> bytes:
    body: dict[str, Any] = {
        "model": "mock",
        "messages": messages,
        "max_tokens": tokens,
        "temperature": 0.7,
        "top_p": 0.95,
        "stream": stream,
    }
    if stream:
        body["stream_options"] = {"include_usage": True}
    return json.dumps(body, ensure_ascii=False).encode()


def _text(size: int, seed: int) -> str:
    draw = random.Random(seed)
    words, length = [], 0
    while length < size:
        words.append(draw.choice(_WORDS))
        length += len(json.dumps(words[-1], ensure_ascii=False).encode()) - 1
    return " ".join(words)


WORKLOADS = (
    Workload("W1", "through P and D, not streamed, 2 KiB, 32 at once", 2048, REPLY_TOKENS, False, 0, 32),
    Workload("W2", "through P and D, 256 chunks as fast as they come, 32 at once", 2048, 256, True, 0, 32),
    Workload("W3-200", "through P and D, 64 chunks 20 ms apart, 200 at once", 2048, 64, True, 20_000, 200),
    Workload("W3-1000", "through P and D, 64 chunks 20 ms apart, 1,000 at once", 2048, 64, True, 20_000, 1000),
    Workload("W4", "through P and D, 256 KiB, 16 chunks as fast as they come, 16 at once", 262_144, 16, True, 0, 16),
    Workload("W5", "turn 2, straight to D, 64 chunks as fast as they come, 32 at once", 2048, 64, True, 0, 32, True),
    Workload("W6", "through P and D, 2 chunks 640 ms apart, 200 at once: requests apart", 2048, 2, True, 640_000, 200),
)


def chosen(names: str) -> list[Workload]:
    """Those named, comma-separated; "W3" stands for both of its sizes. Raises ValueError."""
    found = []
    for name in names.split(","):
        matching = [each for each in WORKLOADS if name.strip().upper() in (each.name, each.name.partition("-")[0])]
        if not matching:
            raise ValueError(f"no workload {name.strip()!r}; there are {', '.join(each.name for each in WORKLOADS)}")
        found += [each for each in matching if each not in found]
    return found
