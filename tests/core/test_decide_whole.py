"""Requests that run whole on one pod: what no hand-over survives, replicas, responses that one pod has in memory."""

from __future__ import annotations

import pytest

from gateway.core.conversations import Kind
from gateway.core.decide import Request
from gateway.core.placement import rendezvous
from gateway.core.policies import AlwaysPrefill, Route
from tests.core.plans import REQUEST, WHOLE, Asked, plan_of, short
from tests.core.support import first_turn, fleet, key, pod, turn

# Whole requests


def test_a_whole_request_of_a_new_conversation_goes_to_the_least_loaded_answering_pod() -> None:
    of = fleet("p0", "d0", "d1", "r0", load={"d0": 2, "d1": 1, "r0": 3})
    plan = plan_of(first_turn(), of, AlwaysPrefill(), WHOLE)
    assert short(plan) == ("local", None, "d1")
    assert plan.reason == "n does not survive a hand-over: whole on one pod"
    pod(of, "d1").load_tokens = 9
    pod(of, "d0").load_tokens = 9
    assert short(plan_of(first_turn(), of, AlwaysPrefill(), WHOLE)) == ("replica", None, "r0")


@pytest.mark.parametrize("resident", [0, 1000])
def test_a_whole_request_stays_with_its_conversation(resident: int) -> None:
    policy = Asked(Route.PD)
    of = fleet("p0", "d0", "d1", load={"d1": 100})
    assert short(plan_of(turn(2, decode="d1", resident=resident), of, policy, WHOLE)) == ("local", None, "d1")
    assert policy.views == []


def test_a_whole_request_never_gets_a_prefill_pod() -> None:
    for recognition in (first_turn(), turn(2), turn(2, Kind.BRANCH, resident=0), turn(5, decode="d9")):
        assert plan_of(recognition, fleet("p0", "d0", "r0"), AlwaysPrefill(), WHOLE).prefill is None


# Replicas


def test_a_conversation_on_a_replica_stays_there() -> None:
    of = fleet("p0", "d0", "r0", "r1", load={"r1": 10**6})
    for request in (REQUEST, WHOLE):
        plan = plan_of(turn(2, decode="r1"), of, AlwaysPrefill(), request)
        assert short(plan) == ("replica", None, "r1")
        assert plan.reason == "turn 2: its replica holds the conversation"


def test_a_conversation_whose_replica_is_down_is_placed_anew() -> None:
    assert short(plan_of(turn(2, decode="r0"), fleet("p0", "d0", "r0", down=("r0",)))) == ("pd", "p0", "d0")


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        ({"p0": 10, "d0": 10, "r0": 9}, ("replica", None, "r0")),
        ({"p0": 10, "d0": 10, "r0": 11}, ("pd", "p0", "d0")),
        ({"p0": 10, "d0": 0, "r0": 9}, ("replica", None, "r0")),
        ({"p0": 0, "d0": 10, "r0": 9}, ("replica", None, "r0")),
        ({"p0": 8, "d0": 0, "r0": 9}, ("pd", "p0", "d0")),
    ],
    ids=["less than both", "more than both", "less than P", "less than D", "more than both, D idle"],
)
def test_a_replica_is_chosen_when_it_is_less_loaded_than_the_fuller_of_the_pair(
    load: dict[str, int], expected: tuple[str, str | None, str]
) -> None:
    plan = plan_of(first_turn(), fleet("p0", "d0", "r0", load=load))
    assert short(plan) == expected
    assert plan.reason.endswith("; the replica is the least loaded") == (expected[0] == "replica")


def test_idle_replicas_and_decode_pods_share_new_conversations() -> None:
    of = fleet("p0", "d0", "r0")
    for number in range(50):
        wins = rendezvous(key(number), "r0") > rendezvous(key(number), "d0")
        expected = ("replica", None, "r0") if wins else ("pd", "p0", "d0")
        assert short(plan_of(first_turn(number), of)) == expected


def test_a_replica_serves_when_there_is_no_pair() -> None:
    load = {"r0": 10**6}
    assert short(plan_of(first_turn(), fleet("p0", "d0", "r0", down=("p0",), load=load))) == ("replica", None, "r0")
    assert short(plan_of(first_turn(), fleet("p0", "d0", "r0", down=("d0",), load=load))) == ("replica", None, "r0")


def test_the_least_loaded_replica_is_the_one_that_competes() -> None:
    of = fleet("p0", "d0", "r0", "r1", load={"p0": 5, "d0": 5, "r0": 6, "r1": 4})
    assert short(plan_of(first_turn(), of)) == ("replica", None, "r1")


def test_a_conversation_with_a_home_is_not_lured_away_by_an_idle_replica() -> None:
    of = fleet("p0", "d0", "r0", load={"p0": 10**6, "d0": 10**6})
    assert short(plan_of(turn(2, decode="d0", resident=0), of)) == ("pd", "p0", "d0")


# A response that one pod has in memory


def test_what_only_one_pod_can_answer_goes_there_whatever_else_is_so() -> None:
    request = Request(prompt_tokens=1100, whole="previous_response_id", only="d1")
    recognition = turn(2, decode="d0")
    plan = plan_of(recognition, fleet("p0", "d0", "d1"), request=request)
    assert short(plan) == ("local", None, "d1")
    assert "memory" in plan.reason


def test_when_that_pod_is_down_or_unknown_the_request_goes_whole_to_another_which_will_refuse_it() -> None:
    of = fleet("p0", "d0", "d1")
    down = of.get("d1")
    assert down is not None
    of.set_up(down, False)
    for only in ("d1", "gone", None):
        request = Request(prompt_tokens=1100, whole="previous_response_id", only=only)
        assert short(plan_of(first_turn(), of, request=request)) == ("local", None, "d0")
