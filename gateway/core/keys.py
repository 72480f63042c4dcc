"""Client keys: the file that lists them, and whose a key is.

Rule of this room: a key is only ever known by its SHA-256, and no complaint quotes what a line holds.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class KeyFileError(Exception):
    """One line for the operator: which line of the file, what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a key belongs to. tenant: the name in the file. key_hash: hex, for settings that name a key."""

    tenant: str
    key_hash: str


@dataclass(frozen=True, slots=True)
class KeyRing:
    """The keys that are good, by their digest.

    A look-up in a hash table takes a time that depends on the digest of what was sent, which tells nothing of a key
    that is good: who wants the digest to come closer to a good one would have to invert SHA-256. (Comparing all of them
    in constant time, as vLLM does with its few, would cost more with every key.)
    """

    callers: Mapping[bytes, Caller] = field(repr=False)

    def __len__(self) -> int:
        return len(self.callers)

    def find(self, key: str) -> Caller | None:
        """Whose key that is; None for nobody's."""
        return self.callers.get(hashlib.sha256(key.encode("latin-1", "replace")).digest())

    def describe(self) -> str:
        """For people."""
        return f"{len(self.callers)} keys of {len({caller.tenant for caller in self.callers.values()})} tenants"


def hash_of(key: str) -> str:
    """What the file holds of a key. Raises ValueError for one that no header can carry."""
    return hashlib.sha256(checked_key(key).encode()).hexdigest()


def checked_key(key: str) -> str:
    """That key. Raises ValueError for one that no header can carry."""
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ValueError("a key is visible ASCII without spaces")
    return key


def read_keys(text: str) -> KeyRing:
    """Lines of `sha256hex tenant [comment]`; empty ones and those with a # are skipped. Raises KeyFileError."""
    callers: dict[bytes, Caller] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split(None, 2)
        if not words or words[0].startswith("#"):
            continue
        if not _DIGEST.fullmatch(words[0]):
            raise KeyFileError(f"line {number} does not begin with a SHA-256 in lower-case hex")
        if len(words) < 2 or not TENANT.fullmatch(words[1]):
            raise KeyFileError(f"line {number} names no tenant (letters, digits and _.@-, up to 64)")
        digest = bytes.fromhex(words[0])
        if digest in callers:
            raise KeyFileError(f"line {number} repeats a key")
        callers[digest] = Caller(words[1], words[0])
    if not callers:
        raise KeyFileError("there is no key in it")
    return KeyRing(callers)
