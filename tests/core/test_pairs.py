"""Pairs that are held back after a restart, and how they are let go."""

from __future__ import annotations

import msgspec
import pytest

from gateway.core.conversations import ConversationStore
from gateway.core.decide import Plan, Request, decide
from gateway.core.fallback import Attempts, Leg
from gateway.core.pairs import Pairs
from gateway.core.pods import Fleet, Pod, Role
from gateway.core.policies import POLICIES, PolicyOptions, Route
from gateway.core.residency import Residency

P1, P2, D1, D2 = "http://p1", "http://p2", "http://d1", "http://d2"


def fleet() -> Fleet:
    roles = {P1: Role.PREFILL, P2: Role.PREFILL, D1: Role.DECODE, D2: Role.DECODE}
    return Fleet(Pod(url, role, up=True) for url, role in roles.items())


def restart(pods: Fleet, url: str) -> None:
    pod = pods.get(url)
    assert pod is not None
    pods.hold_pairs(pod)


def planned(pods: Fleet, model: str = "") -> Plan:
    store = ConversationStore(10, 60.0)
    found = store.recognise(b"root", None, None, b"key", 0.0, None)
    policy = POLICIES["pd"](PolicyOptions(512, None, False))
    plan = decide(Request(prompt_tokens=100), found, pods.serving(model), policy, Residency())
    assert plan is not None
    return plan


def test_a_restarted_p_is_held_back_from_every_d_and_from_no_other_pair() -> None:
    pods = fleet()
    restart(pods, P1)
    assert not pods.pairs.fit(P1, D1)
    assert not pods.pairs.fit(P1, D2)
    assert pods.pairs.fit(P2, D1)


def test_a_restarted_d_is_held_back_from_every_p() -> None:
    pods = fleet()
    restart(pods, D1)
    assert [pods.pairs.fit(p, d) for p in (P1, P2) for d in (D1, D2)] == [False, True, False, True]


def test_traffic_takes_the_other_p() -> None:
    pods = fleet()
    restart(pods, P1)
    plan = planned(pods)
    assert (plan.route, plan.prefill and plan.prefill.url) == (Route.PD, P2)


def test_traffic_takes_a_d_that_some_p_may_hand_over_to() -> None:
    pods = fleet()
    restart(pods, D1)
    other = pods.get(D2)
    assert other is not None
    other.take(5000)
    plan = planned(pods)
    assert (plan.route, plan.answering.url) == (Route.PD, D2), "although it has more to do"


def test_when_no_pair_may_hand_over_the_decode_pod_works_alone_and_the_reason_says_so() -> None:
    pods = fleet()
    restart(pods, P1)
    restart(pods, P2)
    plan = planned(pods)
    assert (plan.route, plan.prefill) == (Route.LOCAL, None)
    assert "since a restart" in plan.reason


def test_a_fleet_of_one_model_knows_of_the_pairs_too() -> None:
    pods = fleet()
    for pod in pods:
        pod.facts = msgspec.structs.replace(pod.facts, models=("a",) if pod.url in (P1, D1) else ("b",))
    part = pods.serving("a")
    restart(pods, P1)
    assert part is not pods
    assert planned(pods, "a").prefill is None


def test_a_fallback_uses_no_pair_that_is_held_back() -> None:
    pods = fleet()
    restart(pods, P2)
    p1, d1 = pods.get(P1), pods.get(D1)
    assert p1 is not None
    assert d1 is not None
    following = Attempts(b"key", pods).after(Plan(Route.PD, p1, d1, ""), Leg.PREFILL, "reset")
    assert following is not None
    assert (following.route, following.prefill) == (Route.LOCAL, None)


def test_a_pair_that_worked_gets_traffic_again() -> None:
    pairs = Pairs()
    pairs.hold(P1, [(P1, D1), (P1, D2)])
    first, second = pairs.due(0.0)
    assert pairs.proven(first)
    assert (pairs.fit(P1, D1), pairs.fit(P1, D2)) == (True, False)
    assert pairs.failed(second, "reset", due_at=5.0)
    assert pairs.due(4.9) == []
    assert pairs.due(5.0) == [second]
    assert pairs.held_of(D2) == {P1: "reset"}


def test_enough_that_worked_do_for_the_rest() -> None:
    pairs = Pairs(enough=3)
    pairs.hold(P1, [(P1, f"http://d{n}") for n in range(100)])
    for count in range(1, 4):
        assert len(pairs) == 101 - count
        pairs.proven(pairs.due(0.0)[0])
    assert len(pairs) == 0


def test_one_that_failed_makes_all_others_prove_themselves() -> None:
    pairs = Pairs(enough=3)
    pairs.hold(P1, [(P1, f"http://d{n}") for n in range(10)])
    pairs.failed(pairs.due(0.0)[0], "reset", due_at=60.0)
    for _ in range(9):
        pairs.proven(pairs.due(0.0)[0])
    assert len(pairs) == 1


def test_those_that_never_failed_come_first() -> None:
    pairs = Pairs()
    pairs.hold(P1, [(P1, D1), (P1, D2)])
    pairs.failed(pairs.due(0.0)[0], "reset", due_at=0.0)
    assert [trial.pair for trial in pairs.due(0.0)] == [(P1, D2), (P1, D1)]


@pytest.mark.parametrize("works", [True, False])
def test_a_verdict_on_processes_that_are_gone_is_dropped(works: bool) -> None:
    pairs = Pairs()
    pairs.hold(P1, [(P1, D1)])
    old = pairs.due(0.0)[0]
    pairs.hold(D1, [(P1, D1)])
    assert not (pairs.proven(old) if works else pairs.failed(old, "reset", 1.0))
    assert not pairs.fit(P1, D1)


def test_a_pod_that_left_leaves_no_pair() -> None:
    pods = fleet()
    restart(pods, P1)
    p1 = pods.get(P1)
    assert p1 is not None
    pods.remove(p1)
    assert len(pods.pairs) == 0
