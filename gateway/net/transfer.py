"""The KV of one request on its way from P to D: the leg to P, and what D is told of it.

Rule of this room: where both legs can start at once, they do, and a P that fails ends D's leg. The leg to P is ended
only where nobody waits for its blocks: a D that does cannot free its own before they have come (seen with
MooncakeConnector of vLLM 0.32, where an aborted P left them taken for VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT, 480 s).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from gateway.core.decide import Plan
from gateway.core.fallback import Leg
from gateway.core.handovers import Waiting
from gateway.core.pods import Pod
from gateway.net.exchange import Incoming
from gateway.net.handover import close_opened
from gateway.net.leases import Lease
from gateway.net.outcome import LegFault
from gateway.net.parts import Parts
from gateway.net.prefill import PrefillLeg
from gateway.net.records import RequestRecord
from gateway.wire.answers import PrefillAnswer
from gateway.wire.usage import PrefillDetails

OUTLIVES_S = 30.0
"""How long a leg to P may go on after its request is over, for the sake of a D that waits for its blocks."""

Opened = TypeVar("Opened")


class Transfer:
    """One request's. `prepare` before each answering leg, `beside` around it, then what became of it; `drop` at last.

    ids: the prompt's, where D must take it in the same ids as P.
    """

    def __init__(self, parts: Parts, incoming: Incoming, record: RequestRecord) -> None:
        self._parts = parts
        self._record = record
        self._lease = Lease(parts, incoming, record)
        self._prefilled: PrefillAnswer | None = None
        self._early: PrefillAnswer | None = None
        self._running: asyncio.Task[None] | None = None
        self._by: str | None = None
        self._mark = ""
        self.unused = False
        self.ids: list[int] | None = None

    @property
    def prefilled(self) -> PrefillAnswer | None:
        """What P answered, or what is known of it beforehand; None where D is to work alone."""
        return self._prefilled or self._early

    @property
    def mark(self) -> str:
        """Goes behind the request's id on the answering leg."""
        return self._mark if self.prefilled is not None else ""

    @property
    def extra_s(self) -> float:
        """How much longer D may take, because P has not finished when D is asked."""
        return self._parts.settings.timeouts.prefill_s if self._running is not None else 0.0

    async def prepare(self, plan: Plan, make_leg: Callable[[], PrefillLeg]) -> None:
        """Do what must be done before D is asked. make_leg: where P is to be asked. Raises LegFault, PodRejected."""
        if plan.prefill is None:
            self.drop()
            self._prefilled = self._early = None
            return
        if self._prefilled is not None and self.unused and not self._lease.stale:
            self._record.prefill = self._by
            return
        self.drop()
        self._prefilled = self._early = None
        leg = make_leg()
        handover = leg.begin(plan.prefill)
        self._mark, self._by = handover.mark, plan.prefill.url
        if handover.tell is None:
            self._answered(plan.prefill, leg, await leg.run(plan.prefill, plan))
        else:
            self._early = PrefillAnswer(handover.tell, None, PrefillDetails(None), None)
            self._running = asyncio.ensure_future(self._run(plan.prefill, leg, plan))

    def beside(self, opening: Coroutine[Any, Any, Opened]) -> Coroutine[Any, Any, Opened]:
        """The answering leg, ended where a leg to P that runs beside it fails."""
        return opening if self._running is None else self._race(self._running, opening)

    def taken(self) -> None:
        """D answered, so it has the blocks."""
        self.unused = False
        self._lease.taken()

    def failed(self, failure: LegFault) -> None:
        """A leg failed."""
        self.unused = self._prefilled is not None and not failure.fault.reached
        self._lease.failed(failure.fault)
        self._part(end=failure.leg is Leg.PREFILL or not failure.fault.reached)

    def rejected(self, pod: Pod) -> None:
        """D refused the request."""
        self._lease.rejected(pod)
        self._part(end=True)

    def passed_on(self) -> Waiting | None:
        """Someone else goes on with the answering leg."""
        return self._lease.passed_on()

    def drop(self) -> None:
        """The request has no more use for it. Harmless when it is over already."""
        self._lease.drop()
        self._part(end=False)

    async def _run(self, prefill: Pod, leg: PrefillLeg, plan: Plan) -> None:
        mine = asyncio.current_task()
        answer = await leg.run(prefill, plan)
        if self._running is mine:
            self._answered(prefill, leg, answer)

    def _answered(self, prefill: Pod, leg: PrefillLeg, answer: PrefillAnswer) -> None:
        words = None if answer.handover is None else leg.handover.release(answer.handover)
        self._lease.begin(prefill, words)
        self._prefilled, self.ids, self.unused = answer, leg.ids, True
        if self._early is not None:  # D's answer may have begun with these
            self._early.details.raw = answer.details.raw

    async def _race(self, running: asyncio.Task[None], opening: Coroutine[Any, Any, Opened]) -> Opened:
        answering = asyncio.ensure_future(opening)
        try:
            await asyncio.wait([running, answering], return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                running.result()
            return await answering
        except BaseException:
            if not answering.done():
                answering.cancel()
                await asyncio.wait([answering])
            close_opened(answering)
            raise

    def _part(self, *, end: bool) -> None:
        """Wait no longer for P's leg; end it, or let it come to its end by itself."""
        running, self._running = self._running, None
        if running is None:
            return
        if running.done():
            _heed(running)
        else:
            self._parts.background(_outlive(running, 0.0 if end else OUTLIVES_S))


async def _outlive(running: asyncio.Task[None], limit_s: float) -> None:
    if limit_s > 0:
        await asyncio.wait([running], timeout=limit_s)
    running.cancel()
    await asyncio.wait([running])
    _heed(running)


def _heed(running: asyncio.Task[None]) -> None:
    """Take note of how it ended, which concerns nobody any more."""
    if not running.cancelled():
        running.exception()
