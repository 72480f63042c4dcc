"""What a request tells `core.load` of the pods it was at.

Rule of this room: nothing where load is not looked at; else a few additions per leg, none per chunk.
"""

from __future__ import annotations

import time

from gateway.core.decide import Plan
from gateway.core.load import Loads
from gateway.core.pods import Pod, Seat
from gateway.core.residency import Residency
from gateway.net.parts import Parts
from gateway.net.records import RequestRecord


class Paces:
    """One request's word on the pods' paces."""

    def __init__(self, loads: Loads, residency: Residency, record: RequestRecord) -> None:
        self._loads = loads
        self._residency = residency
        self._record = record

    def to_compute(self, pod: Pod, prompt_tokens: int) -> int:
        """What a prefill pod has to compute of a prompt: not what lies in its own cache."""
        if self._record.conversation is None:
            return prompt_tokens
        resident = self._residency.tokens(pod, bytes.fromhex(self._record.conversation))
        return max(1, prompt_tokens - resident)

    def prefilled(self, seat: Seat, seconds: float) -> None:
        """The prefill pod has answered."""
        self._loads.first_token(seat.pod, seat.ahead + seat.pending, seconds)

    def began(self, seat: Seat, sent_at: float, *, handed_over: bool) -> None:
        """The answering pod has said its first word."""
        if not self._record.stream:
            return
        seconds = time.monotonic() - sent_at
        if handed_over:
            self._loads.moved(self._record.estimated_tokens or 0, seconds)
        else:
            self._loads.first_token(seat.pod, seat.ahead + seat.pending, seconds)

    def ended(self, pod: Pod) -> None:
        """It ended well, and its times per token are known."""
        if self._record.tpot_s is not None:
            self._loads.per_token(pod, pod.in_flight, self._record.tpot_s)


def paces_of(parts: Parts, record: RequestRecord) -> Paces | None:
    """None where load is not looked at."""
    loads = parts.fleet.loads
    return None if loads is None else Paces(loads, parts.residency, record)


def answering_seat(plan: Plan, prompt_tokens: int) -> Seat:
    """Its place at the pod that answers, with what that pod has to compute."""
    computing = 0 if plan.prefill is not None else max(1, prompt_tokens - plan.resident_tokens)
    return Seat(plan.answering, prompt_tokens, computing)


def prefill_seat(paces: Paces | None, pod: Pod, prompt_tokens: int) -> Seat:
    """Its place at the prefill pod."""
    computing = prompt_tokens if paces is None else paces.to_compute(pod, prompt_tokens)
    return Seat(pod, prompt_tokens, computing)
