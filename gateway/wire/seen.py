"""Messages that were read before: an agent sends its whole history again each turn, byte for byte.

Rule of this room: a hash of the bytes in, what was worked out of them out; never the bytes. Bounded, the longest unused
first to go.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec
import xxhash

T = TypeVar("T")


class Seen(Generic[T]):
    """Results of reading raw messages, in two generations of at most `half` each."""

    def __init__(self, half: int) -> None:
        self._half = half
        self._young: dict[bytes, T] = {}
        self._old: dict[bytes, T] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def read(self, raw: msgspec.Raw, work_out: Callable[[msgspec.Raw], T]) -> T:
        """What `work_out` makes of a message, or made of the same bytes before."""
        key = xxhash.xxh3_128_digest(raw)
        found = self._young.get(key)
        if found is None:
            found = self._old.get(key)
            if found is None:
                found = work_out(raw)
            if len(self._young) >= self._half:
                self._old, self._young = self._young, {}
            self._young[key] = found
        return found
