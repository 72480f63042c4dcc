"""The benchmark of decisions: what stands beside a plain one is really on, and nothing stays behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.core.policies import MeasuredTable
from loadtest.bench import extras
from loadtest.bench.decision import World, time_decisions
from tests.tables import arm, make_set


@pytest.fixture
def world(tmp_path: Path) -> World:
    tables = make_set(tmp_path / "t", {"1P_3D": (arm(100, 10), arm(60, 10.7))})
    return World(60, 40, 4, tables)


def test_every_row_is_measured_on_the_same_decisions_and_leaves_the_gateway_as_it_was(world: World) -> None:
    costs = extras.measure(world, rounds=1)
    assert [cost.name for cost in costs] == [make().name for make in extras.EXTRAS]
    assert all(cost.before_us > 0 for cost in costs)
    assert isinstance(world.policy, MeasuredTable)
    assert (world.policy.drift, world.fleet.loads) == (None, None)
    text = extras.lines(costs)
    assert len(text) == 1 + len(costs)
    assert text[1].split()[:3] == ["plain", f"{costs[0].before_us:.1f}", "+0.0"]
    assert set(extras.for_json(costs)) >= {"plain before_us", "load_aware after_us"}


def test_decisions_can_be_timed_one_by_one(world: World) -> None:
    seen: list[str] = []

    def clock() -> float:
        seen.append("clock")
        return len(seen) ** 2

    assert time_decisions(world, clock, most=3, pause=lambda: seen.append("pause")) == [5.0, 11.0, 17.0]
    assert seen == ["pause", "clock", "clock"] * 3
    assert len(time_decisions(world, clock)) == len(world.asked)


def turn_of(world: World, extra: extras.Extra) -> tuple[extras.Turn, str]:
    """The first decision with an extra on, and its reason."""
    extra.begin(world)
    turn = extras.Turn(world, *world.request_of(world.asked[0], bytes(16), 1.0, extra.weights()), 1.0)
    plan = extra.before(turn)
    extra.after(turn, plan)
    return turn, plan.reason


def test_corrections_are_in_force_while_they_are_measured(world: World) -> None:
    extra = extras.Corrected()
    turn_of(world, extra)
    _, reason = turn_of(world, extra)
    assert " drift pd ×" in reason
    extra.end(world)


def test_load_is_looked_at_while_it_is_measured(world: World) -> None:
    _, reason = turn_of(world, extras.LoadAware())
    assert " load pd " in reason


def test_what_admission_and_quotas_took_is_given_back(world: World) -> None:
    admission, tenants = extras.Admission(), extras.Tenants()
    turn_of(world, admission)
    assert admission.desk.in_flight_tokens == 1000
    turn_of(world, tenants)
    accounts = [account for _, account in tenants._tenancy.quotas]
    assert [account.in_flight for account in accounts] == [0]
    assert accounts[0].tokens.level is not None


def test_targets_move_the_weights(world: World) -> None:
    turn, _ = turn_of(world, extras.Slo())
    assert turn.request.weights.w_ttft > 1.0 > turn.request.weights.w_tpot
