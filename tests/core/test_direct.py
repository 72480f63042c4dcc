"""A pod whose straight path is off gets later turns through P."""

from __future__ import annotations

from gateway.core.decide import Request
from gateway.core.pods import Pod, PodFacts, Role
from gateway.core.policies import AlwaysLocal
from tests.core.plans import plan_of, short
from tests.core.support import fleet, pod, turn

WHY = "cached tokens are not told: add --enable-prompt-tokens-details to the pod"


def test_a_later_turn_goes_through_p_to_the_same_pod_and_says_why() -> None:
    of = fleet("p0", "d0", "d1")
    pod(of, "d0").direct_off = WHY
    plan = plan_of(turn(3, decode="d0"), of, AlwaysLocal())
    assert short(plan) == ("pd", "p0", "d0")
    assert plan.reason == f"turn 3: nothing goes straight to d0: {WHY}"


def test_other_pods_are_not_concerned() -> None:
    of = fleet("p0", "d0", "d1")
    pod(of, "d0").direct_off = WHY
    assert short(plan_of(turn(3, decode="d1"), of, AlwaysLocal())) == ("local", None, "d1")


def test_without_a_prefill_pod_straight_is_all_there_is() -> None:
    of = fleet("p0", "d0", down=("p0",))
    pod(of, "d0").direct_off = WHY
    plan = plan_of(turn(3, decode="d0"), of, AlwaysLocal())
    assert short(plan) == ("local", None, "d0")
    assert WHY in plan.reason


def test_a_request_that_must_run_whole_still_does() -> None:
    of = fleet("p0", "d0")
    pod(of, "d0").direct_off = WHY
    plan = plan_of(turn(3, decode="d0"), of, AlwaysLocal(), Request(prompt_tokens=1100, whole="n"))
    assert short(plan) == ("local", None, "d0")


def test_a_new_process_is_a_new_epoch_and_everything_known_of_the_former_is_forgotten() -> None:
    replaced = Pod("d0", Role.DECODE, up=True, epoch=4, in_flight=2, load_tokens=70)
    replaced.facts, replaced.direct_off, replaced.proof = PodFacts(instance="1"), WHY, "details_off"
    replaced.replaced()
    assert (replaced.epoch, replaced.facts, replaced.direct_off) == (5, PodFacts(), None)
    assert replaced.direct
    assert "restart" in replaced.proof
    assert (replaced.up, replaced.in_flight, replaced.load_tokens) == (True, 2, 70), "requests end in their own time"
