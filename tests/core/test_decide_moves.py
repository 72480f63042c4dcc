"""Conversations that move to another decode pod, and whether their history is read back."""

from __future__ import annotations

import pytest

from gateway.core.decide import Request
from gateway.core.policies import AlwaysLocal, Route
from tests.core.plans import REQUEST, Asked, plan_of, short
from tests.core.support import first_turn, fleet, knowing, pod, turn

READABLE = Request(prompt_tokens=1100, readback=True)


def test_a_drained_pods_conversation_moves_and_takes_its_history_along() -> None:
    of = fleet("p0", "d0", "d1")
    of.set_draining(pod(of, "d0"), True)
    plan = plan_of(turn(2), of, Asked(Route.LOCAL), READABLE)
    assert short(plan) == ("readback", "p0", "d1")
    assert (plan.holder, plan.resident_tokens) == (pod(of, "d0"), 1000)
    assert plan.reason == "turn 2: d0 is being drained: moves to d1, the history read back"
    assert short(plan_of(turn(2), of)) == ("pd", "p0", "d1")
    assert {short(plan_of(first_turn(number), of)) for number in range(9)} == {("pd", "p0", "d1")}


def test_a_drained_pod_keeps_what_nobody_else_can_take() -> None:
    of = fleet("p0", "d0")
    of.set_draining(pod(of, "d0"), True)
    assert short(plan_of(turn(2), of, request=READABLE)) == ("pd", "p0", "d0")


def test_a_drained_replicas_conversation_moves_too() -> None:
    of = fleet("p0", "d0", "r0")
    of.set_draining(pod(of, "r0"), True)
    assert short(plan_of(turn(2, decode="r0", prefill=None), of)) == ("pd", "p0", "d0")
    alone = fleet("r0")
    alone.set_draining(pod(alone, "r0"), True)
    assert short(plan_of(turn(2, decode="r0", prefill=None), alone)) == ("replica", None, "r0")


def test_from_a_pod_at_its_limit_a_conversation_moves_to_one_with_room() -> None:
    of = fleet("p0", "d0", "d1", "d2", load={"d1": 5})
    pod(of, "d0").in_flight, pod(of, "d2").in_flight = 3, 3
    request = Request(prompt_tokens=1100, decode_max_in_flight=3, readback=True)
    plan = plan_of(turn(2), of, AlwaysLocal(), request)
    assert short(plan) == ("readback", "p0", "d1")
    assert plan.holder is pod(of, "d0")


def test_a_policy_may_choose_readback() -> None:
    policy = Asked(Route.READBACK)
    plan = plan_of(turn(2), fleet("p0", "d0"), policy, READABLE)
    assert short(plan) == ("readback", "p0", "d0")
    assert plan.holder is plan.answering
    assert policy.views[0].readback


def test_what_p_has_itself_is_not_read_back() -> None:
    of, recognition = fleet("p0", "d0", "d1"), turn(2)
    of.set_draining(pod(of, "d0"), True)
    residency = knowing(recognition, of)
    residency.used(pod(of, "p0"), recognition.conversation.key, 1000)
    assert short(plan_of(recognition, of, request=READABLE, residency=residency)) == ("pd", "p0", "d1")


@pytest.mark.parametrize("why", ["the operator said no", "P cannot", "no P"])
def test_without_readback_the_turn_goes_through_p(why: str) -> None:
    of = fleet("p0", "d0", down=("p0",) if why == "no P" else ())
    pod(of, "p0").reads_back = False if why == "P cannot" else None
    policy = Asked(Route.READBACK)
    plan = plan_of(turn(2), of, policy, REQUEST if why == "the operator said no" else READABLE)
    assert short(plan) == (("local", None, "d0") if why == "no P" else ("pd", "p0", "d0"))
    assert not policy.views[0].readback
