"""The KV of one request between its attempts, and an answering leg whose client leaves at a bad moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import msgspec
import pytest

from gateway.core.conversations import ConversationStore
from gateway.core.decide import Plan
from gateway.core.fallback import Leg
from gateway.core.pods import Fleet, Pod, Role, Seat
from gateway.core.policies import AlwaysPrefill, Route
from gateway.net.outcome import Finished, LegFault, judge
from gateway.net.parts import Parts
from gateway.net.prefill import PrefillLeg
from gateway.net.records import IdleObserver, RequestRecord
from gateway.net.relay import OpenStream
from gateway.net.request import Request
from gateway.net.settings import GatewaySettings
from gateway.net.transfer import Transfer
from gateway.net.upstream import PodAnswer, PodClient, PodFault
from gateway.wire.answers import PrefillAnswer
from gateway.wire.handovers import NixlPush
from gateway.wire.usage import PrefillDetails

P = Pod("http://p", Role.PREFILL, up=True)
D = Pod("http://d", Role.DECODE)
"""Down, so that nobody can be told to free P's blocks."""

UNREACHED = LegFault(Leg.ANSWER, PodFault("connect", "", reached=False))


class KeptBlocks:
    """A leg to P that has worked. asked: how many there were."""

    asked = 0

    def __init__(self) -> None:
        self.handover = NixlPush("x")
        self.ids: list[int] | None = None

    def begin(self, prefill: Pod) -> NixlPush:
        return self.handover

    async def run(self, prefill: Pod, plan: Plan) -> PrefillAnswer:
        KeptBlocks.asked += 1
        return PrefillAnswer(msgspec.Raw(b"{}"), None, PrefillDetails(None), "length")


class Answer:
    closed = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture
async def parts() -> AsyncIterator[Parts]:
    KeptBlocks.asked = 0
    async with PodClient(1.0) as client:
        yield Parts(
            Fleet([P, D]), ConversationStore(10, 60.0), AlwaysPrefill(), client, IdleObserver(), GatewaySettings()
        )


def transfer(parts: Parts) -> Transfer:
    return Transfer(parts, Request("POST", "/", [], b"", True, True), RequestRecord("r", "POST", "/"))


async def prepare(kv: Transfer, prefill: Pod | None) -> None:
    plan = Plan(Route.PD if prefill is not None else Route.LOCAL, prefill, D, "")
    await kv.prepare(plan, lambda: cast(PrefillLeg, KeptBlocks()))


async def test_a_handover_that_no_d_has_seen_serves_the_next_attempt(parts: Parts) -> None:
    kv = transfer(parts)
    await prepare(kv, P)
    kv.failed(UNREACHED)
    assert kv.unused
    await prepare(kv, P)
    assert (KeptBlocks.asked, kv.mark, len(parts.handovers)) == (1, "-x", 1)
    kv.taken()
    assert len(parts.handovers) == 0


async def test_one_of_a_process_that_is_gone_does_not(parts: Parts) -> None:
    kv = transfer(parts)
    await prepare(kv, P)
    kv.failed(UNREACHED)
    parts.losses[P.url] += 1
    await prepare(kv, P)
    assert (KeptBlocks.asked, len(parts.handovers)) == (2, 1)


async def test_a_d_that_works_alone_afterwards_is_told_nothing_of_it(parts: Parts) -> None:
    kv = transfer(parts)
    await prepare(kv, P)
    kv.failed(UNREACHED)
    await prepare(kv, None)
    assert (kv.prefilled, kv.mark, kv.unused) == (None, "", False)
    kv.failed(UNREACHED)
    assert not kv.unused, "no lease runs"
    kv.drop()
    assert parts.handovers.in_use == 0


async def test_a_client_that_leaves_in_the_turn_in_which_d_begins_leaves_no_stream_open(parts: Parts) -> None:
    answer, seat = Answer(), Seat(D, 1)
    stream = OpenStream(cast(PodAnswer, answer), cast(Any, None), b"", 0.0, False)
    begins = asyncio.get_running_loop().create_future()

    async def leg() -> OpenStream:
        await begins
        waiting.cancel()  # ended, and whoever waits for it has not heard yet
        return stream

    kv = transfer(parts)
    await prepare(kv, P)
    waiting = asyncio.ensure_future(kv.beside(seat, leg()))
    await asyncio.sleep(0)
    begins.set_result(None)
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await parts.finish_background()
    seat.leave_unless_kept()
    kv.drop()
    assert answer.closed
    assert D.in_flight == 0


async def test_a_client_that_leaves_before_leaves_its_place_to_the_leg(parts: Parts) -> None:
    answer, seat = Answer(), Seat(D, 1)
    stream = OpenStream(cast(PodAnswer, answer), cast(Any, None), b"", 0.0, False)
    begins = asyncio.get_running_loop().create_future()

    async def leg() -> OpenStream:
        await begins
        return stream

    kv = transfer(parts)
    await prepare(kv, P)
    waiting = asyncio.ensure_future(kv.beside(seat, leg()))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    seat.leave_unless_kept()
    assert (D.in_flight, len(parts.handovers)) == (1, 1)
    begins.set_result(None)
    await parts.finish_background()
    assert answer.closed
    assert (D.in_flight, len(parts.handovers)) == (0, 0)


@pytest.mark.parametrize(
    ("content_type", "taken"), [("application/json", False), ("text/plain", True), ("application/json-seq", True)]
)
def test_only_json_has_to_be_json_to_its_end(content_type: str, taken: bool) -> None:
    cut = Finished(200, [], b'{"choices": [')
    if taken:
        assert judge(cut, content_type) is cut
    else:
        with pytest.raises(LegFault, match="malformed"):
            judge(cut, content_type)
