"""Pods that come and go while the gateway runs.

Rule of this room: a pod belongs to whoever named it (the configuration, a discovery, the admin API), and stays until
all of them have let go. Then it is emptied first: nothing new goes there, what runs ends, or is cut when the time is
over. Afterwards nothing of it is left: no task, no socket, no entry.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from gateway.core.pods import Pod, Role
from gateway.net.health import Health
from gateway.net.parts import Parts

CONFIG = "config"
"""The source of the pods that the configuration names."""

ADMIN = "admin"

LOOK_S = 0.05
"""Between two looks at a pod that is being emptied."""

CUT_S = 1.0
"""For requests that were cut off to notice it."""


LATE_S = 60.0
"""After which it is looked for what a request that was about to end has left of a pod that is gone."""


class UnknownPod(LookupError):
    """No pod has that URL."""


class Roster:
    """Adds pods to a running gateway and takes them out again.

    drain_s: how long requests at a pod that leaves may go on. `stop` in the end.
    """

    def __init__(self, parts: Parts, health: Health, drain_s: float) -> None:
        self._parts = parts
        self._health = health
        self._drain_s = drain_s
        self._claims: dict[str, dict[str, Role]] = {pod.url: {CONFIG: pod.role} for pod in parts.fleet}
        self._held: dict[str, set[str]] = {}
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._late: dict[str, asyncio.TimerHandle] = {}

    def add(self, url: str, role: Role, *, source: str) -> Pod:
        """A source names a pod. A pod on its way out stays; one that has another role changes it once it is empty.

        Where sources differ in the role, the one that came first is right.
        """
        claims = self._claims.setdefault(url, {})
        claims[source] = role
        pod = self._parts.fleet.get(url)
        if pod is None:
            return self._enter(url, source)
        if pod.role is self.role_of(url):
            self._keep(pod)
        else:
            self._leave(pod, f"becomes a {self.role_of(url)} pod")
        return pod

    def remove(self, url: str, *, source: str, drain: bool = True) -> bool:
        """A source lets go of a pod; True when that was the last, so that the pod leaves.

        drain: let it become empty first.
        """
        claims = self._claims.get(url)
        if claims is None or claims.pop(source, None) is None:
            return False
        self._hold(url, source, False)
        pod = self._parts.fleet.get(url)
        if claims:
            if pod is not None and pod.role is not self.role_of(url):
                self._leave(pod, f"becomes a {self.role_of(url)} pod")
            elif pod is not None and url not in self._leaving:
                self._parts.fleet.set_draining(pod, url in self._held)
            return False
        del self._claims[url]
        if pod is not None:
            self._leave(pod, f"{source} let go of it", drain=drain)
        return True

    def set_draining(self, url: str, draining: bool, *, source: str = ADMIN) -> None:
        """Have a pod emptied, or not any more; it is kept empty while any source wants that. Raises UnknownPod."""
        pod = self._parts.fleet.get(url)
        if pod is None or url not in self._claims:
            raise UnknownPod(url)
        self._hold(url, source, draining)
        if url not in self._leaving:
            self._parts.fleet.set_draining(pod, bool(self._held.get(url)))

    def draining(self) -> Iterator[tuple[Pod, str]]:
        """The pods that get nothing new, and why."""
        for pod in self._parts.fleet:
            if pod.url in self._leaving:
                yield pod, "leaving"
            elif pod.draining:
                yield pod, f"drained by {', '.join(sorted(self._held.get(pod.url, ())))}"

    def sources(self, url: str) -> tuple[str, ...]:
        """Who names a pod, the one that came first first."""
        return tuple(self._claims.get(url, ()))

    def role_of(self, url: str) -> Role:
        """The role of a pod that someone names: what the source that came first says."""
        return next(iter(self._claims[url].values()))

    def of(self, source: str) -> dict[str, Role]:
        """The pods that a source names."""
        return {url: claims[source] for url, claims in self._claims.items() if source in claims}

    async def left(self, url: str) -> None:
        """Wait until a pod that leaves has left."""
        while (task := self._leaving.get(url)) is not None:
            await asyncio.wait([task])

    async def stop(self) -> None:
        """Wait for no pod any more."""
        for timer in self._late.values():
            timer.cancel()
        tasks = list(self._leaving.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _hold(self, url: str, source: str, held: bool) -> None:
        holders = self._held.setdefault(url, set())
        (holders.add if held else holders.discard)(source)
        if not holders:
            del self._held[url]

    def _enter(self, url: str, source: str) -> Pod:
        pod = Pod(url, self.role_of(url))
        pod.draining = url in self._held
        if (timer := self._late.pop(url, None)) is not None:
            timer.cancel()
        self._parts.fleet.add(pod)
        self._health.add(pod)
        self._parts.observer.pod_added(url, pod.role, source)
        return pod

    def _keep(self, pod: Pod) -> None:
        """It was named again before it was gone."""
        task = self._leaving.pop(pod.url, None)
        if task is not None:
            task.cancel()
            self._parts.fleet.set_draining(pod, pod.url in self._held)

    def _leave(self, pod: Pod, why: str, *, drain: bool = True) -> None:
        self._parts.fleet.set_draining(pod, True)
        task = self._leaving.get(pod.url)
        if task is not None:
            if drain:
                return
            task.cancel()
        self._leaving[pod.url] = asyncio.ensure_future(self._empty_then_go(pod, why, self._drain_s if drain else 0.0))

    async def _empty_then_go(self, pod: Pod, why: str, limit_s: float) -> None:
        """Wait until nothing uses the pod, then take it out. Cancelled when the pod is to stay after all."""
        await self._wait_until_unused(pod, limit_s)
        if self._in_use(pod):
            self._parts.fleet.set_up(pod, False)
            cut = self._parts.client.drop(pod.url)
            why = f"{why}; requests cut off after {limit_s:g} s: {pod.in_flight}" if cut else why
            await self._wait_until_unused(pod, CUT_S)
        self._take_out(pod, why)

    async def _wait_until_unused(self, pod: Pod, limit_s: float) -> None:
        until = time.monotonic() + limit_s
        while self._in_use(pod) and time.monotonic() < until:  # noqa: ASYNC110 - there are many ways to end a use
            await asyncio.sleep(LOOK_S)

    def _in_use(self, pod: Pod) -> bool:
        waiting, _ = self._parts.handovers.of(pod.url, time.monotonic())
        return pod.in_flight > 0 or pod.readbacks > 0 or waiting > 0

    def _take_out(self, pod: Pod, why: str) -> None:
        """All at once, so that the same URL may be named again right behind it."""
        parts, url = self._parts, pod.url
        del self._leaving[url]
        self._health.drop(pod)
        parts.fleet.remove(pod)
        parts.observer.pod_removed(url, pod.role, why)
        self._clear(pod)
        if url not in self._claims:
            self._held.pop(url, None)
            self._late[url] = asyncio.get_running_loop().call_later(LATE_S, self._clear, pod)
        else:
            self._enter(url, next(iter(self._claims[url])))

    def _clear(self, pod: Pod) -> None:
        """Close and forget what there is of a pod that is gone."""
        self._late.pop(pod.url, None)
        self._parts.client.drop(pod.url)
        self._parts.gone(pod)
