"""Text of a wanted number of tokens.

Rule of this room: only words that this model's tokenizer makes one token of, as far as it can be asked; else words at
the measured number of tokens each. No two texts begin alike.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

Count = Callable[[str], Awaitable[int | None]]
"""Tokens of a text, None when that cannot be asked."""

_TEXT = (
    "the of and to in is it for was on are as with his they at be this from have or by one had not but what all were "
    "when we there can an your which their said if do will each about how up out them then she many some so these "
    "would other into has more her two like him see time could no make than first been its who now people my made "
    "over did down only way find use may water long little very after words called just where most know get through "
    "back much good new write our me man too any day same right look think also around another came come work three "
    "must because does part even place well such here take why help put different away again off went old number"
)
CANDIDATES = _TEXT.split()
_ENOUGH = 24
_REPEATED = 8
_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Words:
    """Words that make `tokens_per_word` tokens each."""

    words: Sequence[str]
    tokens_per_word: float = 1.0

    def text(self, tokens: int, dice: random.Random) -> str:
        """At least one word."""
        return " ".join(dice.choices(self.words, k=max(1, round(tokens / self.tokens_per_word))))


def batched(words: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    """`size` of them at a time."""
    return (words[start : start + size] for start in range(0, len(words), size))


async def learn_words(count: Count) -> Words | None:
    """Find words of one token each, or how many tokens words have; None when the tokenizer cannot be asked."""
    sample = " ".join(CANDIDATES)
    together = await count(sample)
    if together is None:
        return None
    counts: list[int | None] = []
    for words in batched(CANDIDATES, _AT_ONCE):
        counts += await asyncio.gather(*(count(" ".join([word] * _REPEATED)) for word in words))
    single = [word for word, tokens in zip(CANDIDATES, counts, strict=True) if tokens == _REPEATED]
    if len(single) >= _ENOUGH:
        return Words(single)
    return Words(CANDIDATES, together / len(CANDIDATES))
