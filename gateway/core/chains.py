"""Prompts as chains of hashes, so that the next turn of a conversation is found from its own text.

Rule of this room: a chain is rooted in (tenant, model, cache salt), so equal words of two tenants never meet. A
chat prompt is hashed message by message. A completions prompt has no joints; it is hashed at every block of bytes
so that the exact length of an earlier prompt can be found again in a longer one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import xxhash

BLOCK_BYTES = 1024

Lengths = Mapping[bytes, Mapping[int, int]]
"""Block hash → offset within the next block at which an earlier prompt ended → how many ended there."""


def root_of(*parts: str) -> bytes:
    """The root of all chains of one (tenant, model, cache salt)."""
    return xxhash.xxh3_128_digest("\0".join(f"{len(part)}:{part}" for part in parts).encode())


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

    def joint(self) -> tuple[bytes, int] | None:
        """Where to remember the length of this prompt: (block hash, offset), or None if it needs no memory."""


class BeginsWithReply(Protocol):
    """Says whether a text begins with the reply of that head."""

    def __call__(self, text: str, head: bytes) -> bool: ...


class MessageChain:
    """A chat prompt: one hash per message, each over all before it."""

    def __init__(self, root: bytes, digests: Sequence[bytes], reply_heads: Sequence[bytes | None]) -> None:
        hashes = []
        current = root
        for digest in digests:
            current = xxhash.xxh3_128_digest(current + digest)
            hashes.append(current)
        self._hashes = hashes
        self._reply_heads = reply_heads
        self.whole = current
        self.length = len(hashes)
        self.has_replies = any(head is not None for head in reply_heads)

    def prefixes(self, lengths: Lengths) -> Iterator[tuple[int, bytes]]:
        hashes = self._hashes
        for length in range(len(hashes), 0, -1):
            yield length, hashes[length - 1]

    def reply_follows(self, length: int, head: bytes) -> bool:
        return length < self.length and self._reply_heads[length] == head

    def joint(self) -> tuple[bytes, int] | None:
        return None


class TextChain:
    """A completions prompt.

    data: the prompt as UTF-8 text, or a token-id list as JSON with a comma behind every token.
    begins_with_reply: how to compare the head of a reply, or None where the data is no text.
    """

    has_replies = True

    def __init__(self, root: bytes, data: bytes, begins_with_reply: BeginsWithReply | None) -> None:
        self._root = root
        self._data = data
        self._begins_with_reply = begins_with_reply
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

    def joint(self) -> tuple[bytes, int] | None:
        return self._blocks[-1], self.length % BLOCK_BYTES

    def _hash_of(self, length: int) -> bytes:
        hasher = xxhash.xxh3_128(self._root)
        hasher.update(self._data[:length])
        return hasher.digest()
