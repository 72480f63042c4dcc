"""Pods that join and leave the fleet, and what decisions make of it."""

from __future__ import annotations

import msgspec
import pytest

from gateway.core.breakers import BreakerRules
from gateway.core.decide import Request, decide
from gateway.core.pods import Fleet, Pod, Role
from gateway.core.policies import AlwaysLocal
from gateway.core.residency import Residency
from tests.core.support import fleet, knowing, pod, turn


def serves(of: Fleet, url: str, *models: str) -> None:
    found = pod(of, url)
    found.facts = msgspec.structs.replace(found.facts, models=models)


def test_a_pod_joins_and_leaves() -> None:
    of = fleet("p0", "d0")
    new = Pod("d1", Role.DECODE)
    of.add(new)
    assert of.assignment == "1P_1D", "it is not up yet"
    of.set_up(new, True)
    assert (of.assignment, of.get("d1")) == ("1P_2D", new)
    of.remove(new)
    assert (of.assignment, of.get("d1"), new.up) == ("1P_1D", None, False)
    assert [each.url for each in of] == ["p0", "d0"]
    of.add(Pod("d1", Role.PREFILL, up=True))
    assert of.assignment == "2P_1D"


def test_a_url_is_one_pod() -> None:
    with pytest.raises(ValueError, match="d0 is a pod already"):
        fleet("d0").add(Pod("d0", Role.REPLICA))


def test_pods_of_a_model_are_sorted_anew_when_one_joins_or_leaves() -> None:
    of = fleet("d0", "d1", "d2")
    for url, model in (("d0", "a"), ("d1", "b"), ("d2", "b")):
        serves(of, url, model)
    before = of.serving("b")
    assert [each.url for each in before] == ["d1", "d2"]
    left = pod(of, "d2")
    of.remove(left)
    assert [each.url for each in before.up(Role.DECODE)] == ["d1"], "one who has planned with it does not find it up"
    assert [each.url for each in of.serving("b")] == ["d1"]
    same = Pod("d3", Role.DECODE, up=True, facts=left.facts)
    of.add(same)
    assert [each.url for each in of.serving("b")] == ["d1", "d3"]


def test_a_pod_that_leaves_takes_the_place_of_another_with_the_same_models() -> None:
    of = fleet("d0", "d1")
    serves(of, "d0", "a")
    serves(of, "d1", "b")
    assert [each.url for each in of.serving("b")] == ["d1"]
    of.remove(pod(of, "d1"))
    of.add(Pod("d9", Role.DECODE, up=True))
    serves(of, "d9", "b")
    assert [each.url for each in of.serving("b")] == ["d9"]


def test_a_breaker_of_a_pod_that_left_guards_nothing() -> None:
    of = fleet("d0", "d1")
    left = pod(of, "d0")
    left.breaker.failed(BreakerRules(failures=1), 0, 0)
    of.note_breaker(left)
    assert of.guarded == [left]
    of.remove(left)
    assert of.guarded == []
    of.note_breaker(left)
    assert of.guarded == []


def test_a_conversation_of_a_pod_that_left_is_placed_anew_and_says_why() -> None:
    of = fleet("p0", "d0", "d1")
    recognition = turn(3)
    residency = knowing(recognition, of)
    of.remove(pod(of, "d0"))
    plan = decide(Request(1100), recognition, of, AlwaysLocal(), residency)
    assert plan is not None
    assert (plan.route, plan.answering.url) == ("pd", "d1")
    assert plan.reason == "turn 3: decode pod d0 was removed"


def test_what_cannot_be_handed_over_leaves_a_drained_pod_where_it_can() -> None:
    of = fleet("p0", "d0", "d1")
    of.set_draining(pod(of, "d0"), True)
    request = Request(1100, whole="n")
    plan = decide(request, turn(2), of, AlwaysLocal(), Residency())
    assert plan is not None
    assert plan.answering.url == "d1"
    of.set_up(pod(of, "d1"), False)
    plan = decide(request, turn(2), of, AlwaysLocal(), Residency())
    assert plan is not None
    assert plan.answering.url == "d0", "it still answers, and nobody else does"


def test_a_removed_pod_holds_nothing() -> None:
    of = fleet("d0")
    residency = Residency()
    residency.used(pod(of, "d0"), b"k", 100)
    assert residency.of(pod(of, "d0"), b"k").tokens == 100
    residency.drop(pod(of, "d0"))
    assert residency.of(pod(of, "d0"), b"k").tokens == 0
