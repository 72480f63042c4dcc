"""What all requests share: the fleet, the conversations, the policy, the pool of connections, the observer."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from gateway.core.breakers import BreakerState
from gateway.core.budget import RetryBudget
from gateway.core.canary import Canary
from gateway.core.conversations import ConversationStore
from gateway.core.estimates import BytesPerToken
from gateway.core.handovers import Handovers, Waiting
from gateway.core.outliers import Outliers
from gateway.core.outputs import OutputLengths
from gateway.core.pods import Fleet, Pod, Role
from gateway.core.policies import Policy
from gateway.core.rates import RequestRate
from gateway.core.residency import Residency
from gateway.net.admission import Admission
from gateway.net.origins import Origins
from gateway.net.records import Observer
from gateway.net.settings import GatewaySettings
from gateway.net.tracing import Tracer
from gateway.net.upstream import PodClient, PodFault

if TYPE_CHECKING:
    from gateway.core.slo import SloController
    from gateway.net.model_watch import ModelWatch
    from gateway.net.outside import OutsideProxy
    from gateway.net.shared import SharedState
    from gateway.net.tenancy import Tenancy


_CLOSED = BreakerState.CLOSED
"""Every request asks, and Python 3.11 takes ten times as long for a member of an enum as for a global."""


@dataclass
class Parts:
    """Shared state of one gateway process; touched only from its event loop.

    fingerprints: per pod URL its `system_fingerprint` as raw JSON, learned from its streams.
    residency: what lies in which pod's cache.
    unrendered: per pod URL the render endpoints that it has not (`--enable-scale-out`).
    engines: per pod URL the KV connector's engine id, a new one for every process of the pod.
    losses: per pod URL how often nothing listened on its port. explained: how many of them when it was last known
    which process it is; no entry for a pod that was never up.
    shared: what other gateways know, where there are any.
    suspects: pods whose health is to be looked at now rather than at the next interval.
    budget: how many requests may be tried again.
    handovers: whose KV waits on which prefill pod. admission: who may come in, and who waits.
    tenancy: tenants and their quotas, where a file names them. slo: moves the weights, where there are targets.
    origins: how each prefill pod hands over.
    outliers: which pods are far from their peers.
    tracer: makes traces of requests, where they are wanted.
    model_watch: asks the pods what they serve, once they are watched.
    canary: which conversations the policy routes. outside: the operator's own proxy, where the others go there.
    """

    fleet: Fleet
    store: ConversationStore
    policy: Policy
    client: PodClient
    observer: Observer
    settings: GatewaySettings
    bytes_per_token: BytesPerToken = field(default_factory=BytesPerToken)
    outputs: OutputLengths = field(default_factory=OutputLengths)
    rate: RequestRate = field(default_factory=lambda: RequestRate(time.monotonic()))
    fingerprints: dict[str, msgspec.Raw] = field(default_factory=dict)
    residency: Residency = field(default_factory=Residency)
    unrendered: dict[str, set[str]] = field(default_factory=dict)
    engines: dict[str, bytes] = field(default_factory=dict)
    losses: Counter[str] = field(default_factory=Counter)
    explained: dict[str, int] = field(default_factory=dict)
    shared: SharedState | None = None
    suspects: set[str] = field(default_factory=set)
    suspicion: asyncio.Event = field(default_factory=asyncio.Event)
    budget: RetryBudget = field(default_factory=RetryBudget)
    handovers: Handovers = field(default_factory=Handovers)
    outliers: Outliers = field(default_factory=Outliers)
    admission: Admission = field(init=False)
    tenancy: Tenancy | None = None
    slo: SloController | None = None
    origins: Origins = field(default_factory=Origins)
    canary: Canary = field(default_factory=Canary)
    outside: OutsideProxy | None = None
    tracer: Tracer | None = None
    model_watch: ModelWatch | None = None
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.handovers = Handovers(self.settings.lease_s)
        self.admission = Admission(self.settings.admission)
        self.origins = Origins(self.settings.handover, self.settings.mooncake_bootstraps)
        self.fleet.pairs.enough = self.settings.pairs.enough
        self.store.on_forget = self.residency.forget

    def has(self, pod: Pod) -> bool:
        """False once a pod was removed; what requests still learn of it then is of no use to anybody."""
        return self.fleet.get(pod.url) is pod

    def notice(self, pod: Pod, fault: PodFault) -> None:
        """A request met a fault: a pod whose port is closed is down at once, any other is probed at once."""
        if fault.process_gone:
            self.lost(pod, fault.detail)
        self.suspect(pod)

    def suspect(self, pod: Pod) -> None:
        """Have a pod looked at now."""
        if not self.has(pod):
            return
        self.suspects.add(pod.url)
        self.suspicion.set()

    def lost(self, pod: Pod, detail: str) -> None:
        """Nothing listens on a pod's port: it is down. Whether its process is gone shows when it is back."""
        if not self.has(pod):
            return
        self.losses[pod.url] += 1
        if pod.up:
            self.fleet.set_up(pod, False)
            self.observer.pod_changed(pod.url, pod.role, False, detail)

    def blame(self, pod: Pod, word: str) -> None:
        """A pod failed a request; too often in a row, and it gets none for a while."""
        if not self.has(pod):
            return
        self.outliers.ended(pod, True, time.monotonic())
        if pod.breaker.failed(self.settings.breaker, time.monotonic(), random.random()):
            self._breaker_changed(pod, f"{pod.breaker.failures} failures in a row, the last: {word}")

    def praise(self, pod: Pod, *, begun: bool = False) -> None:
        """A pod answered a request. begun: so far only its first word, which says enough where one request tries."""
        if (begun and pod.breaker.state is _CLOSED) or self.fleet.get(pod.url) is not pod:
            return
        if not begun:
            self.outliers.ended(pod, False, time.monotonic())
        if pod.breaker.succeeded():
            self._breaker_changed(pod, "it answered")

    def wake_breakers(self) -> None:
        """Let one request go to each pod whose cool-down is over."""
        for pod in self.fleet.guarded:
            if pod.breaker.due(time.monotonic()):
                self._breaker_changed(pod, "one request may try")

    def review_outliers(self) -> None:
        """Take traffic from pods that are far from their peers, give it back to others; every few seconds."""
        if not self.outliers.due(time.monotonic()):
            return
        for role in Role:
            pods = [pod for pod in self.fleet.of(role) if pod.up]
            for pod, why in self.outliers.review(pods, time.monotonic()):
                self.observer.fault("outlier", pod.url, "-", f"gets less traffic: {why}")

    def came_up(self, pod: Pod, detail: str) -> None:
        """A pod is well again, or for the first time."""
        if pod.breaker.reset():
            self._breaker_changed(pod, "the pod came up")
        self.fleet.set_up(pod, True)
        self.observer.pod_changed(pod.url, pod.role, True, detail)
        self.admission.freed()

    def _breaker_changed(self, pod: Pod, detail: str) -> None:
        self.fleet.note_breaker(pod)
        self.observer.pod_breaker(pod.url, pod.role, pod.breaker.state, detail)

    def restarted(self, pod: Pod, detail: str) -> None:
        """A pod's process was replaced, and its KV went with it."""
        pod.replaced()
        self.handovers.forget(pod.url)
        self.origins.forget(pod.url)
        if self.settings.pairs.probe:
            self.fleet.hold_pairs(pod)
        self.outliers.forget(pod)
        if pod.breaker.reset():
            self._breaker_changed(pod, "the pod was restarted")
        self.explained[pod.url] = self.losses[pod.url]
        for known in (self.fingerprints, self.engines, self.unrendered):
            known.pop(pod.url, None)
        self.observer.pod_restarted(pod.url, pod.role, detail)

    def gone(self, pod: Pod) -> None:
        """Forget a pod that has left the fleet, so that nothing of it stays."""
        self.residency.drop(pod)
        self.handovers.drop(pod.url)
        self.origins.forget(pod.url)
        self.outliers.forget(pod)
        for known in (self.fingerprints, self.engines, self.unrendered, self.losses, self.explained):
            known.pop(pod.url, None)
        self.suspects.discard(pod.url)

    def met_engine(self, pod: Pod, engine: bytes | None) -> None:
        """An answer named the pod's KV engine; another one than before is another process."""
        known = self.engines.get(pod.url)
        if engine is None or engine == known or not self.has(pod):
            return
        if known is not None:
            self.restarted(pod, f"its hand-overs name KV engine {engine.decode()}, before {known.decode()}")
            self.suspect(pod)
        self.engines[pod.url] = engine

    def let_go_done(self, waiting: Waiting | None) -> Callable[[], None]:
        """What to call when an abandoned answering leg has ended: D has told P, and its place is free."""

        def done() -> None:
            if waiting is not None:
                self.handovers.over(waiting)
            self.admission.freed()

        return done

    def background(self, work: Coroutine[Any, Any, object]) -> None:
        """Run work that outlives its request; `finish_background` waits for it at shutdown."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def background_tasks(self) -> int:
        """How many such pieces of work are under way."""
        return len(self._tasks)

    async def finish_background(self) -> None:
        """Wait for all background work."""
        while self._tasks:
            await asyncio.wait(self._tasks)
