"""Which pod of several gets a new conversation.

Rule of this room: least load wins; ties go by rendezvous hash, so that any gateway breaks them alike and a pod
that joins or leaves moves only its own share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import xxhash

from gateway.core.pods import Pod

IDLE_TOKENS = 1000
"""What an idle pod counts for when its weight is taken, so that weights matter without load too."""


def rendezvous(key: bytes, url: str) -> int:
    """The weight of a pod for a conversation (64 bits, highest wins)."""
    return xxhash.xxh3_64_intdigest(key + url.encode())


def least_loaded(pods: Iterable[Pod], key: bytes) -> Pod | None:
    """The pod with the fewest tokens in flight for its weight, or None when there is none."""
    return cheapest(pods, key, burden)


def burden(pod: Pod) -> int:
    """The tokens in flight at a pod; at one of less weight, as many as they are for it."""
    if pod.weight == 1.0:
        return pod.load_tokens
    return int((pod.load_tokens + IDLE_TOKENS) / pod.weight) - IDLE_TOKENS


def cheapest(pods: Iterable[Pod], key: bytes, cost: Callable[[Pod], int]) -> Pod | None:
    """The pod with the least cost, or None when there is none."""
    best: list[Pod] = []
    least = 0
    for pod in pods:
        of_this = cost(pod)
        if not best or of_this < least:
            best, least = [pod], of_this
        elif of_this == least:
            best.append(pod)
    if len(best) < 2:
        return best[0] if best else None
    return max(best, key=lambda pod: rendezvous(key, pod.url))
