"""Names for blocks of tokens, by content.

Rule of this room: a digest here depends on the token ids alone (and on every token before them), never on a process, a
block size chosen elsewhere or a random seed, so two pods give the same name to the same history. The cache key
adds what must not be shared (cache salt, model or adapter); see vllm/v1/core/kv_cache_utils.py.
"""

from array import array
from collections.abc import Iterable

import xxhash

ROOT = 0
"""Digest of the empty history."""


def pack(token_ids: Iterable[int]) -> bytes:
    """Token ids as little 4-byte words: what a block 'contains'."""
    return array("I", token_ids).tobytes()


def extend(digest: int, packed: bytes) -> int:
    """Digest of the history `digest` followed by the packed tokens."""
    return xxhash.xxh3_64_intdigest(packed, seed=digest)


def mix(left: int, right: int) -> int:
    """Combine two digests; the order matters."""
    return xxhash.xxh3_64_intdigest(right.to_bytes(8, "little"), seed=left)


def salt(*parts: str | None) -> int:
    """What separates one cache name space from another. The empty space is 0."""
    if not any(parts):
        return 0
    return xxhash.xxh3_64_intdigest("\0".join(part or "" for part in parts).encode())


def salted(digest: int, space: int) -> int:
    """The cache key of a history in one name space."""
    return mix(digest, space) if space else digest


class TokenChain:
    """A growing list of token ids, with the digest of each whole block of it.

    `digests[i]` names the tokens `0 .. (i+1)*block_size`. Appending is cheap: a digest is made once per block.
    """

    __slots__ = ("block_size", "digests", "packed")

    def __init__(self, token_ids: Iterable[int], block_size: int) -> None:
        self.block_size = block_size
        self.packed = bytearray(pack(token_ids))
        self.digests: list[int] = []
        self._grow()

    def __len__(self) -> int:
        return len(self.packed) // 4

    def append(self, token_id: int) -> None:
        self.packed += token_id.to_bytes(4, "little")
        if len(self.packed) % (4 * self.block_size) == 0:
            self._grow()

    @property
    def last(self) -> int:
        return int.from_bytes(self.packed[-4:], "little")

    def _grow(self) -> None:
        width = 4 * self.block_size
        digest = self.digests[-1] if self.digests else ROOT
        for start in range(len(self.digests) * width, len(self.packed) - width + 1, width):
            digest = extend(digest, bytes(self.packed[start : start + width]))
            self.digests.append(digest)

    def before_block(self, index: int) -> int:
        """Digest of everything before block `index`."""
        return self.digests[index - 1] if index else ROOT

    def block(self, index: int, count: int | None = None) -> bytes:
        """The packed tokens of block `index` (its first `count`)."""
        start = 4 * self.block_size * index
        return bytes(self.packed[start : start + 4 * (self.block_size if count is None else count)])

    def block_digest(self, index: int, count: int) -> int:
        """Digest of the history up to and with the first `count` tokens of block `index`."""
        if count == self.block_size:
            return self.digests[index]
        return extend(self.before_block(index), self.block(index, count))

    def text_digest(self) -> int:
        """Digest of all tokens, the same whatever the block size."""
        return xxhash.xxh3_64_intdigest(bytes(self.packed))
