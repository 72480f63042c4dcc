"""From a recognised request to a plan, one test per branch."""

from __future__ import annotations

import pytest

from gateway.core.conversations import Kind
from gateway.core.decide import MIN_BRANCH_SHARE, Request, decide
from gateway.core.policies import AlwaysLocal, AlwaysPrefill, Policy, Route, TurnView
from gateway.core.residency import Residency
from gateway.core.weights import Weights
from tests.core.plans import REQUEST, WHOLE, Asked, plan_of, short
from tests.core.support import first_turn, fleet, knowing, pod, turn

# Turn 1


@pytest.mark.parametrize("policy", [AlwaysLocal(), AlwaysPrefill()], ids=lambda policy: policy.name)
def test_turn_one_goes_through_a_prefill_pod_to_a_decode_pod(policy: Policy) -> None:
    plan = plan_of(first_turn(), fleet("p0", "d0"), policy)
    assert short(plan) == ("pd", "p0", "d0")
    assert plan.reason == "turn 1: nothing resident"


def test_turn_one_takes_the_least_loaded_of_each_kind() -> None:
    of = fleet("p0", "p1", "d0", "d1", "d2", load={"p0": 5, "d0": 9, "d1": 7, "d2": 8})
    assert short(plan_of(first_turn(), of)) == ("pd", "p1", "d1")


def test_turn_one_of_many_conversations_spreads_over_idle_pods() -> None:
    of = fleet("p0", "p1", "d0", "d1")
    seen = {short(plan_of(first_turn(number), of)) for number in range(50)}
    assert seen == {("pd", p, d) for p in ("p0", "p1") for d in ("d0", "d1")}


def test_pods_that_are_down_get_nothing() -> None:
    of = fleet("p0", "p1", "d0", "d1", down=("p0", "d1"))
    assert {short(plan_of(first_turn(number), of)) for number in range(20)} == {("pd", "p1", "d0")}


def test_turn_one_without_a_prefill_pod_runs_on_the_decode_pod_alone() -> None:
    plan = plan_of(first_turn(), fleet("p0", "d0", down=("p0",)))
    assert short(plan) == ("local", None, "d0")
    assert plan.reason == "turn 1: nothing resident; no prefill pod is up"


@pytest.mark.parametrize("down", [("d0",), ("d0", "p0")])
def test_without_an_answering_pod_there_is_no_plan(down: tuple[str, ...]) -> None:
    of = fleet("p0", "d0", down=down)
    assert decide(REQUEST, first_turn(), of, AlwaysLocal(), Residency()) is None
    assert decide(WHOLE, first_turn(), of, AlwaysLocal(), Residency()) is None
    assert decide(REQUEST, turn(2), of, AlwaysLocal(), Residency()) is None


def test_a_first_turn_whose_pods_are_reserved_goes_there_too() -> None:
    """Two requests under one explicit id at once: the second is turn 1 as well, of a conversation that is bound."""
    recognition = turn(1, prefill="p0", decode="d1", resident=0)
    of = fleet("p0", "d0", "d1", load={"d1": 999})
    assert short(plan_of(recognition, of)) == ("pd", "p0", "d1")


# Later turns


def test_a_later_turn_asks_the_policy_and_goes_local_to_the_pod_that_holds_the_kv() -> None:
    policy = Asked(Route.LOCAL)
    plan = plan_of(turn(3, decode="d1", resident=1000), fleet("p0", "d0", "d1", load={"d1": 10**6}), policy)
    assert short(plan) == ("local", None, "d1")
    assert plan.reason == "because"


def test_the_policy_is_shown_the_turn_in_numbers() -> None:
    recognition = turn(3, resident=1000)
    recognition.conversation.last_route = "local"
    weights = Weights(2.0, 1.0)
    request = Request(prompt_tokens=1100, output_tokens=50, rate=2.5, weights=weights)
    policy = Asked(Route.PD)
    plan_of(recognition, fleet("p0", "p1", "d0", "d1", down=("p1",)), policy, request)
    assert policy.views == [
        TurnView(
            turn=3,
            prompt_tokens=1100,
            resident_tokens=1000,
            output_tokens=50,
            rate=2.5,
            assignment="1P_2D",
            last_route=Route.LOCAL,
            weights=weights,
            key=recognition.conversation.key,
        )
    ]


def test_a_turn_through_p_goes_to_the_prefill_pod_that_has_its_prefix_and_to_the_same_decode_pod() -> None:
    of = fleet("p0", "p1", "d0", "d1", load={"p1": 998, "d1": 10**6})
    assert short(plan_of(turn(2, prefill="p1", decode="d1"), of, AlwaysPrefill())) == ("pd", "p1", "d1")


def test_a_prefill_pod_with_more_before_it_than_its_prefix_saves_is_left() -> None:
    of = fleet("p0", "p1", "d0", load={"p1": 1001})
    assert short(plan_of(turn(2, prefill="p1"), of, AlwaysPrefill())) == ("pd", "p0", "d0")


def test_a_turn_through_p_takes_the_least_loaded_when_its_own_is_down() -> None:
    of = fleet("p0", "p1", "p2", "d0", down=("p1",), load={"p0": 1})
    assert short(plan_of(turn(2, prefill="p1"), of, AlwaysPrefill())) == ("pd", "p2", "d0")


def test_a_turn_through_p_of_a_conversation_that_had_none_takes_the_least_loaded() -> None:
    of = fleet("p0", "p1", "d0", load={"p0": 1})
    assert short(plan_of(turn(2, prefill=None), of, AlwaysPrefill())) == ("pd", "p1", "d0")


def test_a_turn_through_p_is_local_when_no_prefill_pod_is_up() -> None:
    plan = plan_of(turn(2), fleet("p0", "d0", down=("p0",)), Asked(Route.PD))
    assert short(plan) == ("local", None, "d0")
    assert plan.reason == "because; no prefill pod is up"


def test_a_pod_at_its_limit_takes_no_append_prefill() -> None:
    of = fleet("p0", "d0")
    request = Request(prompt_tokens=1100, decode_max_in_flight=3)
    pod(of, "d0").in_flight = 2
    assert short(plan_of(turn(2), of, AlwaysLocal(), request)) == ("local", None, "d0")
    pod(of, "d0").in_flight = 3
    plan = plan_of(turn(2), of, Asked(Route.LOCAL), request)
    assert short(plan) == ("pd", "p0", "d0")
    assert plan.reason == "because; but d0 has 3 requests in flight"


def test_a_limit_of_one_is_a_limit() -> None:
    of = fleet("p0", "d0")
    pod(of, "d0").in_flight = 1
    request = Request(prompt_tokens=1100, decode_max_in_flight=1)
    assert short(plan_of(turn(2), of, AlwaysLocal(), request)) == ("pd", "p0", "d0")


def test_no_limit_means_no_limit() -> None:
    of = fleet("p0", "d0")
    pod(of, "d0").in_flight = 10**6
    assert short(plan_of(turn(2), of)) == ("local", None, "d0")


# What is not resident any more


def test_a_conversation_whose_decode_pod_is_down_is_placed_anew() -> None:
    policy = Asked(Route.LOCAL)
    plan = plan_of(turn(4, decode="d0"), fleet("p0", "d0", "d1", down=("d0",)), policy)
    assert short(plan) == ("pd", "p0", "d1")
    assert plan.reason == "turn 4: decode pod d0 is down"
    assert policy.views == []


def test_a_conversation_whose_decode_pod_is_no_more_in_the_fleet_is_placed_anew() -> None:
    assert short(plan_of(turn(4, decode="d7"), fleet("p0", "d0"))) == ("pd", "p0", "d0")


def test_a_conversation_whose_decode_pod_was_restarted_starts_over_on_it() -> None:
    of = fleet("p0", "d0", "d1", load={"d0": 10})
    pod(of, "d0").epoch = 1
    policy = Asked(Route.LOCAL)
    plan = plan_of(turn(2, decode="d0", epoch=0), of, policy)
    assert short(plan) == ("pd", "p0", "d0")
    assert plan.reason == "turn 2: decode pod d0 was restarted"
    assert policy.views == []


def test_the_next_turn_of_the_same_epoch_is_local_again() -> None:
    of = fleet("p0", "d0")
    pod(of, "d0").epoch = 1
    assert short(plan_of(turn(2, decode="d0", epoch=1), of)) == ("local", None, "d0")


def test_a_turn_of_which_nothing_is_resident_goes_through_p() -> None:
    policy = Asked(Route.LOCAL)
    plan = plan_of(turn(2), fleet("p0", "d0", "d1"), policy, residency=Residency())
    assert short(plan) == ("pd", "p0", "d0")
    assert plan.reason == "turn 2: nothing resident on d0 (ledger)"
    assert policy.views == []


def test_a_prompt_that_shares_nothing_with_its_conversation_goes_through_p() -> None:
    policy = Asked(Route.LOCAL)
    plan = plan_of(turn(2, resident=0), fleet("p0", "d0", "d1"), policy)
    assert short(plan) == ("pd", "p0", "d0")
    assert plan.reason == "turn 2: its prompt shares nothing with the turns before"
    assert policy.views == []


@pytest.mark.parametrize(("left", "route"), [(399, "pd"), (400, "local"), (1000, "local")])
def test_below_the_share_that_must_be_left_a_turn_goes_through_p(left: int, route: str) -> None:
    residency, of, recognition = Residency(), fleet("p0", "d0"), turn(2, resident=1000)
    residency.used(pod(of, "d0"), recognition.conversation.key, left)
    request = Request(prompt_tokens=1100, min_resident_share=400 / 992)
    policy = Asked(Route.LOCAL)
    plan = plan_of(recognition, of, policy, request, residency)
    assert short(plan) == (route, "p0" if route == "pd" else None, "d0")
    if route == "pd":
        assert plan.reason == "turn 2: only 399 of 992 tokens are left on d0 (ledger)"
    else:
        assert policy.views[0].resident_tokens == left
        assert plan.resident_tokens == left


def test_of_the_pods_that_served_a_conversation_the_one_with_most_of_it_takes_the_turn() -> None:
    of, recognition = fleet("p0", "d0", "d1", "d2"), turn(5)
    recognition.conversation.homes = ("d0", "d1", "d2")
    residency = Residency()
    for url, tokens in (("d0", 300), ("d1", 900), ("d2", 900)):
        residency.used(pod(of, url), recognition.conversation.key, tokens)
    plan = plan_of(recognition, of, residency=residency)
    assert (short(plan), plan.resident_tokens) == (("local", None, "d1"), 900)


def test_what_the_pod_announces_beats_the_ledger() -> None:
    of, recognition = fleet("p0", "d0"), turn(2)
    residency = knowing(recognition, of)
    view = residency.view(pod(of, "d0"), 0)
    view.arrival(0)
    view.heard_batch(0, 0.0)
    plan = plan_of(recognition, of, residency=residency)
    assert plan.reason == "turn 2: nothing resident on d0 (events)"
    view.stored(recognition.conversation.key, None, list(range(1, 61)), 16)
    plan = plan_of(recognition, of, residency=residency)
    assert (short(plan), plan.resident_tokens) == (("local", None, "d0"), 960)


def test_the_dp_rank_that_holds_the_conversation_is_named() -> None:
    of, recognition = fleet("p0", "d0"), turn(2)
    residency = Residency()
    for rank, blocks in ((0, 3), (1, 60)):
        view = residency.view(pod(of, "d0"), rank)
        view.arrival(0)
        view.heard_batch(0, 0.0)
        view.stored(recognition.conversation.key, None, list(range(1, blocks + 1)), 16)
    assert plan_of(recognition, of, residency=residency).rank == 1


def test_a_repeat_is_as_good_as_the_next_turn() -> None:
    policy = Asked(Route.LOCAL)
    assert short(plan_of(turn(2, Kind.REPEAT, resident=1), fleet("p0", "d0"), policy)) == ("local", None, "d0")
    assert policy.views[0].resident_tokens == 1


# Branches


def test_a_branch_that_shares_half_of_its_prompt_asks_the_policy() -> None:
    assert MIN_BRANCH_SHARE == 0.5
    policy = Asked(Route.LOCAL)
    plan = plan_of(turn(2, Kind.BRANCH, resident=550), fleet("p0", "d0"), policy)
    assert short(plan) == ("local", None, "d0")
    assert policy.views[0].resident_tokens == 550


def test_a_branch_that_shares_less_than_half_does_not() -> None:
    policy = Asked(Route.LOCAL)
    plan = plan_of(turn(2, Kind.BRANCH, resident=549), fleet("p0", "d0"), policy)
    assert short(plan) == ("pd", "p0", "d0")
    assert plan.reason == "turn 2: the branch shares too little with what is resident"
    assert policy.views == []


def test_a_branch_that_shares_little_is_placed_like_a_new_conversation() -> None:
    """Else all that begins like one popular conversation would pile up on one pod."""
    of = fleet("p0", "d0", "d1", load={"d0": 10**6})
    assert short(plan_of(turn(2, Kind.BRANCH, decode="d0", resident=10), of)) == ("pd", "p0", "d1")


def test_deciding_changes_nothing() -> None:
    of, recognition = fleet("p0", "d0", "d1"), turn(2)
    before = (repr(recognition), [repr(one) for one in of])
    for policy in (AlwaysLocal(), AlwaysPrefill()):
        assert plan_of(recognition, of, policy) == plan_of(recognition, of, policy)
    assert (repr(recognition), [repr(one) for one in of]) == before
