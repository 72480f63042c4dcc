"""What all requests share: the fleet, the conversations, the policy, the pool of connections, the observer."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gateway.core.conversations import ConversationStore
from gateway.core.estimates import BytesPerToken
from gateway.core.outputs import OutputLengths
from gateway.core.pods import Fleet, Pod
from gateway.core.policies import Policy
from gateway.core.rates import RequestRate
from gateway.core.residency import Residency
from gateway.net.records import Observer
from gateway.net.settings import GatewaySettings
from gateway.net.shared import SharedState
from gateway.net.upstream import PodClient, PodFault


@dataclass
class Parts:
    """Shared state of one gateway process; touched only from its event loop.

    fingerprints: per pod URL its `system_fingerprint` as raw JSON, learned from its streams.
    residency: what lies in which pod's cache.
    renders_nothing: pods without the render endpoint (`--enable-scale-out`).
    engines: per pod URL the KV connector's engine id, a new one for every process of the pod.
    losses: per pod URL how often nothing listened on its port. explained: how many of them when it was last known
    which process it is; no entry for a pod that was never up.
    shared: what other gateways know, where there are any.
    suspects: pods whose health is to be looked at now rather than at the next interval.
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
    renders_nothing: set[str] = field(default_factory=set)
    engines: dict[str, bytes] = field(default_factory=dict)
    losses: Counter[str] = field(default_factory=Counter)
    explained: dict[str, int] = field(default_factory=dict)
    shared: SharedState | None = None
    suspects: set[str] = field(default_factory=set)
    suspicion: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.store.on_forget = self.residency.forget

    def notice(self, pod: Pod, fault: PodFault) -> None:
        """A request met a fault: a pod whose port is closed is down at once, any other is probed at once."""
        if fault.process_gone:
            self.lost(pod, fault.detail)
        self.suspect(pod)

    def suspect(self, pod: Pod) -> None:
        """Have a pod looked at now."""
        self.suspects.add(pod.url)
        self.suspicion.set()

    def lost(self, pod: Pod, detail: str) -> None:
        """Nothing listens on a pod's port: it is down. Whether its process is gone shows when it is back."""
        self.losses[pod.url] += 1
        if pod.up:
            self.fleet.set_up(pod, False)
            self.observer.pod_changed(pod.url, pod.role, False, detail)

    def restarted(self, pod: Pod, detail: str) -> None:
        """A pod's process was replaced, and its KV went with it."""
        pod.replaced()
        self.explained[pod.url] = self.losses[pod.url]
        self.fingerprints.pop(pod.url, None)
        self.engines.pop(pod.url, None)
        self.observer.pod_restarted(pod.url, pod.role, detail)

    def met_engine(self, pod: Pod, engine: bytes | None) -> None:
        """An answer named the pod's KV engine; another one than before is another process."""
        if engine is None:
            return
        known = self.engines.get(pod.url)
        if known is not None and known != engine:
            self.restarted(pod, f"its hand-overs name KV engine {engine.decode()}, before {known.decode()}")
            self.suspect(pod)
        self.engines[pod.url] = engine

    def background(self, work: Coroutine[Any, Any, None]) -> None:
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
