"""Prompts as chains of hashes, so that the next turn of a conversation is found from its own text.

Rule of this room: a chain is rooted in (tenant, model, cache salt), so equal words of two tenants never meet. A
chat prompt is hashed message by message. A completions prompt has no joints; it is hashed at every block of bytes
so that the exact length of an earlier prompt can be found again in a longer one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Protocol

import xxhash

BLOCK_BYTES = 1024

HEAD_BYTES = 2048
"""More than the head of a reply can take."""

Lengths = Mapping[bytes, Mapping[int, int]]
"""Block hash → offset within the next block at which an earlier prompt ended → how many ended there."""


def root_of(*parts: str) -> bytes:
    """The root of all chains of one (tenant, model, cache salt)."""
    return xxhash.xxh3_128_digest("\0".join([f"{len(part)}:{part}" for part in parts]).encode())


class Chain(Protocol):
    """A prompt to recognise. Lengths are in messages or bytes; hashes are 16 bytes."""

    @property
    def whole(self) -> bytes:
        """Hash of the whole prompt."""

    @property
    def length(self) -> int:
        """How long the whole prompt is."""

    @property
    def has_replies(self) -> bool:
        """False for a prompt that shows no earlier answer, hence cannot be a later turn."""

    def prefixes(self, lengths: Lengths) -> Iterator[tuple[int, bytes]]:
        """(length, hash) of every prefix that may be an earlier prompt, the longest first."""

    def reply_follows(self, length: int, head: bytes) -> bool:
        """True when the reply with that head comes right after the prefix of that length."""

    @property
    def thought(self) -> int:
        """How much comes before the first reply that came back with its reasoning; -1 when none did."""

    def prefix(self, length: int) -> bytes:
        """Hash of the prefix of that length, which is one of those that may be an earlier prompt."""

    def keeps_thoughts(self, length: int) -> bool:
        """True when the reply right after that prefix came back with its reasoning, and the model gets to see it."""

    def reply_at(self, length: int) -> bytes | None:
        """The head of the reply right after the prefix of that length, as far as it can be told from the prompt."""

    def may_be_answered(self, length: int) -> bool:
        """False when the prefix of that length is surely no earlier prompt: no reply follows it."""

    def blocks(self) -> Sequence[bytes]:
        """Hashes behind which earlier prompts may have ended, the longest prefix first; none for a chat."""

    def joint(self) -> tuple[bytes, int] | None:
        """Where to remember the length of this prompt: (block hash, offset), or None if it needs no memory."""


class BeginsWithReply(Protocol):
    """Says whether a text begins with the reply of that head."""

    def __call__(self, text: str, head: bytes) -> bool: ...


class MessageChain:
    """A chat prompt: one hash per message, each over all before it.

    reply_heads: per message, None where it is no answer. answers: per message, where that is known without the heads.
    thoughts: the answers that came back with their reasoning.
    """

    __slots__ = ("_answers", "_hashes", "_reply_heads", "_thoughts", "has_replies", "length", "whole")

    def __init__(
        self,
        root: bytes,
        digests: Sequence[bytes],
        reply_heads: Sequence[bytes | None],
        answers: Sequence[bool] | None = None,
        thoughts: Collection[int] = (),
    ) -> None:
        digest_of, hashes = xxhash.xxh3_128_digest, []
        current = root
        for digest in digests:
            current = digest_of(current + digest)
            hashes.append(current)
        if answers is None:
            answers = [head is not None for head in reply_heads]
        self._hashes = hashes
        self._reply_heads = reply_heads
        self._answers = answers
        self._thoughts = thoughts
        self.whole = current
        self.length = len(hashes)
        self.has_replies = True in answers

    def prefixes(self, lengths: Lengths) -> Iterator[tuple[int, bytes]]:
        return zip(range(self.length, 0, -1), reversed(self._hashes), strict=True)

    def reply_follows(self, length: int, head: bytes) -> bool:
        return length < self.length and self._reply_heads[length] == head

    @property
    def thought(self) -> int:
        return min(self._thoughts) if self._thoughts else -1

    def prefix(self, length: int) -> bytes:
        return self._hashes[length - 1]

    def keeps_thoughts(self, length: int) -> bool:
        return length in self._thoughts

    def reply_at(self, length: int) -> bytes | None:
        return self._reply_heads[length] if length < self.length else None

    def may_be_answered(self, length: int) -> bool:
        return length == self.length or self._answers[length]

    def blocks(self) -> Sequence[bytes]:
        return ()

    def joint(self) -> tuple[bytes, int] | None:
        return None


class TextChain:
    """A completions prompt.

    data: the prompt as UTF-8 text, or a token-id list as JSON with a comma behind every token.
    begins_with_reply: how to compare the head of a reply, or None where the data is no text.
    head_of: makes the head of a text that is long enough for one, or None where the data is no text.
    """

    has_replies = True
    thought = -1

    def __init__(
        self,
        root: bytes,
        data: bytes,
        begins_with_reply: BeginsWithReply | None,
        head_of: Callable[[str], bytes] | None = None,
    ) -> None:
        self._root = root
        self._data = data
        self._begins_with_reply = begins_with_reply
        self._head_of = head_of
        self.length = len(data)
        hasher = xxhash.xxh3_128(root)
        blocks = [hasher.digest()]
        for start in range(0, len(data) - BLOCK_BYTES + 1, BLOCK_BYTES):
            hasher.update(data[start : start + BLOCK_BYTES])
            blocks.append(hasher.digest())
        self._blocks = blocks
        self.whole = self._hash_of(self.length)

    def prefixes(self, lengths: Lengths) -> Iterator[tuple[int, bytes]]:
        for block in range(len(self._blocks) - 1, -1, -1):
            offsets = lengths.get(self._blocks[block])
            if not offsets:
                continue
            start = block * BLOCK_BYTES
            before = xxhash.xxh3_128(self._root)
            before.update(self._data[:start])
            for offset in sorted(offsets, reverse=True):
                if start + offset <= self.length:
                    hasher = before.copy()
                    hasher.update(self._data[start : start + offset])
                    yield start + offset, hasher.digest()

    def reply_follows(self, length: int, head: bytes) -> bool:
        if self._begins_with_reply is None:
            return True
        return self._begins_with_reply(self._data[length:].decode("utf-8", "ignore"), head)

    def prefix(self, length: int) -> bytes:
        return self._hash_of(length)

    def keeps_thoughts(self, length: int) -> bool:
        return True

    def reply_at(self, length: int) -> bytes | None:
        if self._head_of is None or length >= self.length:
            return None
        return self._head_of(self._data[length : length + HEAD_BYTES].decode("utf-8", "ignore"))

    def may_be_answered(self, length: int) -> bool:
        return True

    def blocks(self) -> Sequence[bytes]:
        return self._blocks[::-1]

    def joint(self) -> tuple[bytes, int] | None:
        return self._blocks[-1], self.length % BLOCK_BYTES

    def _hash_of(self, length: int) -> bytes:
        hasher = xxhash.xxh3_128(self._root)
        hasher.update(self._data[:length])
        return hasher.digest()
