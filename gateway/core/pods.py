"""The pods as the decision sees them: role, health, load.

Rule of this room: facts are put in by others (probes, the relay); nothing here asks a pod anything.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from gateway.core.breakers import BreakerState, PodBreaker
from gateway.core.pairs import Pairs

if TYPE_CHECKING:
    from gateway.core.load import Loads


class Role(enum.StrEnum):
    """What the operator uses a pod for. vLLM's NixlConnector ignores roles; the gateway's word counts."""

    PREFILL = "prefill"
    DECODE = "decode"
    REPLICA = "replica"


PREFILL, DECODE, REPLICA = Role
"""The same for the decision: Python 3.11 takes ten times as long for a member of an enum as for a global."""


class PodFacts(msgspec.Struct, frozen=True):
    """What a pod says of itself. A field it does not tell is 0, empty or None.

    block_size: tokens per KV block. num_blocks: KV blocks, of all its engines.
    prefix_caching: whether it keeps the KV of prompts that are over.
    running, waiting: requests in its scheduler. kv_usage: 0..1, of its fullest engine.
    instance: a word that differs from one process to the next; empty when the pod tells none.
    work: counters that only grow while a process lives.
    models: the names it serves. max_model_len: of the first of them, tokens.
    fetched_bytes, fetched_tokens: KV that it read from other pods; counters, too.
    seen_at: `time.monotonic` when it said so; 0 for never.
    """

    block_size: int = 0
    num_blocks: int = 0
    prefix_caching: bool | None = None
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    instance: str = ""
    work: tuple[float, ...] = ()
    version: str = ""
    models: tuple[str, ...] = ()
    max_model_len: int = 0
    fetched_bytes: float = 0.0
    fetched_tokens: float = 0.0
    seen_at: float = 0.0


UNKNOWN = PodFacts()


class Pod(msgspec.Struct, eq=False):
    """One vLLM server.

    url: base URL without a trailing slash; also its name.
    up: it answered its last health probe and nothing has failed to connect since.
    epoch: counts the times its process was replaced; KV of an earlier epoch is lost.
    in_flight: requests the gateway has there now.
    load_tokens: those requests, each weighted by its tokens.
    pending_tokens: what of their prompts it has still to compute, as far as is known.
    facts: what it last said of itself.
    direct_off: why it takes no later turn without a prefill pod, None when it does.
    proof: what its self-test found.
    reads_back: whether it has read KV from another pod: True once it did, False once it failed to, None untried.
    draining: it keeps what it has begun and gets nothing new; conversations leave it at their next turn.
    readbacks: how many are under way that it takes part in, as the one who reads or the one who is read.
    weight: its share of new traffic; below 1 for a pod that is far from its peers (`core.outliers`).
    breaker: whether it failed too often to get traffic; `Fleet.note_breaker` must hear of every change.
    """

    url: str
    role: Role
    up: bool = False
    epoch: int = 0
    in_flight: int = 0
    load_tokens: int = 0
    pending_tokens: int = 0
    facts: PodFacts = UNKNOWN
    direct_off: str | None = None
    proof: str = "not tested"
    reads_back: bool | None = None
    draining: bool = False
    readbacks: int = 0
    weight: float = 1.0
    breaker: PodBreaker = msgspec.field(default_factory=PodBreaker)

    @property
    def direct(self) -> bool:
        """True when later turns may go straight to it."""
        return self.direct_off is None

    def shares_model(self, other: Pod) -> bool:
        """True when there is a model that both serve, as far as is known."""
        ours, theirs = self.facts.models, other.facts.models
        return ours == theirs or not ours or not theirs or not set(ours).isdisjoint(theirs)

    def replaced(self) -> None:
        """Its process is another one: nothing that was known of the former holds."""
        self.epoch += 1
        self.facts = UNKNOWN
        self.direct_off = None
        self.reads_back = None
        self.proof = "not tested since its restart"

    def take(self, tokens: int) -> None:
        """A request of so many tokens begins here."""
        self.in_flight += 1
        self.load_tokens += tokens if tokens > 1 else 1

    def give_back(self, tokens: int) -> None:
        """That request is over; `tokens` as they were taken."""
        self.in_flight -= 1
        self.load_tokens -= tokens if tokens > 1 else 1


class Seat:
    """A request's place at a pod, taken from the moment it is planned there, so that others see it is taken.

    kept: someone else goes on with it and will leave it. pending: tokens that it has computed there before it answers;
    ahead: those that were to be computed before them when it was taken.
    """

    __slots__ = ("_computing", "_tokens", "_tries", "ahead", "kept", "pending", "pod")

    def __init__(self, pod: Pod, tokens: int, pending: int = 0) -> None:
        self.pod = pod
        self.kept = False
        self.ahead = ahead = pod.pending_tokens
        self.pending = self._computing = pending
        self._tokens = tokens
        pod.pending_tokens = ahead + pending
        self._tries = pod.breaker.begin()
        pod.take(tokens)

    def began(self) -> None:
        """The pod has answered: its prompt is computed."""
        self.pod.pending_tokens -= self._computing
        self._computing = 0

    def leave(self) -> None:
        """Give the place back."""
        if self._computing:
            self.began()
        self.pod.give_back(self._tokens)
        if self._tries:
            self.pod.breaker.over()

    def leave_unless_kept(self) -> None:
        """Give the place back, if it is still ours."""
        if not self.kept:
            self.leave()


class Fleet:
    """All pods, by role and by URL. Change `up` and `draining` through the methods, so that the lists stay right.

    pairs: which prefill and decode pods are not to work together yet. loads: how busy they are, where that counts.
    """

    def __init__(self, pods: Iterable[Pod]) -> None:
        self._by_url = {pod.url: pod for pod in pods}
        self._up: dict[Role, list[Pod]] = {}
        self._assignment = ""
        self._guarded: set[str] = set()
        self.pairs = Pairs()
        self.loads: Loads | None = None
        self._models: list[tuple[str, ...]] | None = None
        self._names: frozenset[str] = frozenset()
        self._serving: dict[str, Fleet] = {}
        self._sort()

    def serving(self, model: str) -> Fleet:
        """The pods that serve a model, where pods differ in that; else, and for a model nobody answers for, all.

        LoRA adapters count as models, as in `/v1/models`.
        """
        if [pod.facts.models for pod in self._by_url.values()] != self._models:
            self._see_models()
        return self._serving.get(model, self)

    def knows(self, model: str) -> bool:
        """False for a model that no pod says it serves, where any says what it serves."""
        if model in self._names or not model:
            return True
        self.serving(model)
        return model in self._names or not self._names

    def _see_models(self) -> None:
        self._models = [pod.facts.models for pod in self._by_url.values()]
        self._names = frozenset(name for each in self._models for name in each)
        self._serving = self._by_model(self._models)

    def _by_model(self, models: list[tuple[str, ...]]) -> dict[str, Fleet]:
        if len({frozenset(each) for each in models if each}) < 2:
            return {}
        parts: dict[str, Fleet] = {}
        for model in {name for each in models for name in each}:
            pods = [pod for pod in self._by_url.values() if model in pod.facts.models]
            if any(pod.role is not Role.PREFILL for pod in pods):
                parts[model] = Fleet(pods)
                parts[model]._guarded = self._guarded
                parts[model].pairs = self.pairs
                parts[model].loads = self.loads
        return parts

    def __iter__(self) -> Iterator[Pod]:
        return iter(self._by_url.values())

    def get(self, url: str | None) -> Pod | None:
        """The pod of that URL, whatever its state."""
        return None if url is None else self._by_url.get(url)

    def add(self, pod: Pod) -> None:
        """A pod joins. Its URL must be new here."""
        if pod.url in self._by_url:
            raise ValueError(f"{pod.url} is a pod already")
        self._by_url[pod.url] = pod
        self._changed()

    def remove(self, pod: Pod) -> None:
        """A pod leaves; whoever planned with an earlier answer of `serving` does not find it up any more."""
        pod.up = False
        self._sort()
        del self._by_url[pod.url]
        self._guarded.discard(pod.url)
        self.pairs.forget(pod.url)
        self._changed()

    def _changed(self) -> None:
        self._models, self._serving = None, {}
        self._sort()

    def set_up(self, pod: Pod, up: bool) -> None:
        """A pod went up or down."""
        pod.up = up
        self._sort()

    def set_draining(self, pod: Pod, draining: bool) -> None:
        """A pod is to be emptied, or not any more."""
        pod.draining = draining
        self._sort()

    def up(self, role: Role) -> list[Pod]:
        """The pods of a role that may get new conversations now. Do not change the list."""
        pods = self._up[role]
        if not self._guarded:
            return pods
        admitting = [pod for pod in pods if pod.breaker.admits]
        return pods if not admitting and self._last_resort(role) else admitting

    def admits(self, pod: Pod) -> bool:
        """Whether a pod may get a request of a conversation it has: it is up, and its breaker lets it, or has to."""
        return pod.up and (not self._guarded or pod.breaker.admits or self._last_resort(pod.role))

    def fitting(self, prefills: list[Pod], decode: Pod) -> list[Pod]:
        """Of these prefill pods those that may hand over to that decode pod."""
        if not self.pairs.held:
            return prefills
        return [pod for pod in prefills if self.pairs.fit(pod.url, decode.url)]

    def hold_pairs(self, pod: Pod) -> None:
        """A pod was restarted: its pairs are to be proven before they get traffic."""
        if pod.role is Role.PREFILL:
            self.pairs.hold(pod.url, [(pod.url, other.url) for other in self.of(Role.DECODE)])
        elif pod.role is Role.DECODE:
            self.pairs.hold(pod.url, [(other.url, pod.url) for other in self.of(Role.PREFILL)])

    def note_breaker(self, pod: Pod) -> None:
        """A pod's breaker changed its state."""
        if self._by_url.get(pod.url) is not pod:
            return
        if pod.breaker.state is BreakerState.CLOSED:
            self._guarded.discard(pod.url)
        else:
            self._guarded.add(pod.url)

    @property
    def guarded(self) -> list[Pod]:
        """The pods whose breaker is not closed."""
        return [self._by_url[url] for url in self._guarded] if self._guarded else []

    def _last_resort(self, role: Role) -> bool:
        """True where no pod that could answer has a breaker that lets it. Nobody depends on a prefill pod."""
        answering = [*self._up[Role.DECODE], *self._up[Role.REPLICA]]
        return role is not Role.PREFILL and not any(pod.breaker.admits for pod in answering)

    @property
    def assignment(self) -> str:
        """The node assignment π of the pods that are up, as `1P_3D`."""
        return self._assignment

    def of(self, role: Role) -> list[Pod]:
        """The pods of a role, whatever their state."""
        return [pod for pod in self._by_url.values() if pod.role is role]

    def _sort(self) -> None:
        pods = self._by_url.values()
        self._up = {role: [pod for pod in pods if pod.up and not pod.draining and pod.role is role] for role in Role}
        self._assignment = f"{len(self._up[Role.PREFILL])}P_{len(self._up[Role.DECODE])}D"
        for part in self._serving.values():
            part._sort()
