"""Prompts by name instead of by token.

Rule of this room: a segment is a number for 'these tokens' and how many there are; two prompts agree as far as their
segments do. Nobody can ask what the tokens are, so a prompt of 100,000 tokens costs what its few segments cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

Span = tuple[int, int, int]
"""(first token, token after the last, name of everything before and of this segment)."""


class Segments:
    """A prompt made of named pieces: `Segments([(system, 300), (question, 120)])`. Lengths are in tokens, above 0.

    The name of a block is made of the segment it ends in and all before it, so equal beginnings have equal names.
    """

    __slots__ = ("length", "spans")

    def __init__(self, parts: Iterable[tuple[int, int]] = ()) -> None:
        self.spans: tuple[Span, ...] = ()
        self.length = 0
        for name, length in parts:
            self._append(name, length)

    def __len__(self) -> int:
        return self.length

    def extended(self, name: int, length: int) -> Segments:
        """This prompt followed by one more segment. Raises ValueError for a length below 1."""
        longer = Segments()
        longer.spans, longer.length = self.spans, self.length
        longer._append(name, length)
        return longer

    def _append(self, name: int, length: int) -> None:
        if length < 1:
            raise ValueError(f"segment {name}: {length} tokens")
        self.spans = (*self.spans, following(self.spans, self.length, name, self.length + length))
        self.length += length


def following(spans: tuple[Span, ...], begin: int, name: int, end: int) -> Span:
    """The span of segment `name` after `spans`."""
    before = spans[-1][2] if spans else 0
    return begin, end, hash((before, begin, name))


def block_names(spans: Sequence[Span], size: int, first: int, end: int, salt: int) -> Iterable[int]:
    """Cache keys of the blocks `first .. end` of `size` tokens: of each, the span that its last token lies in.

    The last span has no end here: blocks beyond it are asked for as they are made.
    """
    begin_token, _, name = spans[-1]
    if begin_token < (first + 1) * size:
        base = hash((name, salt)) if salt else name
        return range(base + first, base + end)
    runs = []
    for begin_token, end_token, name in spans:
        begin_block = begin_token // size
        if begin_block >= end:
            break
        end_block = end_token // size
        if end_block > end:
            end_block = end
        if begin_block < first:
            begin_block = first
        if begin_block < end_block:
            base = hash((name, salt)) if salt else name
            runs.append(range(base + begin_block, base + end_block))
    return chain.from_iterable(runs)
