"""What one sequence consists of, as far as cache, hand-over and continuation care.

Rule of this room: the scheduler counts tokens and knows none. `TokenText` has every token, names blocks by content and
notices wrong KV (HTTP pods, real tokens); `NamedText` has names only (experiments). Both name equal beginnings equally,
so both have the same hits, evictions and times.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from loadtest.engine import tokens
from loadtest.engine.blocks import Block, BlockPool
from loadtest.engine.segments import Segments, block_names, following
from loadtest.engine.tokens import TokenChain


class Text(Protocol):
    """The tokens of a sequence, in blocks."""

    def keys(self, first: int, end: int) -> Iterable[int]:
        """Cache keys of the whole blocks `first .. end`."""
        ...

    def fill(self, pool: BlockPool, blocks: Sequence[Block], first: int, end: int) -> None:
        """The whole blocks `first .. end` are computed: give them content and name."""
        ...

    def fill_open(self, pool: BlockPool, block: Block, index: int, count: int) -> None:
        """Block `index` holds `count` tokens and will get no more."""
        ...

    def continue_from(self, hits: Sequence[Block]) -> None:
        """What is computed now attends to these blocks and nothing else before it."""
        ...

    def receive(
        self,
        pool: BlockPool,
        blocks: Sequence[Block],
        first: int,
        counts: Sequence[int],
        digests: Sequence[int],
    ) -> None:
        """Blocks from `first` on have been read from another pod, `counts` tokens each, with these digests."""
        ...


class TokenText:
    """Real tokens. `taint` is not 0 once any KV this sequence attends to is not what it should be."""

    __slots__ = ("_salt", "_size", "chain", "state", "taint")

    def __init__(self, prompt: Sequence[int], size: int, salt: int) -> None:
        self.chain = TokenChain(prompt, size)
        self.taint = 0
        self.state: int | None = None
        """Seed of the continuation, fixed when the whole prompt is there."""
        self._size = size
        self._salt = salt

    def key(self, index: int) -> int:
        """The cache key of block `index`."""
        return tokens.salted(self.chain.digests[index], self._salt)

    def keys(self, first: int, end: int) -> Iterable[int]:
        return map(self.key, range(first, end))

    def fill(self, pool: BlockPool, blocks: Sequence[Block], first: int, end: int) -> None:
        for index in range(first, end):
            self.fill_open(pool, blocks[index], index, self._size)
            pool.publish(blocks[index], self.key(index))

    def fill_open(self, pool: BlockPool, block: Block, index: int, count: int) -> None:
        packed = self.chain.block(index, count)
        pool.write(block, before=self.chain.before_block(index), packed=packed, taint=self.taint)

    def continue_from(self, hits: Sequence[Block]) -> None:
        self.taint = 0
        for block in hits:
            if block.taint:
                self.taint = tokens.mix(self.taint, block.taint)

    def receive(
        self,
        pool: BlockPool,
        blocks: Sequence[Block],
        first: int,
        counts: Sequence[int],
        digests: Sequence[int],
    ) -> None:
        for index, count, digest in zip(range(first, len(blocks)), counts, digests, strict=True):
            expected = self.chain.block_digest(index, count)
            taint = 0 if digest == expected else tokens.mix(digest, expected) | 1
            self.taint = tokens.mix(self.taint, taint) if taint else self.taint
            packed = self.chain.block(index, count)
            pool.write(blocks[index], before=self.chain.before_block(index), packed=packed, taint=taint)
            if count == self._size:
                pool.publish(blocks[index], self.key(index))

    def seed(self) -> int:
        """What the continuation depends on: the prompt, and whether its KV is right."""
        if self.state is None:
            digest = self.chain.text_digest()
            self.state = tokens.mix(digest, self.taint) if self.taint else digest
        return self.state


class NamedText:
    """Segments of a prompt, and the segment that the answer will be."""

    __slots__ = ("_salt", "_size", "_spans")

    def __init__(self, prompt: Segments, answer: int, longest: int, size: int, salt: int) -> None:
        self._spans = (*prompt.spans, following(prompt.spans, prompt.length, answer, longest))
        self._size = size
        self._salt = salt

    def keys(self, first: int, end: int) -> Iterable[int]:
        return block_names(self._spans, self._size, first, end, self._salt)

    def fill(self, pool: BlockPool, blocks: Sequence[Block], first: int, end: int) -> None:
        pool.publish_all(blocks[first:end], self.keys(first, end))

    def fill_open(self, pool: BlockPool, block: Block, index: int, count: int) -> None:
        """Nothing to say: an open block has no name."""

    def continue_from(self, hits: Sequence[Block]) -> None:
        """Nothing to remember: names do not go bad."""

    def receive(
        self,
        pool: BlockPool,
        blocks: Sequence[Block],
        first: int,
        counts: Sequence[int],
        digests: Sequence[int],
    ) -> None:
        whole = len(blocks) if counts[-1] == self._size else len(blocks) - 1
        self.fill(pool, blocks, first, whole)
