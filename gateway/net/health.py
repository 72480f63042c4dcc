"""Watching the pods.

Rule of this room: a pod is up when `/health` says 200, down after some failures in a row, and down at once when
nothing listens on its port. Only a pod whose process was replaced loses its KV; a slow answer or a closed door in
front of the same process does not. A replaced pod has a new epoch before it gets any traffic.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Collection

import msgspec

from gateway.core.pods import Pod, Role
from gateway.net.model_watch import ModelWatch
from gateway.net.pairs import PairProbes
from gateway.net.parts import Parts
from gateway.net.pod_facts import ModelList, Scout, cards, why_replaced
from gateway.net.selftest import SelfTests
from gateway.net.upstream import PodFault


class Health:
    """Probes every pod in its own task. `start` first, `stop` in the end.

    models: per pod URL its `/v1/models`.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._scout = Scout(parts.client, parts.settings.health.timeout_s)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._listening: asyncio.Task[None] | None = None
        self._wake = {pod.url: asyncio.Event() for pod in parts.fleet}
        self._failures = {pod.url: 0 for pod in parts.fleet}
        self._introduced: dict[str, int] = {}
        self._read_at: dict[str, float] = {}
        self.model_watch = parts.model_watch = ModelWatch(parts, self._scout)
        self.models = self.model_watch.lists
        self.selftests = SelfTests(parts)
        self.pairs = PairProbes(parts)

    def model_names(self) -> set[str]:
        """The models that the pods say they serve."""
        return set(_by_name(self.models))

    def start(self) -> None:
        """Begin to watch; the first probes go out at once."""
        self._tasks = {pod.url: asyncio.ensure_future(self._watch(pod)) for pod in self._parts.fleet}
        self._listening = asyncio.ensure_future(self._pass_on_suspicion())

    async def stop(self) -> None:
        """End all probes."""
        tasks = list(self._tasks.values())
        if self._listening is not None:
            tasks.append(self._listening)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.model_watch.stop()
        await self.selftests.stop()
        await self.pairs.stop()

    def add(self, pod: Pod) -> None:
        """A pod has joined the fleet: watch it too, from now on or from `start` on."""
        self._wake[pod.url], self._failures[pod.url] = asyncio.Event(), 0
        if self._listening is not None:
            self._tasks[pod.url] = asyncio.ensure_future(self._watch(pod))

    def drop(self, pod: Pod) -> None:
        """A pod leaves: end its probes, and forget it."""
        task = self._tasks.pop(pod.url, None)
        if task is not None:
            task.cancel()
        self.selftests.drop(pod)
        for known in (self._wake, self._failures, self._introduced, self._read_at, self.models):
            known.pop(pod.url, None)

    async def look(self, pod: Pod, *, closely: bool = True) -> None:
        """Probe a pod once. closely: read its facts even when they are not due."""
        losses = self._parts.losses[pod.url]
        self._parts.wake_breakers()
        self._parts.handovers.expire(time.monotonic())
        self._parts.review_outliers()
        try:
            await self._scout.healthy(pod)
        except PodFault as fault:
            self._failed(pod, fault)
            return
        self._failures[pod.url] = 0
        if closely or not pod.up or self._due(pod):
            await self._learn(pod, losses)
        if self._parts.losses[pod.url] != losses:
            self._parts.suspect(pod)
            return
        self._parts.explained[pod.url] = losses
        if not pod.up:
            self._parts.came_up(pod, "healthy")
        self.selftests.consider(pod)
        self.pairs.consider()

    async def _pass_on_suspicion(self) -> None:
        parts = self._parts
        while True:
            await parts.suspicion.wait()
            parts.suspicion.clear()
            for url in parts.suspects & self._wake.keys():
                self._wake[url].set()
            parts.suspects.clear()

    async def _watch(self, pod: Pod) -> None:
        interval_s = self._parts.settings.health.interval_s
        wake = self._wake[pod.url]
        while True:
            suspected = wake.is_set()
            wake.clear()
            await self.look(pod, closely=suspected)
            try:
                async with asyncio.timeout(interval_s * random.uniform(0.9, 1.1)):
                    await wake.wait()
            except TimeoutError:
                continue

    def _failed(self, pod: Pod, fault: PodFault) -> None:
        if fault.word == "local":
            return
        self._failures[pod.url] += 1
        if fault.process_gone:
            self._parts.lost(pod, fault.detail)
        elif pod.up and self._failures[pod.url] >= self._parts.settings.health.failures:
            self._parts.fleet.set_up(pod, False)
            self._parts.observer.pod_changed(pod.url, pod.role, False, str(fault))
        if not pod.up:
            self.models.pop(pod.url, None)

    def _due(self, pod: Pod) -> bool:
        age_s = time.monotonic() - self._read_at.get(pod.url, -math.inf)
        return age_s >= self._parts.settings.health.facts_interval_s

    async def _learn(self, pod: Pod, losses: int) -> None:
        """Read the pod's facts; give it a new epoch if they are those of another process."""
        facts = await self._scout.facts(pod)
        self._read_at[pod.url] = time.monotonic()
        explained = self._parts.explained.get(pod.url)
        if explained is not None:
            reason = why_replaced(pod.facts, facts, was_gone=explained != losses)
            if reason is not None:
                self._parts.restarted(pod, reason)
        if facts.seen_at:
            pod.facts = facts
        if self._introduced.get(pod.url) == pod.epoch:
            await self.model_watch.read(pod)
        else:
            await self._introduce(pod)
        if pod.role is Role.PREFILL and self._parts.origins.asks:
            await self._find_origin(pod)

    async def _find_origin(self, pod: Pod) -> None:
        """Ask a prefill pod's bootstrap server who it is; a new engine is a new process."""
        parts = self._parts
        try:
            engines = await parts.origins.ask(parts.client, pod, parts.settings.health.timeout_s)
        except PodFault as fault:
            parts.observer.fault(f"bootstrap_{fault.word}", pod.url, "-", fault.detail)
            return
        parts.met_engine(pod, next(iter(engines.values())).partition("_dp")[0].encode())
        parts.origins.met(pod, engines)

    async def _introduce(self, pod: Pod) -> None:
        """Ask what a new process is."""
        self.models.pop(pod.url, None)
        epoch = pod.epoch
        told, version = await self.model_watch.read(pod), await self._scout.version(pod)
        pod.facts = msgspec.structs.replace(pod.facts, version=version)
        if told:
            self._introduced[pod.url] = epoch


def union_of_models(lists: dict[str, ModelList], allowed: Collection[str] | None = None) -> bytes:
    """`/v1/models` over all pods: every model once, as the first pod that has it describes it. allowed: None: all."""
    found = [entry for name, entry in _by_name(lists).items() if allowed is None or name in allowed]
    return msgspec.json.encode({"object": "list", "data": found})


def _by_name(lists: dict[str, ModelList]) -> dict[str, msgspec.Raw]:
    seen: dict[str, msgspec.Raw] = {}
    for models in lists.values():
        for card, entry in cards(models):
            seen.setdefault(card.id, entry)
    return seen
