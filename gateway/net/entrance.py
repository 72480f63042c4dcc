"""One request's way in: its tenant's quotas, its class, its place in the queue; and out again.

Rule of this room: where there are neither tenants nor limits this costs a few comparisons. What a request was charged
or let in with is given back exactly once, however it ends.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from gateway.core.admission.classes import ServiceClass, vllm_priority
from gateway.core.admission.desk import Why, new_tokens_of
from gateway.core.admission.queue import Waiter
from gateway.core.decide import Plan
from gateway.net import headers as names
from gateway.net.admission import RefusedError
from gateway.net.exchange import Incoming
from gateway.net.intake import Intake
from gateway.net.outcome import no_pod
from gateway.net.parts import Parts
from gateway.net.records import Outcome, RequestRecord
from gateway.net.tenancy import Charge
from gateway.wire.errors import BadRequestError, TooManyError
from gateway.wire.usage import Usage


class Entrance:
    """Await `enter` once, or `charge` alone where the pods are not ours; call `over` in the end, with what was used, if
    that is known."""

    def __init__(self, parts: Parts, incoming: Incoming, record: RequestRecord) -> None:
        self._parts = parts
        self._incoming = incoming
        self._record = record
        self._charge: Charge | None = None
        self._waiter: Waiter | None = None
        self._new_tokens = 0

    async def enter(self, intake: Intake, arrived_s: float, plan: Callable[[], Plan | None]) -> Plan:
        """The plan with which it is let in. Raises NoPodError, TooManyError, BadRequestError."""
        parts, admission = self._parts, self._parts.admission
        asker, request = intake.asker, intake.request
        service: ServiceClass | None = None
        if asker is not None:
            await self.charge(intake)
        if asker is not None or parts.slo is not None or admission.sorts:
            self._record.service = service = self._service(intake)
            if admission.desk.rules.priority:
                self._record.priority = vllm_priority(service, live=intake.recognition.turn > 1)
        if not admission.on:
            return _some(plan())
        caller, service = self._incoming.caller, service or ServiceClass.STANDARD
        self._waiter = Waiter(
            tenant="" if caller is None else caller.tenant,
            model=intake.model,
            service=service,
            request=request,
            plan=plan,
            arrived_s=arrived_s,
            live=intake.recognition.turn > 1,
            share=1.0 if asker is None else asker.share,
            deadline_s=arrived_s + parts.settings.classes.deadlines_s.get(service, math.inf),
        )
        asked_s = time.monotonic()
        try:
            found = await admission.enter(self._waiter)
        except RefusedError as error:
            self._record.refused = error.why
            raise
        finally:
            self._record.queued_s = time.monotonic() - asked_s
        self._new_tokens = new_tokens_of(self._waiter, found)
        return found

    async def charge(self, intake: Intake) -> None:
        """Charge its tenant by the estimate, where there is one with quotas. Raises TooManyError."""
        tenancy, asker, request = self._parts.tenancy, intake.asker, intake.request
        if tenancy is None or asker is None:
            return
        try:
            self._charge = await tenancy.charge(asker, request.prompt_tokens + request.output_tokens)
        except TooManyError:
            self._record.refused = Why.QUOTA
            raise

    def over(self, usage: Usage | None) -> None:
        """The request has ended, well or not."""
        parts, record, waiter = self._parts, self._record, self._waiter
        if waiter is not None:
            if record.ttft_s is not None and waiter.in_flight and record.stream:
                served_s = max(0.0, record.ttft_s - record.queued_s)
                parts.admission.desk.first_tokens.learn(self._new_tokens, served_s, time.monotonic())
            parts.admission.over(waiter)
        if self._charge is not None and parts.tenancy is not None:
            telling = parts.tenancy.settle(self._charge, self._used(self._charge, usage))
            if telling is not None:
                parts.background(telling)

    def _used(self, charge: Charge, usage: Usage | None) -> float:
        """A request that was not answered used nothing; of one that was cut off only the estimate is known."""
        if usage is not None:
            return usage.prompt_tokens + usage.output_tokens
        return charge.tokens if self._record.outcome in (Outcome.OK, Outcome.BROKEN) or self._record.ttft_s else 0.0

    def _service(self, intake: Intake) -> ServiceClass:
        asker = intake.asker
        own = self._parts.settings.classes.default if asker is None else asker.service
        try:
            return own.lowered(self._incoming.headers.get(names.GIVEN_CLASS))
        except ValueError:
            known = ", ".join(ServiceClass)
            raise BadRequestError(f"{names.CLASS}: must be one of {known}.", param=names.CLASS) from None


def _some(plan: Plan | None) -> Plan:
    if plan is None:
        raise no_pod()
    return plan
