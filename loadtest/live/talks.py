"""What is said: conversations before they are held.

Rule of this room: the same source and number give the same words; nothing is downloaded. The server's own replies
become the history, so only the users' side is here.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
import orjson

from gateway.ops.profile.words import CANDIDATES
from loadtest.live.errors import LoadtestError

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Turn:
    """What the user says next, `think_s` seconds after the last answer ended."""

    text: str
    max_tokens: int
    think_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Talk:
    """One conversation's users' side; system may be empty."""

    system: str
    turns: tuple[Turn, ...]


class Source(Protocol):
    """Yields conversations. words: one line for the report."""

    @property
    def words(self) -> str: ...

    def num_turns(self, number: int) -> int:
        """Of conversation `number`."""
        ...

    def talk(self, number: int) -> Talk:
        """Conversation `number`, counted from 0; the same each time."""
        ...


class Dialogue:
    """A conversation as a client keeps it. mark: goes before the first words, so that no two share a prefix."""

    def __init__(self, api: str, model: str, talk: Talk, mark: str, fields: dict[str, Any]) -> None:
        self._api = api
        self._fields = {"model": model, **fields}
        self._mark = mark
        self._messages: list[Message] = [{"role": "system", "content": talk.system}] if talk.system else []
        self._prompt = f"{talk.system}\n" if talk.system else ""

    def say(self, turn: Turn) -> bytes:
        """The body of the request for the next reply."""
        text = f"{self._mark} {turn.text}" if self._mark else turn.text
        self._mark = ""
        limit = {"max_tokens": turn.max_tokens}
        if self._api == "chat":
            self._messages.append({"role": "user", "content": text})
            return orjson.dumps({"messages": self._messages, **limit, **self._fields})
        self._prompt += f"User: {text}\nAssistant:"
        return orjson.dumps({"prompt": self._prompt, **limit, **self._fields})

    def hear(self, text: str) -> None:
        """The reply."""
        if self._api == "chat":
            self._messages.append({"role": "assistant", "content": text})
        else:
            self._prompt += f"{text}\n"


STREAMED: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}

ASSUMED_TOKENS_PER_WORD = 1.3
"""Of English, where the server does not count."""


@dataclass(frozen=True, slots=True)
class Synthetic:
    """Random words. Token counts are means of exponentials cut at a quarter and four times, so that lengths vary."""

    turns: int
    first_tokens: int
    next_tokens: int
    output_tokens: int
    think_s: float
    seed: int
    tokens_per_word: float = ASSUMED_TOKENS_PER_WORD
    fixed: bool = False

    @property
    def words(self) -> str:
        how = "exactly" if self.fixed else "on average"
        return (
            f"synthetic, seed {self.seed}: {self.turns} turns, {how} {self.first_tokens} tokens first, "
            f"{self.next_tokens} later, answers of at most {self.output_tokens}, {self.think_s:g} s to think"
        )

    def num_turns(self, number: int) -> int:
        return self.turns

    def talk(self, number: int) -> Talk:
        dice = random.Random(f"talk {self.seed} {number}")
        turns = [
            Turn(
                self._text(self._vary(self.next_tokens if turn else self.first_tokens, dice), dice),
                max(1, round(self._vary(self.output_tokens, dice))),
                self._vary(self.think_s, dice) if turn else 0.0,
            )
            for turn in range(self.turns)
        ]
        return Talk("You are a helpful assistant.", tuple(turns))

    def _vary(self, mean: float, dice: random.Random) -> float:
        share = dice.expovariate(1.0)
        return mean if self.fixed else mean * min(4.0, max(0.25, share))

    def _text(self, tokens: float, dice: random.Random) -> str:
        return " ".join(dice.choices(CANDIDATES, k=max(1, round(tokens / self.tokens_per_word))))


@dataclass(frozen=True, slots=True)
class Listed:
    """Conversations that were read, over and over."""

    name: str
    talks: Sequence[Talk]

    @property
    def words(self) -> str:
        mean = sum(len(talk.turns) for talk in self.talks) / len(self.talks)
        return f"{self.name}: {len(self.talks)} conversations of {mean:.1f} turns, over and over"

    def num_turns(self, number: int) -> int:
        return len(self.talk(number).turns)

    def talk(self, number: int) -> Talk:
        return self.talks[number % len(self.talks)]


class _FileTurn(msgspec.Struct, forbid_unknown_fields=True):
    text: str
    max_tokens: int | None = None
    think_s: float | None = None


class _FileTalk(msgspec.Struct, forbid_unknown_fields=True):
    turns: list[_FileTurn]
    system: str = ""


def from_file(path: Path, *, max_tokens: int, think_s: float) -> Listed:
    """Read JSON lines like {"system": "…", "turns": [{"text": "…", "max_tokens": 64, "think_s": 2}]}.

    max_tokens, think_s: where a turn does not say. Raises LoadtestError with the line's number.
    """
    talks = []
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise LoadtestError(f"--workload {path}: {error.strerror}") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            read = msgspec.json.decode(line, type=_FileTalk)
        except msgspec.DecodeError as error:
            raise LoadtestError(f"--workload {path}, line {number}: {error}") from None
        turns = tuple(
            Turn(
                turn.text,
                max_tokens if turn.max_tokens is None else turn.max_tokens,
                think_s if turn.think_s is None else turn.think_s,
            )
            for turn in read.turns
        )
        if not turns or any(turn.max_tokens < 1 or not 0 <= turn.think_s < 1e6 for turn in turns):
            raise LoadtestError(f"--workload {path}, line {number}: needs turns, max_tokens ≥ 1 and think_s ≥ 0")
        talks.append(Talk(read.system, turns))
    if not talks:
        raise LoadtestError(f"--workload {path}: holds no conversation")
    return Listed(path.name, talks)


def from_demo(turns: int, *, max_tokens: int, think_s: float) -> Listed:
    """The demo's conversations: a pasted document and questions about it."""
    try:
        traffic = importlib.import_module("loadtest.demo.traffic")
    except ModuleNotFoundError as error:
        raise LoadtestError(f"--workload demo: needs {error.name}: pip install 'ppd-gateway[demo]'") from None
    scripts = traffic.build(64, turns)
    talks = [
        Talk(
            script.system,
            tuple(Turn(turn.text, max_tokens, think_s if n else 0.0) for n, turn in enumerate(script.turns)),
        )
        for script in scripts
    ]
    return Listed("demo", talks)


MakeSource = Callable[[float], Source]
"""Takes the tokens per word of the server's tokenizer."""
