"""Runs any number of engines on one virtual clock.

Rule of this room: time moves from event to event; nothing sleeps. A read order goes over the reader's link to the
source engine directly, so a P/D pair needs no HTTP here.
"""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from loadtest.engine.core import Engine
from loadtest.engine.request import EngineOutput, EngineRequest, PullOrder
from loadtest.engine.transfer import Links

OnOutput = Callable[[float, EngineOutput], None]


@dataclass(slots=True)
class _Pod:
    name: str
    engine: Engine
    links: Links
    busy: bool = False
    wake_s: float | None = None
    listeners: dict[str, OnOutput] = field(default_factory=dict)


class VirtualCluster:
    """Engines by name. `submit` at the current time, `call_at` for anything else, `run` until nothing is left."""

    def __init__(self) -> None:
        self.now = 0.0
        self._pods: dict[str, _Pod] = {}
        self._by_engine_id: dict[str, _Pod] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def add(self, name: str, engine: Engine) -> None:
        pod = _Pod(name, engine, Links(engine.profile.transfer))
        self._pods[name] = pod
        if engine.connector:
            self._by_engine_id[engine.connector.config.engine_id] = pod

    def call_at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (max(when, self.now), next(self._order), action))

    def submit(self, name: str, request: EngineRequest, on_output: OnOutput) -> None:
        """Give a request to a pod now; `on_output(time, output)` is called for each output."""
        pod = self._pods[name]
        pod.listeners[request.request_id] = on_output
        pod.engine.submit(request, self.now)
        self._poke(pod)

    def abort(self, name: str, request_id: str) -> None:
        pod = self._pods[name]
        pod.listeners.pop(request_id, None)
        pod.engine.abort(request_id, self.now)
        self._poke(pod)

    def run(self, until: float = float("inf")) -> float:
        """Play events up to `until`; returns the time of the last one."""
        while self._events and self._events[0][0] <= until:
            self.now, _, action = heapq.heappop(self._events)
            action()
        return self.now

    def _poke(self, pod: _Pod) -> None:
        if not pod.busy:
            pod.busy = True
            self.call_at(self.now, lambda: self._step(pod))

    def _step(self, pod: _Pod) -> None:
        result = pod.engine.step(self.now)
        for order in result.pulls:
            self._pull(pod, order)
        if result.duration_s is None:
            pod.busy = False
            if result.wake_s is not None and result.wake_s != pod.wake_s:
                pod.wake_s = result.wake_s
                self.call_at(result.wake_s, lambda: self._poke(pod))
            return

        def end() -> None:
            for output in result.outputs:
                listener = pod.listeners.get(output.request_id)
                if output.finish is not None:
                    pod.listeners.pop(output.request_id, None)
                if listener:
                    listener(self.now, output)
            self._step(pod)

        self.call_at(self.now + result.duration_s, end)

    def _pull(self, reader: _Pod, order: PullOrder) -> None:
        source = self._by_engine_id.get(order.source.engine_id)
        arrival = reader.links.to(order.source.engine_id).send(self.now, order.num_bytes) if order.awaited else self.now

        def arrive() -> None:
            digests = None
            if source is not None and source.engine.connector is not None:
                digests = source.engine.connector.read(order.block_ids, order.counts)
                source.engine.connector.leases.release(order.source.request_id)
                self._poke(source)
            if order.awaited:
                reader.engine.pull_done(order.request_id, digests)
                self._poke(reader)

        self.call_at(arrival, arrive)
