"""Those that wait: class by class, tenants in fair turns, within a tenant live conversations first, then by deadline.

Rule of this room: order only; whether there is room is the desk's business. A tenant's turn comes by the tokens it was
served for its share (start-time fair queueing, Goyal et al. 1996, a tag per flow in place of one per packet, so that
within a flow the order is free). A flow that was idle gets no credit for it, and owes what it was served before.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from gateway.core.admission.classes import ServiceClass
from gateway.core.decide import Plan, Request

Flow = tuple[str, str, str]
"""Tenant, model and lane: those for another model, or that need no prefill pod, do not wait for the same."""


@dataclass(slots=True, eq=False)
class Waiter:
    """A request at the desk.

    plan: decides it now, None when no pod could answer. lane: what it waits for, which the desk knows. tokens: of its
    prompt and answer, expected. live: a later turn of a conversation. deadline_s: when its first token is due at the
    latest, inf for whenever. leave_s: when it is of no use to wait any longer. in_flight: it was let in.
    """

    tenant: str
    model: str
    service: ServiceClass
    request: Request
    plan: Callable[[], Plan | None]
    arrived_s: float
    live: bool = False
    share: float = 1.0
    deadline_s: float = math.inf
    leave_s: float = math.inf
    lane: str = ""
    number: int = 0
    in_flight: bool = False
    gone: bool = True
    """Not, or not any more, in the queue."""

    @property
    def flow(self) -> Flow:
        return self.tenant, self.model, self.lane

    @property
    def tokens(self) -> int:
        return self.request.prompt_tokens + self.request.output_tokens

    def order(self) -> tuple[bool, float, int]:
        """Within its flow."""
        return not self.live, self.deadline_s, self.number


@dataclass(slots=True)
class _Flow:
    """One tenant's waiters of one class. virtual: tokens it was served, for its share."""

    key: Flow
    virtual: float = 0.0
    tokens: int = 0
    live_tokens: int = 0
    share: float = 1.0
    heap: list[tuple[tuple[bool, float, int], Waiter]] = field(default_factory=list)

    def head(self) -> Waiter | None:
        while self.heap and self.heap[0][1].gone:
            heapq.heappop(self.heap)
        return self.heap[0][1] if self.heap else None

    def count(self, waiter: Waiter, sign: int) -> None:
        self.tokens += sign * waiter.tokens
        if waiter.live:
            self.live_tokens += sign * waiter.tokens


@dataclass(slots=True)
class _Band:
    """One class. virtual: the tag of the flow that was served last."""

    virtual: float = 0.0
    tokens: int = 0
    flows: dict[Flow, _Flow] = field(default_factory=dict)
    owing: dict[Flow, float] = field(default_factory=dict)
    """Tags of flows that do not wait now and are ahead of `virtual`."""


class FairQueue:
    """Add, serve or remove waiters; `heads` says who is next."""

    def __init__(self) -> None:
        self._bands = {service: _Band() for service in ServiceClass}
        self._count = 0
        self._numbers = 0

    def __len__(self) -> int:
        return self._count

    def tokens(self, service: ServiceClass) -> int:
        """Of all that wait in a class."""
        return self._bands[service].tokens

    def add(self, waiter: Waiter) -> None:
        """It waits from now on."""
        band = self._bands[waiter.service]
        flow = band.flows.get(waiter.flow)
        if flow is None:
            tag = max(band.virtual, band.owing.pop(waiter.flow, 0.0))
            flow = band.flows[waiter.flow] = _Flow(waiter.flow, tag)
        self._numbers += 1
        waiter.number, waiter.gone = self._numbers, False
        flow.share = waiter.share
        heapq.heappush(flow.heap, (waiter.order(), waiter))
        flow.count(waiter, 1)
        band.tokens += waiter.tokens
        self._count += 1

    def remove(self, waiter: Waiter) -> None:
        """It does not wait any more, and was not served."""
        band = self._bands[waiter.service]
        flow = band.flows[waiter.flow]
        waiter.gone = True
        flow.count(waiter, -1)
        band.tokens -= waiter.tokens
        self._count -= 1
        if flow.head() is None:
            del band.flows[waiter.flow]
            if flow.virtual > band.virtual:
                band.owing[waiter.flow] = flow.virtual
        if not band.flows:
            band.virtual = 0.0
            band.owing.clear()

    def serve(self, waiter: Waiter) -> None:
        """Its time has come: its flow pays for it."""
        band = self._bands[waiter.service]
        flow = band.flows[waiter.flow]
        band.virtual = max(band.virtual, flow.virtual)
        flow.virtual += waiter.tokens / flow.share
        if len(band.owing) > 64:
            band.owing = {key: tag for key, tag in band.owing.items() if tag > band.virtual}
        self.remove(waiter)

    def heads(self) -> Iterator[Waiter]:
        """The first of every flow, in the order of service. Nothing may be added or removed meanwhile."""
        for band in self._bands.values():
            order = []
            for flow in band.flows.values():
                if (head := flow.head()) is not None:
                    order.append((flow.virtual, head.number, head))
            heapq.heapify(order)
            while order:
                yield heapq.heappop(order)[2]

    def ahead(self, waiter: Waiter) -> float:
        """Tokens that will be served before this one, which is not in the queue: earlier classes, its own flow, and of
        each other flow what its share lets pass meanwhile."""
        total = 0.0
        for service, band in self._bands.items():
            if service.rank < waiter.service.rank:
                total += band.tokens
        band = self._bands[waiter.service]
        own = band.flows.get(waiter.flow)
        own_tokens = 0.0 if own is None else own.live_tokens if waiter.live else own.tokens
        mine = max(band.virtual, own.virtual if own is not None else band.owing.get(waiter.flow, 0.0))
        until = mine + own_tokens / waiter.share
        for flow in band.flows.values():
            head = flow.head()
            if flow is not own and head is not None and flow.virtual <= until:
                total += min(float(flow.tokens), (until - flow.virtual) * flow.share + head.tokens)
        return total + own_tokens

    def hoard(self, waiter: Waiter) -> float:
        """Tokens that its flow has waiting, for its share."""
        flow = self._bands[waiter.service].flows.get(waiter.flow)
        return 0.0 if flow is None else flow.tokens / flow.share

    def worst(self) -> Waiter | None:
        """Who goes when there is no more room to wait: of the last class, of the flow with the most tokens for its
        share, the one that would be served last."""
        for band in reversed(list(self._bands.values())):
            if band.flows:
                flow = max(band.flows.values(), key=lambda each: each.tokens / each.share)
                waiting = (waiter for _, waiter in flow.heap if not waiter.gone)
                return max(waiting, key=Waiter.order, default=None)
        return None
