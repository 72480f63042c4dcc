"""Carries out what the desk says: lets requests in, has them wait, refuses them.

Rule of this room: nobody waits while P's lease runs. A place that was given to somebody who waits is his at once, and
free again at once if he has gone meanwhile.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from dataclasses import dataclass

from gateway.core.admission.desk import QUEUED, AdmissionRules, Desk, Refusal, Why
from gateway.core.admission.queue import Waiter
from gateway.core.decide import Plan
from gateway.net.outcome import no_pod, no_room
from gateway.wire.errors import TooManyError

_WORDS = {
    Why.DEADLINE: "The first token would come too late: the pods are busy.",
    Why.LATE: "The pods were busy for as long as it made sense to wait.",
    Why.QUEUE: "The pods are busy, and enough requests are waiting.",
    Why.SHED: "The pods are busy: this request gave way to others.",
}


class RefusedError(TooManyError):
    """The desk said no. why: one word."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(_WORDS[refusal.why], headers=retry_after(refusal.retry_s))
        self.why = refusal.why


@dataclass(frozen=True, slots=True)
class _Place:
    """A plan whose pods count the request already."""

    plan: Plan
    tokens: int

    @classmethod
    def take(cls, plan: Plan, tokens: int) -> _Place:
        for pod in (plan.prefill, plan.answering):
            if pod is not None:
                pod.take(tokens)
        return cls(plan, tokens)

    def give_back(self) -> None:
        for pod in (self.plan.prefill, self.plan.answering):
            if pod is not None:
                pod.give_back(self.tokens)


class Admission:
    """One gateway's desk. Await `enter`, then `over`; call `freed` when a pod has less to do.

    on: whether anybody can have to wait. sorts: whether classes mean something to the desk or the pods.
    """

    def __init__(self, rules: AdmissionRules | None = None) -> None:
        self.desk = Desk(rules or AdmissionRules(), random.random, self._shed)
        self._waiting: dict[Waiter, asyncio.Future[_Place | Refusal | None]] = {}
        self.on = self.sorts = False
        self._read_rules()

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """As many wait as may."""
        return len(self._waiting) >= self.desk.rules.queue

    def set_rules(self, rules: AdmissionRules) -> None:
        """Other limits from now on."""
        self.desk.rules = rules
        self._read_rules()
        self.freed()

    def _read_rules(self) -> None:
        rules = self.desk.rules
        self.on, self.sorts = rules.on, rules.limits or rules.priority

    async def enter(self, waiter: Waiter) -> Plan:
        """Come in, now or when it is time. Raises NoPodError, RefusedError."""
        answer = self.desk.ask(waiter, time.monotonic())
        if isinstance(answer, Plan):
            return answer
        if answer is QUEUED:
            found = await self._wait(waiter)
            if isinstance(found, _Place):
                found.give_back()  # the request takes its seats before anything else happens
                return found.plan
            answer = found
        if answer is None:
            raise no_pod()
        assert isinstance(answer, Refusal)
        raise RefusedError(answer) if waiter.deadline_s < math.inf or answer.why is not Why.LATE else no_room()

    def over(self, waiter: Waiter) -> None:
        """A request that came in is over."""
        self.desk.over(waiter, time.monotonic())
        self.freed()

    def freed(self) -> None:
        """There may be room."""
        if not self._waiting:
            return
        for waiter, plan in self.desk.pump():
            place = None if plan is None else _Place.take(plan, waiter.request.prompt_tokens)
            self._tell(waiter, place)

    async def _wait(self, waiter: Waiter) -> _Place | Refusal | None:
        answer: asyncio.Future[_Place | Refusal | None] = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = answer
        left_s = None if waiter.leave_s == math.inf else max(0.0, waiter.leave_s - time.monotonic())
        try:
            await asyncio.wait([answer], timeout=left_s)
        except asyncio.CancelledError:
            self._gone(waiter, answer)
            raise
        finally:
            self._waiting.pop(waiter, None)
        return answer.result() if answer.done() else self.desk.give_up(waiter, time.monotonic())

    def _gone(self, waiter: Waiter, answer: asyncio.Future[_Place | Refusal | None]) -> None:
        """Its client has left."""
        del self._waiting[waiter]
        self.desk.leave(waiter)
        if answer.done() and isinstance(place := answer.result(), _Place):
            place.give_back()
            self.over(waiter)

    def _shed(self, waiter: Waiter, refusal: Refusal) -> None:
        self._tell(waiter, refusal)

    def _tell(self, waiter: Waiter, answer: _Place | Refusal | None) -> None:
        waiting = self._waiting.get(waiter)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)


def retry_after(wait_s: float) -> dict[str, str]:
    return {"Retry-After": str(max(1, math.ceil(wait_s)))}
