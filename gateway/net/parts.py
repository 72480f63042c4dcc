"""What all requests share: the fleet, the conversations, the policy, the pool of connections, the observer."""

from __future__ import annotations

import asyncio
import time
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
from gateway.net.records import Observer
from gateway.net.settings import GatewaySettings
from gateway.net.upstream import PodClient, PodFault


@dataclass
class Parts:
    """Shared state of one gateway process; touched only from its event loop.

    fingerprints: per pod URL its `system_fingerprint` as raw JSON, learned from its streams.
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
    suspects: set[str] = field(default_factory=set)
    suspicion: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def notice(self, pod: Pod, fault: PodFault) -> None:
        """A request met a fault: a pod whose process is gone is down at once, any other is probed at once."""
        if fault.process_gone:
            self.lost(pod, fault.detail)
        self.suspects.add(pod.url)
        self.suspicion.set()

    def lost(self, pod: Pod, detail: str) -> None:
        """A pod's process is gone, and its KV with it."""
        self.fingerprints.pop(pod.url, None)
        if pod.up:
            self.fleet.set_up(pod, False)
            pod.epoch += 1
            self.observer.pod_changed(pod.url, pod.role, False, detail)

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
