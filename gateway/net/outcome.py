"""How a leg can end: with an answer for the client, or with one of these exceptions.

Rule of this room: a fault says which leg failed and how; what is tried next is `core.fallback`'s business.
"""

from __future__ import annotations

import msgspec

from gateway.core.fallback import Leg
from gateway.net.exchange import RawHeaders
from gateway.net.upstream import PodFault
from gateway.wire.errors import NoPodError

RETRY_AFTER_S = 2

_any_json = msgspec.json.Decoder(msgspec.Raw)


class LegFault(Exception):
    """A leg failed before the client got a byte.

    answer: what the pod said instead, if it said something a client could be given in the end.
    """

    def __init__(self, leg: Leg, fault: PodFault, answer: Finished | None = None) -> None:
        super().__init__(str(fault))
        self.leg = leg
        self.fault = fault
        self.answer = answer


class Finished(msgspec.Struct, frozen=True):
    """A whole answer for the client, as a pod gave it."""

    status: int
    headers: RawHeaders
    body: bytes


class PodRejected(Exception):
    """A pod found fault with the request itself (4xx): its answer goes to the client as it is."""

    def __init__(self, answer: Finished) -> None:
        super().__init__(str(answer.status))
        self.answer = answer


def judge(finished: Finished, content_type: str) -> Finished:
    """Let a good answer pass, raise what the others mean. content_type: what it says it is (`PodAnswer`)."""
    if finished.status < 300:
        if content_type == "application/json" and not _whole_json(finished.body):
            raise LegFault(Leg.ANSWER, PodFault("malformed", "the answer is not JSON to its end"))
        return finished
    if 400 <= finished.status < 500:
        raise PodRejected(finished)
    raise LegFault(Leg.ANSWER, PodFault("status", str(finished.status)), finished)


def no_pod() -> NoPodError:
    return NoPodError("No pod is up to answer.", headers={"Retry-After": str(RETRY_AFTER_S)})


def no_room() -> NoPodError:
    """Every decode pod has as many requests as it may."""
    return NoPodError("All decode pods are full.", headers={"Retry-After": str(RETRY_AFTER_S)})


def no_connection() -> NoPodError:
    """The gateway is at an end with its own means."""
    return NoPodError("The gateway cannot open another connection now.", headers={"Retry-After": str(RETRY_AFTER_S)})


def _whole_json(body: bytes) -> bool:
    try:
        _any_json.decode(body)
    except msgspec.DecodeError:
        return False
    return True
