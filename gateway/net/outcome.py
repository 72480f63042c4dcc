"""How a leg can end: with an answer for the client, or with one of these exceptions.

Rule of this room: a fault says which leg failed and how; what is tried next is `core.fallback`'s business.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.core.fallback import Leg
from gateway.net.exchange import Headers
from gateway.net.upstream import PodFault
from gateway.wire.errors import NoPodError

RETRY_AFTER_S = 2


class LegFault(Exception):
    """A leg failed before the client got a byte.

    answer: what the pod said instead, if it said something a client could be given in the end.
    """

    def __init__(self, leg: Leg, fault: PodFault, answer: Finished | None = None) -> None:
        super().__init__(str(fault))
        self.leg = leg
        self.fault = fault
        self.answer = answer


@dataclass(frozen=True, slots=True)
class Finished:
    """A whole answer for the client, as a pod gave it."""

    status: int
    headers: Headers
    body: bytes


class PodRejected(Exception):
    """A pod found fault with the request itself (4xx): its answer goes to the client as it is."""

    def __init__(self, answer: Finished) -> None:
        super().__init__(str(answer.status))
        self.answer = answer


def judge(finished: Finished) -> Finished:
    """Let a good answer pass, raise what the others mean."""
    if finished.status < 400:
        return finished
    if finished.status < 500:
        raise PodRejected(finished)
    raise LegFault(Leg.ANSWER, PodFault("status", str(finished.status)), finished)


def no_pod() -> NoPodError:
    return NoPodError("No pod is up to answer.", headers={"Retry-After": str(RETRY_AFTER_S)})
