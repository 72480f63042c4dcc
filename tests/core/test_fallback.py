"""What is tried when a plan failed before the client got a byte."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest

from gateway.core.decide import Plan
from gateway.core.fallback import MAX_ATTEMPTS, Attempts, Leg
from gateway.core.pods import Fleet, Role
from gateway.core.policies import Route
from tests.core.support import fleet, key, pod

Short = tuple[str, str | None, str]


def short(plan: Plan | None) -> Short | None:
    """(route, prefill pod, answering pod)."""
    if plan is None:
        return None
    return plan.route.value, None if plan.prefill is None else plan.prefill.url, plan.answering.url


def plan(of: Fleet, prefill: str | None, answering: str) -> Plan:
    """A plan of these pods."""
    pod_2 = pod(of, answering)
    if prefill is not None:
        return Plan(Route.PD, pod(of, prefill), pod_2, "first")
    return Plan(Route.REPLICA if pod_2.role is Role.REPLICA else Route.LOCAL, None, pod_2, "first")


def walk(of: Fleet, first: Plan, *legs: Leg, handover_allowed: bool = True) -> list[Short | None]:
    """The plans that follow when one leg after the other fails."""
    attempts = Attempts(key(1), of, handover_allowed)
    found: list[Short | None] = []
    current: Plan | None = first
    for leg in legs:
        assert current is not None
        current = attempts.after(current, leg, "status: 503")
        found.append(short(current))
    return found


P, A = Leg.PREFILL, Leg.ANSWER


def test_a_failed_prefill_pod_is_replaced_by_the_least_loaded_other_and_then_by_the_decode_pod_alone() -> None:
    of = fleet("p0", "p1", "p2", "d0", "d1", load={"p1": 5})
    assert walk(of, plan(of, "p0", "d0"), P, P, P) == [("pd", "p2", "d0"), ("pd", "p1", "d0"), ("local", None, "d0")]


def test_the_only_prefill_pod_failing_means_the_decode_pod_alone_at_once() -> None:
    of = fleet("p0", "d0", "d1")
    attempts = Attempts(key(1), of)
    following = attempts.after(plan(of, "p0", "d0"), P, "connect: refused")
    assert short(following) == ("local", None, "d0")
    assert following is not None
    assert following.reason == "prefill pod failed (connect: refused): decode pod alone"


def test_a_prefill_pod_that_is_down_is_not_tried() -> None:
    of = fleet("p0", "p1", "d0", down=("p1",))
    assert walk(of, plan(of, "p0", "d0"), P) == [("local", None, "d0")]


def test_a_failed_decode_pod_is_replaced_by_another_through_p() -> None:
    of = fleet("p0", "d0", "d1", "d2", load={"d1": 5})
    assert walk(of, plan(of, "p0", "d0"), A, A) == [("pd", "p0", "d2"), ("pd", "p0", "d1")]


def test_the_reason_says_what_failed_and_what_comes_next() -> None:
    of = fleet("p0", "d0", "d1")
    following = Attempts(key(1), of).after(plan(of, "p0", "d0"), A, "status: 503")
    assert following is not None
    assert following.reason == "decode pod failed (status: 503): next decode pod, through P"


def test_a_local_turn_whose_pod_fails_goes_to_another_through_p() -> None:
    of = fleet("p0", "d0", "d1")
    assert walk(of, plan(of, None, "d0"), A) == [("pd", "p0", "d1")]


def test_a_local_turn_on_the_only_decode_pod_is_tried_there_once_more_through_p() -> None:
    of = fleet("p0", "d0")
    attempts = Attempts(key(1), of)
    following = attempts.after(plan(of, None, "d0"), A, "status: 503")
    assert short(following) == ("pd", "p0", "d0")
    assert following is not None
    assert following.reason == "decode pod failed (status: 503): same decode pod, through P"
    assert attempts.after(following, A, "status: 503") is None


def test_a_local_turn_whose_only_decode_pod_is_gone_has_nothing_left() -> None:
    of = fleet("p0", "d0")
    first = plan(of, None, "d0")
    of.set_up(pod(of, "d0"), False)
    assert walk(of, first, A) == [None]


def test_the_only_decode_pod_failing_behind_p_is_tried_alone() -> None:
    of = fleet("p0", "d0")
    assert walk(of, plan(of, "p0", "d0"), A, A) == [("local", None, "d0"), None]


def test_when_all_decode_pods_failed_behind_p_a_replica_serves() -> None:
    of = fleet("p0", "d0", "d1", "r0")
    assert walk(of, plan(of, "p0", "d0"), A, A) == [("pd", "p0", "d1"), ("replica", None, "r0")]


def test_a_failed_replica_is_replaced_by_a_pair() -> None:
    of = fleet("p0", "d0", "r0", "r1")
    assert walk(of, plan(of, None, "r0"), A, A, A) == [
        ("pd", "p0", "d0"),
        ("replica", None, "r1"),
        ("local", None, "d0"),
    ]


def test_a_failed_replica_without_any_pair_is_replaced_by_a_replica() -> None:
    of = fleet("r0", "r1", "d0", down=("d0",))
    assert walk(of, plan(of, None, "r0"), A, A) == [("replica", None, "r1"), None]


def test_without_prefill_pods_the_other_decode_pods_are_tried_alone() -> None:
    of = fleet("p0", "d0", "d1", down=("p0",))
    assert walk(of, plan(of, None, "d0"), A, A) == [("local", None, "d1"), None]


def test_a_prefill_pod_that_failed_once_is_not_asked_again_for_another_decode_pod() -> None:
    of = fleet("p0", "p1", "d0", "d1", load={"p1": 9})
    assert walk(of, plan(of, "p0", "d0"), P, A) == [("pd", "p1", "d0"), ("pd", "p1", "d1")]


def test_a_whole_request_goes_from_pod_to_pod_without_a_handover() -> None:
    of = fleet("p0", "d0", "d1", "r0")
    assert walk(of, plan(of, None, "d0"), A, A, A, handover_allowed=False) == [
        ("replica", None, "r0"),
        ("local", None, "d1"),
        None,
    ]


def test_five_attempts_are_enough() -> None:
    assert MAX_ATTEMPTS == 5
    of = fleet(*(f"p{number}" for number in range(9)), "d0")
    assert [found is None for found in walk(of, plan(of, "p0", "d0"), *[P] * 5)] == [False] * 4 + [True]


def test_the_attempts_are_counted_for_the_log() -> None:
    of = fleet("p0", "p1", "d0")
    attempts = Attempts(key(1), of)
    assert attempts.count == 1
    following = attempts.after(plan(of, "p0", "d0"), P, "x")
    assert following is not None
    attempts.after(following, P, "x")
    assert attempts.count == 3


# Every way it can go, on every small fleet


@dataclass(frozen=True)
class Walk:
    """One way a request can go until it is given up: the plans in order, and which pod failed each of them."""

    of: Fleet
    plans: tuple[Plan, ...]
    failed: tuple[str, ...]

    @property
    def questions(self) -> list[Short | None]:
        return [short(one) for one in self.plans]


def first_plans(of: Fleet, *, handover_allowed: bool) -> Iterator[Plan]:
    answering = [*of.up(Role.DECODE), *of.up(Role.REPLICA)]
    yield from (plan(of, None, one.url) for one in answering)
    if handover_allowed:
        yield from (plan(of, p.url, d.url) for p in of.up(Role.PREFILL) for d in of.up(Role.DECODE))


def every_walk(of: Fleet, *, handover_allowed: bool, goes_down: bool) -> Iterator[Walk]:
    """All orders of failures from all first plans; what fails stays up (a 5xx) or goes down (a crash)."""
    for first in first_plans(of, handover_allowed=handover_allowed):
        yield from _walks(Attempts(key(1), of, handover_allowed), (first,), (), goes_down)


def _walks(attempts: Attempts, plans: tuple[Plan, ...], failed: tuple[str, ...], goes_down: bool) -> Iterator[Walk]:
    for leg in (P, A) if plans[-1].prefill is not None else (A,):
        attempts_2, plans_2 = copy.deepcopy((attempts, plans))
        last = plans_2[-1]
        culprit = last.prefill if leg is P and last.prefill is not None else last.answering
        if goes_down:
            attempts_2.fleet.set_up(culprit, False)
        following = attempts_2.after(last, leg, "fault")
        failed_2 = (*failed, culprit.url)
        if following is None:
            yield Walk(attempts_2.fleet, plans_2, failed_2)
        else:
            yield from _walks(attempts_2, (*plans_2, following), failed_2, goes_down)


FLEETS = [
    tuple([f"p{n}" for n in range(p)] + [f"d{n}" for n in range(d)] + [f"r{n}" for n in range(r)])
    for p, d, r in itertools.product(range(3), range(3), range(3))
    if d + r > 0
]


@pytest.mark.parametrize("urls", FLEETS, ids="+".join)
@pytest.mark.parametrize("goes_down", [False, True], ids=["5xx", "crash"])
@pytest.mark.parametrize("handover_allowed", [True, False], ids=["pair", "whole"])
def test_whatever_fails(urls: Sequence[str], goes_down: bool, handover_allowed: bool) -> None:
    walks = list(every_walk(fleet(*urls), handover_allowed=handover_allowed, goes_down=goes_down))
    assert walks
    for one in walks:
        questions = one.questions
        assert len(set(questions)) == len(questions), f"the same question twice: {questions}"
        assert len(questions) <= MAX_ATTEMPTS
        assert len(one.failed) == len(questions)
        for made in one.plans[1:]:
            assert (made.route is Route.PD) == (made.prefill is not None)
            assert (made.route is Route.REPLICA) == (made.answering.role is Role.REPLICA)
            assert made.prefill is None or (handover_allowed and made.answering.role is Role.DECODE)
        if len(questions) < MAX_ATTEMPTS:
            alone = {answering for _, prefill, answering in filter(None, questions) if prefill is None}
            left = {up.url for role in (Role.DECODE, Role.REPLICA) for up in one.of.up(role)} - alone
            assert not left, f"given up although {left} could have answered alone: {questions}"


@pytest.mark.parametrize("urls", FLEETS, ids="+".join)
def test_no_pod_that_is_down_is_asked(urls: Sequence[str]) -> None:
    for one in every_walk(fleet(*urls), handover_allowed=True, goes_down=True):
        for number, made in enumerate(one.plans):
            asked = {made.answering.url, None if made.prefill is None else made.prefill.url}
            assert asked.isdisjoint(one.failed[:number]), one.questions


def test_a_request_that_two_engines_answered_with_500_goes_to_no_third() -> None:
    of = fleet("p0", "p1", "p2", "d0", "d1")
    attempts = Attempts(key(1), of)
    first = attempts.after(plan(of, "p0", "d0"), P, "status: 500")
    assert first is not None
    assert attempts.after(first, P, "error_event: EngineDeadError") is None


def test_engines_that_are_overloaded_do_not_count_as_that() -> None:
    of = fleet("p0", "p1", "p2", "d0")
    assert walk(of, plan(of, "p0", "d0"), P, P, P)[-1] == ("local", None, "d0")
