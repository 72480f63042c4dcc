"""Which pods publish KV events, and a turn of the loop for each that has some.

Rule of this room: events share the event loop with requests, so they get it in slices. Nothing here raises into a
request: a pod that cannot be heard has no view, and the ledger answers for it.
"""

from __future__ import annotations

import asyncio
import importlib
import time
from collections import deque
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from gateway.core.pods import Pod
from gateway.net.parts import Parts
from gateway.net.records import IdleObserver
from gateway.net.upstream import PodFault
from gateway.wire.kv_events import BadEventError, EventSource, read_sources

if TYPE_CHECKING:
    import zmq.asyncio

    from gateway.net.listener import Listener

SLICE_S = 0.0003
"""Time for events per turn of the loop; one event more may begin before it is over."""

ASK_AGAIN_S = 5.0
"""After a pod that is up could not be asked where it publishes."""


class EventSubscriber(IdleObserver):
    """Listens to every pod that publishes. An observer: a pod that comes up is asked where it publishes.

    endpoints: sources the operator gave, by pod URL; other pods are asked (`GET /kv_event_sources`).
    """

    def __init__(self, parts: Parts, endpoints: dict[str, EventSource] | None = None) -> None:
        self._parts = parts
        self._endpoints = endpoints or {}
        self._context: zmq.asyncio.Context | None = None
        self._listeners: dict[tuple[str, int], Listener] = {}
        self._ready: deque[Listener] = deque()
        self._pumping = False
        self._tasks: dict[asyncio.Task[None], str] = {}

    def start(self) -> None:
        """Ask the pods that are up already; the others follow when they come up."""
        for pod in self._parts.fleet:
            if pod.up:
                self.pod_up(pod)

    async def stop(self) -> None:
        """Close all sockets."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for key in list(self._listeners):
            self._close(key)
        if self._context is not None:
            self._context.destroy(linger=0)

    def pod_changed(self, pod: str, role: str, up: bool, detail: str) -> None:
        found = self._parts.fleet.get(pod)
        if up and found is not None:
            self.pod_up(found)

    def pod_restarted(self, pod: str, role: str, detail: str) -> None:
        found = self._parts.fleet.get(pod)
        if found is not None and found.up:
            self.pod_up(found)

    def pod_up(self, pod: Pod) -> None:
        """A pod came up: find its sources, hear what was missed."""
        task = asyncio.ensure_future(self._follow(pod))
        self._tasks[task] = pod.url
        task.add_done_callback(self._tasks.pop)

    def pod_removed(self, pod: str, role: str, detail: str) -> None:
        for task in [task for task, url in self._tasks.items() if url == pod]:
            task.cancel()
        for key in [key for key in self._listeners if key[0] == pod]:
            self._close(key)

    async def _follow(self, pod: Pod) -> None:
        while (sources := await self._sources(pod)) is None:
            await asyncio.sleep(ASK_AGAIN_S)
            if not pod.up:
                return
        if sources:
            await asyncio.to_thread(importlib.import_module, "gateway.net.listener")  # takes 20 ms, the first time
        for key in [key for key in self._listeners if key[0] == pod.url and key[1] not in sources]:
            self._close(key)
        if not sources:
            self._parts.residency.drop_views(pod)
        for rank, source in sources.items():
            listener = self._listeners.get((pod.url, rank))
            if listener is not None and msgspec.structs.asdict(listener.source) != msgspec.structs.asdict(source):
                self._close((pod.url, rank))
                listener = None
            if listener is None:
                listener = self._listen(pod, rank, source)
            listener.catch_up()

    async def _sources(self, pod: Pod) -> dict[int, EventSource] | None:
        """Where a pod publishes, by DP rank; None when it could not be asked."""
        given = self._endpoints.get(pod.url)
        if given is not None:
            return {0: given}
        timeout_s = self._parts.settings.health.timeout_s
        try:
            answer = await self._parts.client.call("GET", pod.url, "/kv_event_sources", [], b"", timeout_s)
            try:
                body = await answer.read(timeout_s)
            finally:
                answer.close()
            found = read_sources(body) if answer.status == 200 else {}
        except BadEventError:
            return {}
        except PodFault:
            return None
        host = urlsplit(pod.url).hostname or ""
        return {rank: at_host(source, host) for rank, source in found.items()}

    def _listen(self, pod: Pod, rank: int, source: EventSource) -> Listener:
        import zmq.asyncio

        from gateway.net.listener import Listener

        if self._context is None:
            self._context = zmq.asyncio.Context()
        listener = Listener(pod, rank, source, self._context, self._parts, SLICE_S)
        self._listeners[pod.url, rank] = listener
        self._parts.residency.view(pod, rank)
        asyncio.get_running_loop().add_reader(listener.descriptor, self._readable, listener)
        self._readable(listener)
        return listener

    def _close(self, key: tuple[str, int]) -> None:
        listener = self._listeners.pop(key)
        asyncio.get_running_loop().remove_reader(listener.descriptor)
        if listener in self._ready:
            self._ready.remove(listener)
        listener.close()

    def _readable(self, listener: Listener) -> None:
        if listener not in self._ready:
            self._ready.append(listener)
        if not self._pumping:
            self._pumping = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        """One slice, then the loop's other work, then the next."""
        until = time.perf_counter() + SLICE_S
        while self._ready and time.perf_counter() < until:
            listener = self._ready.popleft()
            if listener.work(until):
                self._ready.append(listener)
        if self._ready:
            asyncio.get_running_loop().call_soon(self._pump)
        else:
            self._pumping = False


def at_host(source: EventSource, host: str) -> EventSource:
    """A source as it is reached from outside: a wildcard address becomes the pod's host."""
    return msgspec.structs.replace(
        source,
        endpoint=_reachable(source.endpoint, host),
        replay_endpoint=_reachable(source.replay_endpoint, host) if source.replay_endpoint else None,
    )


def _reachable(endpoint: str, host: str) -> str:
    scheme, _, address = endpoint.partition("://")
    bound, _, port = address.rpartition(":")
    if scheme != "tcp" or bound not in ("*", "0.0.0.0", "[::]", "::", ""):
        return endpoint
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
