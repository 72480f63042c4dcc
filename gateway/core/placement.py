"""Which pod of several gets a new conversation.

Rule of this room: least load wins; ties go by rendezvous hash, so that any gateway breaks them alike and a pod
that joins or leaves moves only its own share.
"""

from __future__ import annotations

from collections.abc import Iterable

import xxhash

from gateway.core.pods import Pod


def rendezvous(key: bytes, url: str) -> int:
    """The weight of a pod for a conversation (64 bits, highest wins)."""
    return xxhash.xxh3_64_intdigest(key + url.encode())


def least_loaded(pods: Iterable[Pod], key: bytes) -> Pod | None:
    """The pod with the fewest tokens in flight, or None when there is none."""
    return min(pods, key=lambda pod: (pod.load_tokens, -rendezvous(key, pod.url)), default=None)
