"""The word for why a request goes where it goes, and what the table's decision carries along."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.core.conversations import Kind
from gateway.core.decide import Plan, Request
from gateway.core.fallback import Attempts, Leg
from gateway.core.load import Loads
from gateway.core.policies import AlwaysPrefill, MeasuredTable, Route
from gateway.core.reasons import ReasonClass
from gateway.core.residency import Residency
from tests.core.plans import plan_of
from tests.core.support import first_turn, fleet, key, pod, turn
from tests.tables import arm, make_set

REQUEST = Request(prompt_tokens=1100)
FULL = Request(prompt_tokens=1100, decode_max_in_flight=1)


def drained() -> Plan:
    of = fleet("p0", "d0", "d1")
    of.set_draining(pod(of, "d0"), True)
    return plan_of(turn(2), of)


def restarted() -> Plan:
    of = fleet("p0", "d0")
    pod(of, "d0").epoch = 1
    return plan_of(turn(2), of)


def failed_self_test() -> Plan:
    of = fleet("p0", "d0")
    pod(of, "d0").direct_off = "its self-test failed"
    return plan_of(turn(2), of)


def full() -> Plan:
    of = fleet("p0", "d0", "d1")
    pod(of, "d0").in_flight = 1
    return plan_of(turn(2), of, request=FULL)


def after_a_fault() -> Plan:
    of = fleet("p0", "p1", "d0")
    plan = Attempts(key(7), of).after(plan_of(first_turn(), of), Leg.PREFILL, "timeout")
    assert plan is not None
    return plan


def moved() -> Plan:
    of = fleet("p0", "d0", "d1")
    of.loads = Loads()
    for each in of:
        for tokens in range(0, 2000, 20):
            of.loads.first_token(each, tokens, 0.01 + 1e-4 * tokens)
    busy = of.get("d0")
    assert busy is not None
    busy.pending_tokens = 30_000
    return plan_of(turn(2), of)


CASES: dict[ReasonClass, Callable[[], Plan]] = {
    ReasonClass.FIRST_TURN: lambda: plan_of(first_turn(), fleet("p0", "d0")),
    ReasonClass.POLICY: lambda: plan_of(turn(2), fleet("p0", "d0"), AlwaysPrefill()),
    ReasonClass.COLD: lambda: plan_of(turn(2), fleet("p0", "d0"), residency=Residency()),
    ReasonClass.BRANCH: lambda: plan_of(turn(2, Kind.BRANCH, resident=100), fleet("p0", "d0")),
    ReasonClass.RESTARTED: restarted,
    ReasonClass.POD_DOWN: lambda: plan_of(turn(2), fleet("p0", "d0", "d1", down=("d0",))),
    ReasonClass.DRAINING: drained,
    ReasonClass.DIRECT_OFF: failed_self_test,
    ReasonClass.FULL: full,
    ReasonClass.MOVED: moved,
    ReasonClass.REPLICA: lambda: plan_of(turn(2, decode="r0"), fleet("p0", "d0", "r0")),
    ReasonClass.WHOLE: lambda: plan_of(first_turn(), fleet("p0", "d0"), request=Request(1100, whole="n")),
    ReasonClass.PINNED: lambda: plan_of(turn(2), fleet("p0", "d0"), request=Request(1100, only="d0")),
    ReasonClass.NO_PREFILL: lambda: plan_of(first_turn(), fleet("p0", "d0", down=("p0",))),
    ReasonClass.FALLBACK: after_a_fault,
}


@pytest.mark.parametrize("reason", CASES)
def test_what_decided_has_its_word(reason: ReasonClass) -> None:
    assert CASES[reason]().reason_class is reason


def test_every_word_but_those_of_the_table_and_the_default_was_seen() -> None:
    table = {ReasonClass.SCORE, ReasonClass.TIE, ReasonClass.DEGRADED, ReasonClass.EXPLORED}
    assert set(ReasonClass) - set(CASES) == {*table, ReasonClass.OTHER}


@pytest.mark.parametrize(
    ("pd", "local", "reason", "route"),
    [
        (arm(100, 10), arm(20, 10), ReasonClass.SCORE, Route.LOCAL),
        (arm(20, 10), arm(100, 10), ReasonClass.SCORE, Route.PD),
        (arm(100, 10, ci_ms=50), arm(99, 10, ci_ms=50), ReasonClass.TIE, Route.LOCAL),
        (arm(100, 10), arm(20, 10, success=0.5), ReasonClass.DEGRADED, Route.PD),
    ],
)
def test_the_table_says_how_sure_it_is_and_what_it_expects(
    tmp_path: Path, pd: object, local: object, reason: ReasonClass, route: Route
) -> None:
    policy = MeasuredTable(make_set(tmp_path / "t", {"1P_1D": (pd, local)}))  # type: ignore[dict-item]
    plan = plan_of(turn(2), fleet("p0", "d0"), policy)
    assert (plan.route, plan.reason_class) == (route, reason)
    assert plan.choice is not None
    taken = pd if route is Route.PD else local
    assert plan.choice.ttft_s == pytest.approx(taken.ttft_mean)  # type: ignore[attr-defined]
    assert plan.choice.tpot_s == pytest.approx(0.010)
    assert plan.choice.score is not None


def test_a_plan_other_than_the_policy_chose_keeps_its_word_but_not_its_reason(tmp_path: Path) -> None:
    policy = MeasuredTable(make_set(tmp_path / "t", {"1P_2D": (arm(100, 10), arm(20, 10))}))
    of = fleet("p0", "d0", "d1")
    pod(of, "d0").in_flight = 1
    plan = plan_of(turn(2), of, policy, FULL)
    assert (plan.route, plan.reason_class) == (Route.PD, ReasonClass.FULL)
    assert plan.choice is not None
    assert (plan.choice.route, plan.choice.score) == (Route.LOCAL, pytest.approx(0.8))


def test_a_first_turn_asks_no_policy() -> None:
    assert plan_of(first_turn(), fleet("p0", "d0")).choice is None
