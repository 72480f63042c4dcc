"""What to try when a plan failed before the client got a byte.

Rule of this room: another pod of the kind that failed; then a decode pod alone, without P; then nothing. Never
the same pod with the same question twice, never more than MAX_ATTEMPTS in all, and a request that two engines answered
with 500 to no third.
"""

from __future__ import annotations

import enum

import msgspec

from gateway.core.decide import Plan
from gateway.core.placement import least_loaded
from gateway.core.pods import Fleet, Pod, Role
from gateway.core.policies import Route
from gateway.core.reasons import ReasonClass

MAX_ATTEMPTS = 5
MAX_ENGINE_ERRORS = 2

ENGINE_ERRORS = ("status: 500", "error_event")
"""How a fault's word begins that may be the request's: the engine took it and failed over it."""


class Leg(enum.StrEnum):
    """The part of a plan that failed."""

    PREFILL = "prefill"
    ANSWER = "answer"


class Attempts(msgspec.Struct, eq=False):
    """What was tried for one request.

    handover_allowed: False for a request that must run whole on one pod.
    """

    key: bytes
    fleet: Fleet
    handover_allowed: bool = True
    count: int = 1
    engine_errors: int = 0
    failed_prefill: set[str] = msgspec.field(default_factory=set)
    failed_pair: set[str] = msgspec.field(default_factory=set)
    failed_alone: set[str] = msgspec.field(default_factory=set)

    def after(self, plan: Plan, leg: Leg, fault: str) -> Plan | None:
        """The next plan, or None when there is nothing left to try.

        fault: a word for the log, such as "connect", "timeout" or "status: 503".
        """
        self.count += 1
        self.engine_errors += fault.startswith(ENGINE_ERRORS)
        self._note(plan, leg)
        if self.count > MAX_ATTEMPTS or self.engine_errors == MAX_ENGINE_ERRORS:
            return None
        if leg is Leg.PREFILL:
            return self._after_prefill(plan, fault)
        return self._after_answer(plan, fault)

    def _note(self, plan: Plan, leg: Leg) -> None:
        if leg is Leg.PREFILL and plan.prefill is not None:
            self.failed_prefill.add(plan.prefill.url)
        elif plan.prefill is not None:
            self.failed_pair.add(plan.answering.url)
        else:
            self.failed_alone.add(plan.answering.url)

    def _after_prefill(self, plan: Plan, fault: str) -> Plan | None:
        prefill = self._next_prefill(plan.answering)
        reason = f"prefill pod failed ({fault})"
        if prefill is not None:
            return _plan(Route.PD, prefill, plan.answering, f"{reason}: next prefill pod")
        return self._alone(plan.answering, f"{reason}: decode pod alone")

    def _after_answer(self, plan: Plan, fault: str) -> Plan | None:
        reason = f"{plan.answering.role} pod failed ({fault})"
        decode = self._next(Role.DECODE, self.failed_pair | self.failed_alone) or self._next(
            Role.DECODE, self.failed_pair
        )
        prefill = self._next_prefill(decode) if decode is not None and self.handover_allowed else None
        if decode is not None and prefill is not None:
            return _plan(Route.PD, prefill, decode, f"{reason}: {_which(plan, decode)}, through P")
        replica = self._next(Role.REPLICA, self.failed_alone)
        if replica is not None:
            return _plan(Route.REPLICA, None, replica, f"{reason}: replica")
        return self._alone(decode or plan.answering, f"{reason}: decode pod alone")

    def _alone(self, preferred: Pod, reason: str) -> Plan | None:
        if preferred.up and preferred.url not in self.failed_alone:
            return _plan(_route_alone(preferred), None, preferred, reason)
        pods = [*self.fleet.up(Role.DECODE), *self.fleet.up(Role.REPLICA)]
        pod = least_loaded([pod for pod in pods if pod.url not in self.failed_alone], self.key)
        return None if pod is None else _plan(_route_alone(pod), None, pod, reason)

    def _next_prefill(self, decode: Pod) -> Pod | None:
        untried = [pod for pod in self.fleet.up(Role.PREFILL) if pod.url not in self.failed_prefill]
        return least_loaded(self.fleet.fitting(untried, decode), self.key)

    def _next(self, role: Role, tried: set[str]) -> Pod | None:
        return least_loaded([pod for pod in self.fleet.up(role) if pod.url not in tried], self.key)


def _plan(route: Route, prefill: Pod | None, answering: Pod, reason: str) -> Plan:
    return Plan(route, prefill, answering, reason, reason_class=ReasonClass.FALLBACK)


def _which(plan: Plan, decode: Pod) -> str:
    return "same decode pod" if decode is plan.answering else "next decode pod"


def _route_alone(pod: Pod) -> Route:
    return Route.REPLICA if pod.role is Role.REPLICA else Route.LOCAL
