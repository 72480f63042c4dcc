"""Which pod of several gets a new conversation.

Rule of this room: least load wins; ties go by rendezvous hash, so that any gateway breaks them alike and a pod
that joins or leaves moves only its own share. Where paces are known (`load`), load is the time a request would take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import xxhash

from gateway.core.load import Loads
from gateway.core.pods import Pod
from gateway.core.weights import Weights

IDLE_TOKENS = 1000
"""What an idle pod counts for when its weight is taken, so that weights matter without load too."""


def rendezvous(key: bytes, url: str) -> int:
    """The weight of a pod for a conversation (64 bits, highest wins)."""
    return xxhash.xxh3_64_intdigest(key + url.encode())


def least_loaded(pods: Iterable[Pod], key: bytes) -> Pod | None:
    """The pod with the fewest tokens in flight for its weight, or None when there is none."""
    among = list(pods)
    if len(among) < 2:
        return among[0] if among else None
    return cheapest(among, key, burden)


def burden(pod: Pod) -> int:
    """The tokens in flight at a pod; at one of less weight, as many as they are for it."""
    if pod.weight == 1.0:
        return pod.load_tokens
    return int((pod.load_tokens + IDLE_TOKENS) / pod.weight) - IDLE_TOKENS


def cheapest(pods: Sequence[Pod], key: bytes, cost: Callable[[Pod], int]) -> Pod | None:
    """The pod with the least cost, or None when there is none."""
    if not pods:
        return None
    costs = list(map(cost, pods))
    least = min(costs)
    if costs.count(least) == 1:
        return pods[costs.index(least)]
    best = [pod for pod, of_this in zip(pods, costs, strict=True) if of_this == least]
    weights = [rendezvous(key, pod.url) for pod in best]
    return best[weights.index(max(weights))]


MOVE_RATIO = 1.5
MOVE_SAVES_S = 0.2
"""A conversation moves when staying costs so many times as much, and so much more: its next turns move with it."""


class Costs(NamedTuple):
    """What a request costs here or there, in weighted microseconds: w_ttft · first token + w_tpot · all the others.

    output_tokens: that its answer will have. prefills: the prefill pods found for it, by those to choose from.
    """

    loads: Loads
    weights: Weights
    output_tokens: int
    prefills: dict[tuple[str, ...], Pod | None]

    def decode(self, pod: Pod) -> int:
        """Making its answer on a pod."""
        seconds = self.weights.w_tpot * self.output_tokens * self.loads.each_s(pod)
        return int(1e6 * seconds / pod.weight)

    def prefill(self, pod: Pod, new_tokens: int) -> int:
        """Computing so much of its prompt on a pod, behind what is there."""
        return int(1e6 * self.weights.w_ttft * self.loads.first_s(pod, new_tokens) / pod.weight)

    def best_prefill(self, pods: Sequence[Pod], key: bytes, new_on: Callable[[Pod], int]) -> Pod | None:
        """Where its prompt is computed first. Found once for the same pods."""
        if len(pods) < 2:
            return pods[0] if pods else None
        urls = tuple([pod.url for pod in pods])
        if urls not in self.prefills:
            self.prefills[urls] = cheapest(pods, key, lambda pod: self.prefill(pod, new_on(pod)))
        return self.prefills[urls]

    def whole(self, pod: Pod, new_tokens: int) -> int:
        """Both on one pod."""
        return self.prefill(pod, new_tokens) + self.decode(pod)

    def pair(self, prefill: Pod, decode: Pod, new_tokens: int, moved_tokens: int) -> int:
        """One after the other, with the way between."""
        way = int(1e6 * self.weights.w_ttft * self.loads.handover_s(moved_tokens))
        return self.prefill(prefill, new_tokens) + way + self.decode(decode)

    def usual(self, pod: Pod, new_tokens: int) -> int:
        """What `whole` would be at a pod of that role on average."""
        first_s, others_s = self.loads.usual_s(pod.role, new_tokens, self.output_tokens)
        return int(1e6 * (self.weights.w_ttft * first_s + self.weights.w_tpot * others_s))

    @staticmethod
    def pays(stay: int, move: int) -> bool:
        """Whether a conversation is to move."""
        return stay > MOVE_RATIO * move and stay - move > 1e6 * MOVE_SAVES_S
