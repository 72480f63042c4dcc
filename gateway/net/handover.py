"""Hand-overs that end otherwise than planned: the client left, or D refused the request.

Rule of this room: P pins the blocks of a hand-over until D has read them or tells it to let go; whatever happens to
the request, D must hear of the hand-over, or the blocks stay pinned until P's lease ends (30 s).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from gateway.core.pods import Pod, Seat
from gateway.net import headers as names
from gateway.net.exchange import Incoming
from gateway.net.parts import Parts
from gateway.net.records import RequestRecord
from gateway.net.relay import OpenStream
from gateway.net.upstream import PodFault
from gateway.wire.legs import release_body
from gateway.wire.readback import release_params


async def let_go(seat: Seat, opening: asyncio.Future[Any], grace_s: float, done: Callable[[], None]) -> None:
    """The client left while the answering leg was on its way: end it, but never before D knows of the KV on P.

    D's abort is what makes P free its blocks, and D can only abort what has reached its scheduler.

    opening: the leg, which becomes an OpenStream or something that needs no closing. grace_s: how long it may still
    take to get there; 0 when P holds nothing for it. done: called in the end.
    """
    try:
        if grace_s > 0:
            await asyncio.wait([opening], timeout=grace_s)
        opening.cancel()
        await asyncio.wait([opening])
        close_opened(opening)
    finally:
        seat.leave()
        done()


def close_opened(opening: asyncio.Future[Any]) -> None:
    """Close what an answering leg has opened, be it that nobody came to take it. Harmless after the end."""
    if opening.done() and not opening.cancelled() and opening.exception() is None:
        opened = opening.result()
        if isinstance(opened, OpenStream):
            opened.answer.close()


def refuse_offer(parts: Parts, pod: Pod, incoming: Incoming, record: RequestRecord, offer: msgspec.Raw) -> None:
    """A decode pod with `bidirectional_kv_xfer` keeps a conversation's blocks for a readback (480 s): give them back.

    A readback asks for them when it needs them (`net.readback`), so nothing has to be kept meanwhile. Any other pod
    passes the word on.
    """
    params = release_params(offer)
    messenger = next(
        (other for other in parts.fleet if other.up and other is not pod and other.shares_model(pod)), None
    )
    if params is not None and messenger is not None:
        parts.background(release(parts, messenger, incoming, record, params))


async def release(parts: Parts, pod: Pod, incoming: Incoming, record: RequestRecord, handover: msgspec.Raw) -> bool:
    """D refused the request (4xx), perhaps before its connector heard of the hand-over: make sure that P hears of it.

    True when the pod that brings the word took it. Harmless when P has freed the blocks already.
    """
    credential = [item for item in incoming.header_items() if item[0].lower() == "authorization"]
    headers = names.to_pod([("Content-Type", "application/json"), *credential], record.request_id, None)
    try:
        answer = await parts.client.call(
            "POST", pod.url, "/v1/completions", headers, release_body(handover), parts.settings.timeouts.first_byte_s
        )
        answer.close()
    except PodFault as fault:
        parts.observer.fault(f"release_{fault.word}", pod.url, record.request_id, fault.detail)
        return False
    return answer.status < 500
