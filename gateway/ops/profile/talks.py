"""The conversations that are measured.

Rule of this room: real ones. Turn 1 goes through the gateway like any first turn, so its KV lies on a decode pod and,
without the answer, on a prefill pod; what is measured is the turn after it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp
import msgspec

from gateway.ops.profile.client import Answer, ChatClient, Message
from gateway.ops.profile.errors import ProfileError
from gateway.ops.profile.plan import Shape
from gateway.ops.profile.words import CANDIDATES, Words, learn_words

_PROBE_WORDS = (64, 320)
_PROBE_REPLY = 32
_PROBES = 3


class _Counted(msgspec.Struct):
    count: int


@dataclass(frozen=True, slots=True)
class Talk:
    """A conversation after its first turn. prompt_tokens: of that turn; resident_tokens: and of its answer."""

    messages: tuple[Message, ...]
    prompt_tokens: int
    resident_tokens: int


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes turns of wanted lengths. The overheads are what the chat template adds to the user's text."""

    words: Words
    first_overhead: float
    next_overhead: float

    def first(self, shape: Shape, dice: random.Random) -> tuple[Message, ...]:
        """The messages of a first turn which, with its answer, makes the context of `shape`."""
        tokens = shape.context_tokens - shape.reply_tokens - round(self.first_overhead)
        return ({"role": "user", "content": self.words.text(tokens, dice)},)

    def following(self, talk: Talk, shape: Shape, dice: random.Random) -> tuple[Message, ...]:
        """The messages of the measured turn."""
        tokens = shape.new_tokens - round(self.next_overhead)
        return (*talk.messages, {"role": "user", "content": self.words.text(tokens, dice)})


def after(messages: tuple[Message, ...], answer: Answer) -> Talk:
    """The conversation with the answer in it."""
    whole = (*messages, {"role": "assistant", "content": answer.text})
    return Talk(whole, answer.prompt_tokens, answer.prompt_tokens + answer.output_tokens)


async def learn_to_write(client: ChatClient, url: str, model: str, dice: random.Random) -> Writer:
    """Find out how this model counts, with a few short conversations."""
    async with aiohttp.ClientSession() as session:

        async def count(text: str) -> int | None:
            asked = {"model": model, "prompt": text, "add_special_tokens": False}
            try:
                async with session.post(f"{url}/tokenize", json=asked) as response:
                    return (
                        msgspec.json.decode(await response.read(), type=_Counted).count
                        if response.status == 200
                        else None
                    )
            except (aiohttp.ClientError, TimeoutError, msgspec.MsgspecError):
                return None

        words = await learn_words(count)
    if words is None:
        words = await _words_by_usage(client, url, dice)
    first, following = [], []
    for _ in range(_PROBES):
        asked = ({"role": "user", "content": words.text(_PROBE_WORDS[0], dice)},)
        answer = await probe(client, url, asked, _PROBE_REPLY)
        talk = after(asked, answer)
        again = (*talk.messages, {"role": "user", "content": words.text(_PROBE_WORDS[0], dice)})
        second = await probe(client, url, again, 1)
        first.append(answer.prompt_tokens - _PROBE_WORDS[0])
        following.append(second.prompt_tokens - talk.resident_tokens - _PROBE_WORDS[0])
    return Writer(words, _middle(first), _middle(following))


async def probe(client: ChatClient, url: str, messages: Sequence[Message], output_tokens: int) -> Answer:
    """A turn that must succeed."""
    answer = await client.turn(url, messages, output_tokens)
    if answer.problem is not None:
        raise ProfileError(f"a turn on idle pods failed: {answer.problem}")
    return answer


async def _words_by_usage(client: ChatClient, url: str, dice: random.Random) -> Words:
    """Tokens per word from two prompts of different length."""
    counts = []
    for length in _PROBE_WORDS:
        text = " ".join(dice.choices(CANDIDATES, k=length))
        counts.append((await probe(client, url, [{"role": "user", "content": text}], 1)).prompt_tokens)
    return Words(CANDIDATES, max(0.1, (counts[1] - counts[0]) / (_PROBE_WORDS[1] - _PROBE_WORDS[0])))


def _middle(values: list[int]) -> float:
    return float(sorted(values)[len(values) // 2])
