"""The KV of one request on its way from P to D: the leg to P, and what D is told of it.

Rule of this room: where both legs can start at once, they do, and a P that fails ends D's leg. The leg to P is ended
only where nobody waits for its blocks: a D that does cannot free its own before they have come (seen with
MooncakeConnector of vLLM 0.32, where an aborted P left them taken for VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT, 480 s).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from gateway.core.decide import Plan
from gateway.core.fallback import Leg
from gateway.core.pods import Pod, Seat
from gateway.net.exchange import Incoming
from gateway.net.handover import close_opened, let_go
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
    """One request's. `prepare` before each answering leg, `beside` around that of a hand-over, then what became of it;
    `drop` at last.

    prefilled: what P answered, or what is known of it beforehand; None where D is to work alone. mark: goes behind the
    request's id on the answering leg. unused: P has answered, and no D has begun with it. ids: the prompt's, where D
    must take it in the same ids as P.
    """

    prefilled: PrefillAnswer | None = None
    mark = ""
    unused = False
    ids: list[int] | None = None
    _lease: Lease | None = None
    _early: PrefillAnswer | None = None
    _running: asyncio.Task[None] | None = None
    _by: str | None = None

    def __init__(self, parts: Parts, incoming: Incoming, record: RequestRecord) -> None:
        self._parts = parts
        self._incoming = incoming
        self._record = record

    @property
    def extra_s(self) -> float:
        """How much longer D may take, because P has not finished when D is asked."""
        return self._parts.settings.timeouts.prefill_s if self._running is not None else 0.0

    async def prepare(self, plan: Plan, make_leg: Callable[[], PrefillLeg]) -> None:
        """Do what must be done before D is asked. make_leg: where P is to be asked. Raises LegFault, PodRejected."""
        prefill = plan.prefill
        if prefill is not None and self.unused and self._lease is not None and not self._lease.stale:
            self._record.prefill = self._by
            return
        if self._by is not None:
            self._begin_again()
        if prefill is None:
            return
        leg = make_leg()
        handover = leg.begin(prefill)
        self.mark, self._by = handover.mark, prefill.url
        if handover.tell is None:
            self._answered(prefill, leg, await leg.run(prefill, plan))
        else:
            self._early = self.prefilled = PrefillAnswer(handover.tell, None, PrefillDetails(None), None)
            self._running = asyncio.ensure_future(self._run(prefill, leg, plan))

    async def beside(self, seat: Seat, leg: Coroutine[Any, Any, Opened]) -> Opened:
        """The answering leg of a hand-over. It is ended where a leg to P that runs beside it fails; where the client
        leaves, it goes on for a while, with its seat (see `net.handover`)."""
        loop, began = asyncio.get_running_loop(), time.monotonic()
        opening = loop.create_task(leg if self._running is None else self._race(self._running, leg))
        over = loop.create_future()

        def told(_: object) -> None:
            if not over.done():
                over.set_result(None)

        opening.add_done_callback(told)
        try:
            await over  # not the leg itself, which would be cancelled with whoever waits for it
            return opening.result()
        except BaseException:
            if opening.done():
                close_opened(opening)
            else:
                self._pass_on(seat, opening, began)
            raise
        finally:
            del opening  # its error holds this frame

    def taken(self) -> None:
        """D answered, so it has the blocks."""
        self.unused = False
        if self._lease is not None:
            self._lease.taken()

    def failed(self, failure: LegFault) -> None:
        """A leg failed."""
        self.unused = self._lease is not None and not failure.fault.reached
        if self._lease is not None:
            self._lease.failed(failure.fault)
        self._part(end=failure.leg is Leg.PREFILL or not failure.fault.reached)

    def rejected(self, pod: Pod) -> None:
        """D refused the request."""
        if self._lease is not None:
            self._lease.rejected(pod)
        self._part(end=True)

    def drop(self) -> None:
        """The request has no more use for it. Harmless when it is over already."""
        if self._lease is not None:
            self._lease.drop()
        if self._running is not None:
            self._part(end=False)

    def _begin_again(self) -> None:
        """Nothing of the hand-over before is of use to the next attempt."""
        self.drop()
        self._lease = self._early = self.prefilled = self._by = None
        self.mark, self.unused = "", False

    def _pass_on(self, seat: Seat, opening: asyncio.Future[Any], began: float) -> None:
        """The client has left the answering leg."""
        seat.kept = True
        parts = self._parts
        grace_s = parts.settings.timeouts.handover_grace_s - (time.monotonic() - began)
        waiting = None if self._lease is None else self._lease.passed_on()
        parts.background(let_go(seat, opening, grace_s, parts.let_go_done(waiting)))

    async def _run(self, prefill: Pod, leg: PrefillLeg, plan: Plan) -> None:
        mine = asyncio.current_task()
        answer = await leg.run(prefill, plan)
        if self._running is mine:
            self._answered(prefill, leg, answer)

    def _answered(self, prefill: Pod, leg: PrefillLeg, answer: PrefillAnswer) -> None:
        words = None if answer.handover is None else leg.handover.release(answer.handover)
        self._lease = Lease(self._parts, self._incoming, self._record, prefill, words)
        self.prefilled, self.ids, self.unused = answer, leg.ids, True
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
