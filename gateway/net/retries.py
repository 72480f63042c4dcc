"""What a failed attempt means: for the pod that failed, and for the request.

Rule of this room: a pod is blamed for what it did, not for what a request did to every pod that took it; and nothing is
tried again that may still be running, or that the budget has no room for.
"""

from __future__ import annotations

import asyncio
import random
import time

from gateway.core.decide import Plan
from gateway.core.fallback import Attempts, Leg
from gateway.core.pods import Pod
from gateway.net.outcome import LegFault
from gateway.net.parts import Parts
from gateway.net.records import RequestRecord

MAX_DELAY_S = 0.05
"""Before a retry; a random part of it, so that what failed together does not come back together."""

ENGINE_SAID = ("status", "error_event")
"""Faults that are an answer of the engine. The request itself may be what is wrong."""

_NO_BLAME = ("local", "no_handover")
"""The gateway's own trouble, and a setting of the pod."""


class Retries:
    """One request's. `after` each failure, `settle` once it is known whether another pod could answer.

    unblamed: pods whose engine said 5xx. Two of them, and it was the request.
    """

    def __init__(self, parts: Parts, record: RequestRecord, attempts: Attempts) -> None:
        self._parts = parts
        self._record = record
        self._attempts = attempts
        self._unblamed: dict[str, tuple[Pod, str]] = {}

    @property
    def count(self) -> int:
        """Attempts so far."""
        return self._attempts.count

    async def after(self, plan: Plan, failure: LegFault, *, lease_runs: bool) -> Plan | None:
        """The next plan, when it is time for it; None to give up. lease_runs: the KV of this request waits on P."""
        parts, fault = self._parts, failure.fault
        pod = plan.prefill if failure.leg is Leg.PREFILL and plan.prefill is not None else plan.answering
        parts.observer.fault(f"{failure.leg}_{fault.word}", pod.url, self._record.request_id, fault.detail)
        self._note(pod, fault.word)
        if fault.word == "local" or (fault.word == "timeout" and not self._may_repeat(failure.leg)):
            return None
        following = self._attempts.after(plan, failure.leg, str(fault))
        if following is None or not fault.reached:
            return following
        if not parts.budget.retry(time.monotonic()):
            parts.observer.fault("retry_denied", pod.url, self._record.request_id, "too many retries of late")
            return None
        if not lease_runs:
            await asyncio.sleep(random.uniform(0, MAX_DELAY_S))
        return following

    def settle(self) -> None:
        """Blame the one pod whose engine said 5xx; where two did, the request is to blame."""
        if len(self._unblamed) == 1:
            for pod, word in self._unblamed.values():
                self._parts.blame(pod, word)
        self._unblamed.clear()

    def _note(self, pod: Pod, word: str) -> None:
        if word in ENGINE_SAID:
            self._unblamed[pod.url] = (pod, word)
        elif word not in _NO_BLAME:
            self._parts.blame(pod, word)

    def _may_repeat(self, leg: Leg) -> bool:
        return leg is not Leg.PREFILL or self._parts.settings.retry_timed_out_prefill
