"""Runs any number of engines on one virtual clock.

Rule of this room: time moves from event to event; nothing sleeps. A read order goes over the reader's link to the
source engine directly, so a P/D pair needs no HTTP here. An engine may leap many steps at once; whoever touches it
in between interrupts the leap, so that nobody can tell (`leaps=False` steps one by one, for comparison).
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from loadtest.engine.core import Engine
from loadtest.engine.request import EngineOutput, EngineRequest, Finish, KvSource, PullOrder
from loadtest.engine.transfer import Card, Link, Links

OnOutput = Callable[[float, EngineOutput], None]


class Timer:
    """Something that will happen, unless cancelled."""

    __slots__ = ("action", "when")

    def __init__(self, when: float, action: Callable[[], None]) -> None:
        self.when = when
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        self.action = None


@dataclass(frozen=True, slots=True)
class PodLoad:
    """One pod as its `/metrics` would show it. Tokens and preemptions are counted from its last start."""

    up: bool
    running: int
    waiting: int
    pulling: int
    kv_usage: float
    prefill_tokens: int
    decode_tokens: int
    preemptions: int
    leased_blocks: int


@dataclass(slots=True, eq=False)
class _Pod:
    name: str
    engine: Engine
    links: Links
    cards: tuple[Card, ...]
    up: bool = True
    step: Timer | None = None
    """The end of the step or leap under way."""
    outputs: list[EngineOutput] | None = None
    """What the step under way gives; None: the engine will say (a leap)."""
    wake: Timer | None = None
    """When an idle pod will look again."""
    listeners: dict[str, OnOutput] = field(default_factory=dict)
    heartbeats: dict[str, Timer] = field(default_factory=dict)
    """Of requests that will read from another pod: when that pod hears next that they are still there."""


class VirtualCluster:
    """Engines by name. `submit` at the current time, `call_at` for anything else, `run` until nothing is left."""

    def __init__(self, *, leaps: bool = True) -> None:
        self.now = 0.0
        self._leaps = leaps
        self._pods: dict[str, _Pod] = {}
        self._by_engine_id: dict[str, _Pod] = {}
        self._events: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()

    def add(self, name: str, engine: Engine, *, nic_bytes_per_s: float | None = None) -> None:
        """A pod. `nic_bytes_per_s`: what all its links together carry at most."""
        cards = (Card(nic_bytes_per_s),) if nic_bytes_per_s else ()
        pod = _Pod(name, engine, Links(engine.profile.transfer), cards)
        self._pods[name] = pod
        if engine.connector:
            self._by_engine_id[engine.connector.config.engine_id] = pod

    def engine(self, name: str) -> Engine:
        """The engine of a pod, another one after a restart."""
        return self._pods[name].engine

    @property
    def links(self) -> dict[tuple[str, str], Link]:
        """All links that have been used: (reading pod, engine id read from)."""
        return {(pod.name, source): link for pod in self._pods.values() for source, link in pod.links}

    # ---- the clock

    def call_at(self, when: float, action: Callable[[], None]) -> Timer:
        """Let something happen at a time, now at the earliest."""
        timer = Timer(when if when > self.now else self.now, action)
        heapq.heappush(self._events, (timer.when, next(self._order), timer))
        return timer

    def run(self, until: float = float("inf")) -> float:
        """Play events up to `until`; returns the time of the last one."""
        events = self._events
        while events and events[0][0] <= until:
            self.step_once()
        return self.now

    def step_once(self) -> bool:
        """Play one event. False if there is none."""
        if not self._events:
            return False
        _, _, timer = heapq.heappop(self._events)
        if timer.action is not None:
            self.now = timer.when
            timer.action()
        return True

    # ---- requests

    def submit(self, name: str, request: EngineRequest, on_output: OnOutput) -> None:
        """Give a request to a pod now; `on_output(time, output)` is called for each output.

        A pod that is down, or whose context is too short for the prompt, says `Finish.ERROR` at once.
        """
        pod = self._pods[name]
        if not pod.up or len(request.prompt) > pod.engine.max_model_len:
            self.call_at(self.now, lambda: on_output(self.now, _lost(request.request_id)))
            return
        ready_s = pod.engine.submit(request, self.now)
        pod.listeners[request.request_id] = on_output
        if request.kv is not None and request.kv.do_remote_prefill and request.kv.source is not None:
            self._keep_alive(pod, request.request_id, request.kv.source)
        if pod.step is None:
            self._wake_at(pod, ready_s)
        else:
            self._moved(pod, pod.engine.limit(ready_s))

    def abort(self, name: str, request_id: str) -> int:
        """End a request without a word. Returns how many tokens of its answer there were (0: it is not there)."""
        pod = self._pods[name]
        pod.listeners.pop(request_id, None)
        self._forget(pod, request_id)
        self._interrupt(pod)
        made = pod.engine.progress(request_id)
        if pod.engine.abort(request_id, self.now):
            self._poke(pod)
        return made

    # ---- what may happen to a pod

    def load(self, name: str) -> PodLoad:
        """How busy a pod is."""
        pod = self._pods[name]
        self._interrupt(pod)
        engine, connector = pod.engine, pod.engine.connector
        return PodLoad(
            up=pod.up,
            running=engine.num_running,
            waiting=engine.num_waiting,
            pulling=connector.num_pulling if connector else 0,
            kv_usage=engine.pool.usage,
            prefill_tokens=engine.stats.prefill_tokens,
            decode_tokens=engine.stats.decode_tokens,
            preemptions=engine.stats.preemptions,
            leased_blocks=connector.leases.num_blocks if connector else 0,
        )

    def set_slowdown(self, name: str, factor: float) -> None:
        """Steps planned from now on take `factor` times what the profile says."""
        pod = self._pods[name]
        self._interrupt(pod)
        pod.engine.slowdown = factor

    def kill(self, name: str) -> None:
        """The pod dies: its requests end with an error, and all it held is gone."""
        pod = self._pods[name]
        if not pod.up:
            return
        for timer in (pod.step, pod.wake, *pod.heartbeats.values()):
            if timer:
                timer.cancel()
        pod.heartbeats.clear()
        pod.up, pod.step, pod.wake = False, None, None
        pod.engine = pod.engine.reborn()
        listeners, pod.listeners = pod.listeners, {}
        for request_id, on_output in listeners.items():
            on_output(self.now, _lost(request_id))

    def restart(self, name: str) -> None:
        """A dead pod is there again, empty."""
        self._pods[name].up = True

    # ---- steps

    def _poke(self, pod: _Pod) -> None:
        """Let an idle pod look for work now."""
        if pod.step is None and pod.up:
            self._wake_at(pod, self.now)

    def _wake_at(self, pod: _Pod, when: float) -> None:
        if pod.wake is not None:
            if pod.wake.when <= when:
                return
            pod.wake.cancel()
        pod.wake = self.call_at(when, lambda: self._step(pod))

    def _interrupt(self, pod: _Pod) -> None:
        """Before somebody touches the engine."""
        if pod.step is not None and pod.outputs is None:
            self._moved(pod, pod.engine.interrupt(self.now))

    def _moved(self, pod: _Pod, end_s: float | None) -> None:
        """The leap under way ends at another time."""
        if end_s is not None and pod.step is not None:
            pod.step.cancel()
            pod.step = self.call_at(end_s, lambda: self._end(pod))

    def _step(self, pod: _Pod) -> None:
        pod.wake = None
        result = pod.engine.step(self.now, leap=self._leaps)
        for order in result.pulls:
            self._pull(pod, order)
        if result.duration_s is None:
            pod.step = None
            if result.wake_s is not None:
                self._wake_at(pod, result.wake_s)
            return
        pod.outputs = None if result.leaps else list(result.outputs)
        pod.step = self.call_at(self.now + result.duration_s, lambda: self._end(pod))

    def _end(self, pod: _Pod) -> None:
        outputs = pod.engine.land() if pod.outputs is None else pod.outputs
        pod.outputs = []
        for output in outputs:
            if output.finish is None:
                listener = pod.listeners.get(output.request_id)
            else:
                listener = pod.listeners.pop(output.request_id, None)
                if pod.heartbeats:
                    self._forget(pod, output.request_id)
            if listener:
                listener(self.now, output)
        if pod.up:
            self._step(pod)

    def _pull(self, reader: _Pod, order: PullOrder) -> None:
        source = self._by_engine_id.get(order.source.engine_id)
        lender, borrower = source.engine if source and source.up else None, reader.engine
        arrival = self.now
        if order.awaited:
            cards = (*reader.cards, *(source.cards if source else ()))
            arrival = reader.links.to(order.source.engine_id, cards).send(self.now, order.num_bytes)

        def arrive() -> None:
            if reader.engine is not borrower:
                return
            self._forget(reader, order.request_id)
            digests = None
            if source is not None and source.engine is lender and lender.connector is not None:
                digests = lender.connector.read(order.block_ids, order.counts, named=order.named)
                self._interrupt(source)
                lender.connector.leases.release(order.source.request_id)
                self._poke(source)
            if order.awaited:
                self._interrupt(reader)
                borrower.pull_done(order.request_id, digests)
                self._poke(reader)

        self.call_at(arrival, arrive)

    # ---- heartbeats

    def _keep_alive(self, pod: _Pod, request_id: str, source: KvSource) -> None:
        """Renew the lease that a request waits to read, every sixth of its time (`_send_heartbeats`)."""
        if pod.engine.connector is None:
            return
        every_s = pod.engine.connector.config.lease_s / 6

        def beat() -> None:
            lender = self._by_engine_id.get(source.engine_id)
            if lender is not None and lender.up and lender.engine.connector is not None:
                lender.engine.connector.leases.renew(source.request_id, self.now)
            pod.heartbeats[request_id] = self.call_at(self.now + every_s, beat)

        pod.heartbeats[request_id] = self.call_at(self.now + every_s, beat)

    def _forget(self, pod: _Pod, request_id: str) -> None:
        heartbeat = pod.heartbeats.pop(request_id, None)
        if heartbeat is not None:
            heartbeat.cancel()


def _lost(request_id: str) -> EngineOutput:
    return EngineOutput(request_id, finish=Finish.ERROR)
