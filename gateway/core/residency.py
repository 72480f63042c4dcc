"""How much of a conversation lies in the cache of which pod: announced by the pod where it does, estimated elsewhere.

Rule of this room: one answer per (conversation, pod), and every answer is compared with what the pod says afterwards.
A pod whose process is new holds nothing, whoever else says so.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import msgspec

from gateway.core.ledger import GhostCache
from gateway.core.pods import UNKNOWN, Pod, PodFacts
from gateway.core.views import RankView

DEFAULT_BLOCK_SIZE = 16
SHORTFALLS = 3
"""So many turns in a row that a pod had less than it announced: what it announces is not believed any more."""


class Source(enum.StrEnum):
    """Where an answer comes from: the pod's own events, or what the gateway sent there."""

    EVENTS = "events"
    LEDGER = "ledger"


class Resident(msgspec.Struct, frozen=True):
    """Tokens of a conversation in a pod's cache, from its first token without a gap.

    rank: the DP rank that holds them, None where the pod has one only.
    """

    tokens: int
    source: Source
    rank: int | None = None


NOTHING = Resident(0, Source.LEDGER)


class Verdict(msgspec.Struct, frozen=True):
    """One prediction. error_tokens: predicted - actual. word: exact (within one block), over or under."""

    error_tokens: int
    word: str


class Accuracy(msgspec.Struct):
    """Predicted against actual cached tokens of the turns a pod served by itself.

    turns: compared. exact: within one block. over, under: further off, by direction. error_tokens: sum of |error|.
    predicted_tokens, cached_tokens: sums.
    """

    turns: int = 0
    exact: int = 0
    over: int = 0
    under: int = 0
    error_tokens: int = 0
    predicted_tokens: int = 0
    cached_tokens: int = 0

    def add(self, predicted: int, cached: int, block_size: int) -> Verdict:
        """One more turn."""
        error = predicted - cached
        self.turns += 1
        self.error_tokens += abs(error)
        self.predicted_tokens += predicted
        self.cached_tokens += cached
        if abs(error) <= block_size:
            self.exact += 1
            return Verdict(error, "exact")
        if error > 0:
            self.over += 1
            return Verdict(error, "over")
        self.under += 1
        return Verdict(error, "under")


@dataclass
class PodCache:
    """What is known of one pod's cache.

    views: per DP rank, where the pod publishes events. ghost: the ledger, kept beside them so that the two can be
    compared. epoch: of the pod's process all this is about. facts: what the pod had said when this was last looked at.
    """

    block_size: int = DEFAULT_BLOCK_SIZE
    ghost: GhostCache = field(default_factory=GhostCache)
    views: dict[int, RankView] = field(default_factory=dict)
    epoch: int = 0
    facts: PodFacts = UNKNOWN
    shortfalls: int = 0
    accuracy: dict[Source, Accuracy] = field(default_factory=lambda: {source: Accuracy() for source in Source})


class Expectation(msgspec.Struct, frozen=True):
    """What was expected of a turn when it was planned, by each source that had an answer. Tokens."""

    ledger: int
    events: int | None


class Residency:
    """All pods' caches. `of` is asked by the decision, `learn` told by the answers."""

    def __init__(self) -> None:
        self._caches: dict[str, PodCache] = {}

    def cache(self, pod: Pod) -> PodCache:
        """What is known of a pod, emptied first if its process was replaced."""
        cache = self._caches.get(pod.url)
        if cache is None or cache.facts is not pod.facts or cache.epoch != pod.epoch:
            return self._caught_up(cache, pod)
        return cache

    def _caught_up(self, cache: PodCache | None, pod: Pod) -> PodCache:
        """The pod has said something, was replaced, or is new here."""
        if cache is None:
            cache = self._caches[pod.url] = PodCache(epoch=pod.epoch)
        if cache.epoch != pod.epoch:
            cache.epoch = pod.epoch
            cache.shortfalls = 0
            cache.ghost.clear()
            for view in cache.views.values():
                view.restart()
        cache.facts = facts = pod.facts
        if facts.block_size:
            cache.block_size = facts.block_size
            if facts.num_blocks:
                cache.ghost.resize(facts.block_size * facts.num_blocks)
        return cache

    def view(self, pod: Pod, rank: int) -> RankView:
        """The view of a pod's DP rank, made when it is asked for first."""
        cache = self.cache(pod)
        return cache.views.setdefault(rank, RankView())

    def drop_views(self, pod: Pod) -> None:
        """The pod publishes no events (any more)."""
        self.cache(pod).views.clear()

    def drop(self, pod: Pod) -> None:
        """The pod was removed."""
        self._caches.pop(pod.url, None)

    def of(self, pod: Pod, session: bytes) -> Resident:
        """What of a conversation is on a pod."""
        cache = self.cache(pod)
        if cache.views and (announced := _announced(cache, session)) is not None:
            return announced
        return Resident(cache.ghost.expected(session), Source.LEDGER)

    def tokens(self, pod: Pod, session: bytes) -> int:
        """How much of it; `of` says who says so, too."""
        cache = self.cache(pod)
        return self.of(pod, session).tokens if cache.views else cache.ghost.expected(session)

    def expect(self, pod: Pod, session: bytes) -> Expectation:
        """Both answers, to be compared with the pod's own later."""
        cache = self.cache(pod)
        ledger = cache.ghost.expected(session)
        if cache.views and (announced := _announced(cache, session)) is not None:
            return Expectation(ledger, announced.tokens)
        return Expectation(ledger, None)

    def wants_report(self, pod: Pod, session: bytes) -> bool:
        """True when a request should tell of its prefix hits: the pod's events were missed and this session is
        unknown since."""
        views = self.cache(pod).views
        if not views:
            return False
        return any(view.heard and not view.complete and not view.knows(session) for view in views.values())

    def expect_report(self, pod: Pod, session: bytes) -> None:
        """Such a request goes out now."""
        for view in self.cache(pod).views.values():
            view.expect_report(session)

    def used(self, pod: Pod, session: bytes, tokens: int) -> None:
        """A request left so many tokens of a conversation on a pod."""
        self.cache(pod).ghost.used(session, tokens)

    def learn(
        self, pod: Pod, session: bytes, expected: Expectation, shared_tokens: int, prompt_tokens: int, cached: int
    ) -> dict[Source, Verdict]:
        """A pod that prefilled a prompt by itself said how much of it was cached; gives a verdict by source.

        Nothing was expected of a prompt that shares nothing with a conversation, and nothing is learned from it.

        shared_tokens: of the prompt that the conversation had before; more than that cannot be expected.
        """
        if shared_tokens == 0:
            return {}
        cache = self.cache(pod)
        size = cache.block_size
        most = min(shared_tokens, prompt_tokens - 1) // size * size
        ledger = min(expected.ledger // size * size, most)
        verdicts = {Source.LEDGER: cache.accuracy[Source.LEDGER].add(ledger, cached, size)}
        if expected.events is not None:
            events = min(expected.events, most)
            verdicts[Source.EVENTS] = cache.accuracy[Source.EVENTS].add(events, cached, size)
            self._judge(cache, events - cached)
        cache.ghost.saw(session, ledger, cached, size)
        return verdicts

    def join(self, session: bytes, other: bytes) -> None:
        """A conversation branched off another: it shares what that one has, wherever that is."""
        for cache in self._caches.values():
            for view in cache.views.values():
                view.join(session, other)
            if tokens := cache.ghost.expected(other):
                cache.ghost.used(session, tokens)

    def forget(self, session: bytes) -> None:
        """A conversation was dropped."""
        for cache in self._caches.values():
            cache.ghost.forget(session)
            if cache.views:
                for view in cache.views.values():
                    view.forget(session)

    def _judge(self, cache: PodCache, error: int) -> None:
        """An idle engine that was reset says nothing until it works again, so what it really had tells first."""
        cache.shortfalls = cache.shortfalls + 1 if error > cache.block_size else 0
        if cache.shortfalls >= SHORTFALLS:
            cache.shortfalls = 0
            for view in cache.views.values():
                view.distrust()


def _announced(cache: PodCache, session: bytes) -> Resident | None:
    """The best rank's answer; None when no rank has any of it and one does not know."""
    best: Resident | None = None
    unknown = False
    for rank, view in cache.views.items():
        tokens = view.resident_tokens(session)
        if tokens is None:
            unknown = True
        elif best is None or tokens > best.tokens:
            best = Resident(tokens, Source.EVENTS, rank if len(cache.views) > 1 else None)
    return None if unknown and best is not None and best.tokens == 0 else best
