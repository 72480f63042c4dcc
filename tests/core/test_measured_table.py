"""PPD: the table and the weights decide."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from gateway.core.policies import MeasuredTable, Route, Threshold
from gateway.core.weights import Weights
from tests.core.plans import view
from tests.tables import arm, make_set


def test_s_is_worked_out_as_in_the_paper(tmp_path: Path) -> None:
    policy = MeasuredTable(make_set(tmp_path / "t", {"1P_3D": (arm(100, 10), arm(22, 10.7))}))
    choice = policy.choose(view())
    assert choice.route is Route.LOCAL
    assert choice.reason == "local: S=+0.71 (ttft -78 %, tpot +7 %) cell ctx=1024 in=16 out=32 q=1 π=1P_3D"


@pytest.mark.parametrize(
    ("weights", "route"),
    [
        (Weights(1, 1), "local"),
        (Weights(1, 11), "local"),
        (Weights(1, 12), "pd"),
        (Weights(0, 1), "pd"),
        (Weights(1, 0), "local"),
    ],
)
def test_the_weights_turn_the_decision_where_the_arithmetic_says(tmp_path: Path, weights: Weights, route: str) -> None:
    policy = MeasuredTable(make_set(tmp_path / "t", {"1P_3D": (arm(100, 10), arm(20, 10.7))}))
    assert policy.choose(view(weights=weights)).route == route


def test_the_cell_of_the_turn_decides_and_short_inputs_are_no_exception(tmp_path: Path) -> None:
    def local(point: tuple[float, float, float, float]) -> object:
        return arm(500 if point[1] < 100 else 20, 10)

    policy = MeasuredTable(make_set(tmp_path / "t", {"1P_3D": (arm(100, 10), local)}))  # type: ignore[dict-item]
    assert policy.choose(view(prompt_tokens=1024 + 16)).route is Route.PD
    assert policy.choose(view(prompt_tokens=1024 + 256)).route is Route.LOCAL


@pytest.mark.parametrize(
    ("pd", "local", "route"),
    [(1.0, 0.94, "pd"), (0.94, 1.0, "local"), (0.9, 0.8, "pd"), (0.8, 0.9, "local"), (0.95, 0.95, "local")],
)
def test_an_arm_that_loses_its_requests_loses_whatever_s_says(
    tmp_path: Path, pd: float, local: float, route: str
) -> None:
    arms = (arm(100, 10, success=pd), arm(20, 10, success=local))
    policy = MeasuredTable(make_set(tmp_path / "t", {"1P_3D": arms}))
    assert policy.choose(view()).route == route


@pytest.mark.parametrize("last", [Route.PD, Route.LOCAL])
def test_a_difference_inside_the_noise_keeps_the_last_route(tmp_path: Path, last: Route) -> None:
    policy = MeasuredTable(make_set(tmp_path / "t", {"1P_3D": (arm(100, 10, ci_ms=20), arm(95, 10, ci_ms=20))}))
    choice = policy.choose(view(last_route=last))
    assert choice.route is last
    assert "tie within" in choice.reason


def test_a_tie_without_a_last_route_goes_to_the_side_that_is_ahead(tmp_path: Path) -> None:
    policy = MeasuredTable(make_set(tmp_path / "t", {"1P_3D": (arm(100, 10, ci_ms=20), arm(95, 10, ci_ms=20))}))
    assert policy.choose(view(last_route=None)).route is Route.LOCAL


def test_a_difference_beyond_the_noise_moves_the_conversation(tmp_path: Path) -> None:
    policy = MeasuredTable(make_set(tmp_path / "t", {"1P_3D": (arm(100, 10, ci_ms=0.1), arm(95, 10, ci_ms=0.1))}))
    assert policy.choose(view(last_route=Route.PD)).route is Route.LOCAL


def test_without_a_table_for_these_pods_the_nearest_speaks_and_the_reason_says_so(tmp_path: Path) -> None:
    tables = {"1P_3D": (arm(100, 10), arm(20, 10)), "3P_1D": (arm(20, 10), arm(100, 10))}
    policy = MeasuredTable(make_set(tmp_path / "t", tables))  # type: ignore[arg-type]
    few = policy.choose(view(assignment="2P_6D"))
    many = policy.choose(view(assignment="5P_2D"))
    assert (few.route, many.route) == (Route.LOCAL, Route.PD)
    assert "π=1P_3D (nearest to 2P_6D)" in few.reason


@pytest.mark.parametrize(
    "changes",
    [
        {"resident_tokens": 10**9, "prompt_tokens": 2 * 10**9},
        {"rate": 0.0},
        {"rate": math.nan},
        {"rate": math.inf},
        {"output_tokens": 0},
        {"prompt_tokens": 0, "resident_tokens": 0},
        {"assignment": ""},
        {"assignment": "0P_0D"},
    ],
)
@pytest.mark.parametrize("interpolate", [False, True])
def test_nothing_in_a_request_makes_the_decision_raise(
    tmp_path: Path, changes: dict[str, object], interpolate: bool
) -> None:
    tables = make_set(tmp_path / "t", {"1P_3D": (arm(100, 10), arm(20, 10.7))})
    assert MeasuredTable(tables, interpolate).choose(view(**changes)).route is Route.LOCAL


def test_interpolation_blends_the_cells_around_the_point(tmp_path: Path) -> None:
    def local(point: tuple[float, float, float, float]) -> object:
        return arm(50 if point[0] < 4000 else 250, 10)

    tables = make_set(tmp_path / "t", {"1P_3D": (arm(100, 10), local)})  # type: ignore[dict-item]
    middle = {"resident_tokens": 4100, "prompt_tokens": 4116}
    nearest = MeasuredTable(tables).choose(view(**middle))
    blended = MeasuredTable(tables, interpolate=True).choose(view(**middle))
    assert "S=-1.50" in nearest.reason
    assert nearest.route is blended.route is Route.PD
    assert "S=-0.8" in blended.reason


def test_the_threshold_of_other_routers() -> None:
    rule = Threshold(256)
    assert rule.choose(view(prompt_tokens=1024 + 256)).route is Route.LOCAL
    assert rule.choose(view(prompt_tokens=1024 + 257)).route is Route.PD
