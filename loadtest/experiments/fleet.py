"""The pods of one experiment and what a gateway knows of them: health, facts, weights, breakers.

Rule of this room: the gateway learns of a pod as the real one does, by probes at their interval and by requests that
fail; it is never told by the scenario.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core.breakers import BreakerRules
from gateway.core.outliers import Outliers
from gateway.core.pods import Fleet, Pod, PodFacts, Role
from loadtest.engine.core import Engine
from loadtest.engine.kv_connector import KvConfig
from loadtest.engine.profile import Profile
from loadtest.engine.virtual import VirtualCluster

PROBE_S = 2.0
FACTS_S = 5.0
"""As `gateway.net.settings.HealthSettings` has them."""


@dataclass
class Watch:
    """Keeps a fleet's view of a cluster up to date while it runs. `begin` once, `end` when the traffic is over."""

    cluster: VirtualCluster
    fleet: Fleet
    dice: random.Random

    def __post_init__(self) -> None:
        self.outliers = Outliers()
        self.rules = BreakerRules()
        self._engines = {pod.url: self.cluster.engine(pod.url) for pod in self.fleet}
        self._facts_at_s = 0.0
        self._over = False

    def begin(self) -> None:
        self._look()

    def end(self) -> None:
        self._over = True

    def lost(self, pod: Pod) -> None:
        """Nothing listens there."""
        if pod.up:
            self.fleet.set_up(pod, False)

    def blame(self, pod: Pod) -> None:
        self.outliers.ended(pod, True, self.cluster.now)
        if pod.breaker.failed(self.rules, self.cluster.now, self.dice.random()):
            self.fleet.note_breaker(pod)

    def praise(self, pod: Pod) -> None:
        self.outliers.ended(pod, False, self.cluster.now)
        if pod.breaker.succeeded():
            self.fleet.note_breaker(pod)

    def wake_breakers(self) -> None:
        for pod in self.fleet.guarded:
            if pod.breaker.due(self.cluster.now):
                self.fleet.note_breaker(pod)

    def _look(self) -> None:
        """A round of probes."""
        if self._over:
            return
        now = self.cluster.now
        facts = now >= self._facts_at_s
        if facts:
            self._facts_at_s = now + FACTS_S
        for pod in self.fleet:
            load = self.cluster.load(pod.url)
            if pod.up and not load.up:
                self.fleet.set_up(pod, False)
            elif load.up:
                self._answers(pod)
                if facts:
                    self._read_facts(pod, load.running, load.waiting, load.kv_usage)
        if self.outliers.due(now):
            for role in Role:
                self.outliers.review([pod for pod in self.fleet.of(role) if pod.up], now)
        self.cluster.call_at(now + PROBE_S, self._look)

    def _answers(self, pod: Pod) -> None:
        engine = self.cluster.engine(pod.url)
        if engine is not self._engines[pod.url]:
            self._engines[pod.url] = engine
            pod.replaced()
            self.outliers.forget(pod)
            if pod.breaker.reset():
                self.fleet.note_breaker(pod)
            self._read_facts(pod, 0, 0, 0.0)
        if not pod.up:
            self.fleet.set_up(pod, True)

    def _read_facts(self, pod: Pod, running: int, waiting: int, kv_usage: float) -> None:
        cache = self._engines[pod.url].profile.cache
        pod.facts = PodFacts(
            block_size=cache.block_size,
            num_blocks=cache.num_blocks,
            prefix_caching=True,
            running=running,
            waiting=waiting,
            kv_usage=kv_usage,
            seen_at=self.cluster.now,
        )


def make(pods: Sequence[Pod], profile: Profile, *, readback: bool) -> tuple[VirtualCluster, Fleet]:
    """Engines for pods, all of the same profile."""
    cluster = VirtualCluster()
    for pod in pods:
        kv = (
            None if pod.role is Role.REPLICA else KvConfig(pod.url, bidirectional=readback and pod.role is Role.PREFILL)
        )
        cluster.add(pod.url, Engine(profile, kv=kv))
    return cluster, Fleet(pods)
