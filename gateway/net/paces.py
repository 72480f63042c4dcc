"""What a request tells `core.load` of the pods it was at.

Rule of this room: nothing where load is not looked at; else a few additions per leg, none per chunk.
"""

from __future__ import annotations

import time

from gateway.core.decide import Plan
from gateway.core.pods import Pod, Seat
from gateway.net.parts import Parts
from gateway.net.records import RequestRecord


class Paces:
    """One request's word on the pods' paces."""

    def __init__(self, parts: Parts, record: RequestRecord) -> None:
        self._parts = parts
        self._record = record

    def answering_seat(self, plan: Plan, prompt_tokens: int) -> Seat:
        """Its place at the pod that answers, with what that pod has to compute."""
        computing = 0 if plan.prefill is not None else max(1, prompt_tokens - plan.resident_tokens)
        return Seat(plan.answering, prompt_tokens, computing)

    def prefill_seat(self, pod: Pod, prompt_tokens: int) -> Seat:
        """Its place at the prefill pod. What lies in P's own cache is left out where load is looked at."""
        if self._parts.fleet.loads is None or self._record.conversation is None:
            return Seat(pod, prompt_tokens, prompt_tokens)
        resident = self._parts.residency.of(pod, bytes.fromhex(self._record.conversation)).tokens
        return Seat(pod, prompt_tokens, max(1, prompt_tokens - resident))

    def prefilled(self, seat: Seat, seconds: float) -> None:
        """The prefill pod has answered."""
        loads = self._parts.fleet.loads
        if loads is not None:
            loads.first_token(seat.pod, seat.ahead + seat.pending, seconds)

    def began(self, seat: Seat, sent_at: float, *, handed_over: bool) -> None:
        """The answering pod has said its first word."""
        seat.began()
        loads = self._parts.fleet.loads
        if loads is None or not self._record.stream:
            return
        seconds = time.monotonic() - sent_at
        if handed_over:
            loads.moved(self._record.estimated_tokens or 0, seconds)
        else:
            loads.first_token(seat.pod, seat.ahead + seat.pending, seconds)

    def ended(self, pod: Pod) -> None:
        """It ended well, and its times per token are known."""
        loads = self._parts.fleet.loads
        if loads is not None and self._record.tpot_s is not None:
            loads.per_token(pod, pod.in_flight, self._record.tpot_s)
