"""Watching the pods.

Rule of this room: a pod is up when `/health` says 200, down after some failures in a row, and down at once when
nothing listens on its port. Only a process that was seen to be gone loses its KV; a slow answer does not.
"""

from __future__ import annotations

import asyncio
import random

import msgspec

from gateway.core.pods import Pod
from gateway.net.parts import Parts
from gateway.net.upstream import PodFault


class ModelList(msgspec.Struct):
    """A pod's `/v1/models`, its entries as the raw JSON they came in."""

    data: list[msgspec.Raw] = []


class Health:
    """Probes every pod in its own task. `start` first, `stop` in the end."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._tasks: list[asyncio.Task[None]] = []
        self._wake = {pod.url: asyncio.Event() for pod in parts.fleet}
        self.models: dict[str, ModelList] = {}

    def model_names(self) -> set[str]:
        """The models that the pods say they serve."""
        return set(_by_name(self.models))

    def start(self) -> None:
        """Begin to watch; the first probes go out at once."""
        self._tasks = [asyncio.ensure_future(self._watch(pod)) for pod in self._parts.fleet]
        self._tasks.append(asyncio.ensure_future(self._pass_on_suspicion()))

    async def stop(self) -> None:
        """End all probes."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _pass_on_suspicion(self) -> None:
        parts = self._parts
        while True:
            await parts.suspicion.wait()
            parts.suspicion.clear()
            for url in parts.suspects:
                self._wake[url].set()
            parts.suspects.clear()

    async def _watch(self, pod: Pod) -> None:
        settings = self._parts.settings.health
        failures = 0
        while True:
            fault = await self._probe(pod)
            failures = 0 if fault is None else failures + 1
            if fault is None:
                await self._came_up(pod)
            elif fault.process_gone:
                self._parts.lost(pod, fault.detail)
            elif failures >= settings.failures:
                self._went_down(pod, fault)
            wake = self._wake[pod.url]
            wake.clear()
            try:
                async with asyncio.timeout(settings.interval_s * random.uniform(0.9, 1.1)):
                    await wake.wait()
            except TimeoutError:
                continue

    async def _probe(self, pod: Pod) -> PodFault | None:
        try:
            status, _ = await self._get(pod, "/health")
        except PodFault as fault:
            return fault
        return None if status == 200 else PodFault("status", str(status))

    async def _came_up(self, pod: Pod) -> None:
        if pod.up and pod.url in self.models:
            return
        try:
            status, body = await self._get(pod, "/v1/models")
            if status == 200:
                self.models[pod.url] = msgspec.json.decode(body, type=ModelList)
        except (PodFault, msgspec.DecodeError):
            self.models.pop(pod.url, None)
        if not pod.up:
            self._parts.fleet.set_up(pod, True)
            self._parts.observer.pod_changed(pod.url, pod.role, True, "healthy")

    def _went_down(self, pod: Pod, fault: PodFault) -> None:
        self.models.pop(pod.url, None)
        if pod.up:
            self._parts.fleet.set_up(pod, False)
            self._parts.observer.pod_changed(pod.url, pod.role, False, str(fault))

    async def _get(self, pod: Pod, path: str) -> tuple[int, bytes]:
        timeout_s = self._parts.settings.health.timeout_s
        answer = await self._parts.client.call("GET", pod.url, path, [], b"", timeout_s)
        try:
            return answer.status, await answer.read(timeout_s)
        finally:
            answer.close()


class _Named(msgspec.Struct):
    id: str


def union_of_models(lists: dict[str, ModelList]) -> bytes:
    """`/v1/models` over all pods: every model once, as the first pod that has it describes it."""
    return msgspec.json.encode({"object": "list", "data": list(_by_name(lists).values())})


def _by_name(lists: dict[str, ModelList]) -> dict[str, msgspec.Raw]:
    seen: dict[str, msgspec.Raw] = {}
    for models in lists.values():
        for entry in models.data:
            try:
                seen.setdefault(msgspec.json.decode(entry, type=_Named).id, entry)
            except msgspec.DecodeError:
                continue
    return seen
