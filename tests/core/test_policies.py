"""The policies: what each says of one turn, and why."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from gateway.core.policies import (
    POLICIES,
    AlwaysLocal,
    AlwaysPrefill,
    AlwaysReadback,
    MeasuredTable,
    PolicyOptions,
    Route,
    Threshold,
    TurnView,
)
from gateway.core.weights import Weights
from lut.table import Arm, Cell, TableSet

VIEW = TurnView(turn=3, prompt_tokens=1100, resident_tokens=1000)


def arm(ttft: float, tpot: float, success: float = 1.0, ci: float = 0.0) -> Arm:
    """An arm of these means, with the same interval on both."""
    return Arm(ttft, 2 * ttft, tpot, 2 * tpot, success, 100, ci, ci, 0)


def cell(pd: Arm, local: Arm, readback: Arm | None = None) -> Cell:
    return Cell(pd, local, readback, 1024, 128, 64, 2.0)


class OneCell:
    """Stands in for a table set: the same cell wherever one looks, and a note of where that was."""

    def __init__(self, found: Cell, *, exact: bool = True) -> None:
        self.found, self.exact = found, exact
        self.looked: list[tuple[Any, ...]] = []

    def nearest_assignment(self, assignment: str) -> tuple[OneCell, str, bool]:
        self.looked.append((assignment,))
        return self, "1P_3D", self.exact

    def nearest(self, *point: float) -> Cell:
        self.looked.append(("nearest", *point))
        return self.found

    def interpolated(self, *point: float) -> Cell:
        self.looked.append(("interpolated", *point))
        return self.found


def ppd(found: Cell, *, exact: bool = True) -> MeasuredTable:
    return MeasuredTable(cast(TableSet, OneCell(found, exact=exact)))


# Fixed rules


def test_policy_pd_sends_every_turn_through_p() -> None:
    choice = AlwaysPrefill().choose(VIEW)
    assert (choice.route, choice.reason) == (Route.PD, "turn 3: policy pd sends every turn through a prefill pod")


def test_policy_local_sends_every_later_turn_to_the_pod_that_holds_it() -> None:
    choice = AlwaysLocal().choose(VIEW)
    assert (choice.route, choice.reason) == (Route.LOCAL, "turn 3: 1000 of about 1100 tokens are on D")


@pytest.mark.parametrize(("limit", "route"), [(100, Route.LOCAL), (99, Route.PD), (0, Route.PD)])
def test_policy_threshold_is_local_up_to_so_many_new_tokens(limit: int, route: Route) -> None:
    choice = Threshold(limit).choose(VIEW)
    assert choice.route is route
    assert choice.reason == f"{route}: 100 new tokens, the threshold is {limit}"


@pytest.mark.parametrize(("prompt", "resident", "new"), [(1100, 1000, 100), (1000, 1000, 1), (900, 1000, 1)])
def test_a_turn_has_at_least_one_new_token(prompt: int, resident: int, new: int) -> None:
    assert TurnView(2, prompt, resident).new_tokens == new


# The table


def test_a_faster_first_token_that_costs_less_than_it_is_worth_stays_local() -> None:
    """Δttft = (1.0 − 0.6)/1.0 = 0.4, Δtpot = (0.012 − 0.010)/0.010 = 0.2, S = 0.4 − 0.2."""
    choice = ppd(cell(arm(1.0, 0.010), arm(0.6, 0.012))).choose(VIEW)
    assert choice.route is Route.LOCAL
    assert choice.reason == "local: S=+0.20 (ttft -40 %, tpot +20 %) cell ctx=1024 in=128 out=64 q=2 π=1P_3D"


@pytest.mark.parametrize(
    ("weights", "route"),
    [(Weights(1, 1), "local"), (Weights(1, 4), "pd"), (Weights(0, 1), "pd"), (Weights(1, 0), "local")],
)
def test_the_weights_decide_what_a_slower_stream_costs(weights: Weights, route: str) -> None:
    view = TurnView(2, 1100, 1000, weights=weights)
    assert ppd(cell(arm(1.0, 0.010), arm(0.6, 0.012))).choose(view).route == route


@pytest.mark.parametrize("last", [Route.PD, Route.LOCAL])
def test_a_tie_keeps_the_conversations_last_route(last: Route) -> None:
    """Weights 1 and 2: S = 0.4 − 2 · 0.2 = 0, up to the rounding of the last bit."""
    tie = cell(arm(1.0, 0.010, ci=1e-9), arm(0.6, 0.012, ci=1e-9))
    choice = ppd(tie).choose(TurnView(2, 1100, 1000, last_route=last, weights=Weights(1, 2)))
    assert choice.route is last
    assert "tie within ±0.00" in choice.reason


def test_a_lead_within_the_noise_is_a_tie() -> None:
    """S = +0.2; the interval of the mean TTFT alone, 0.3 of 1.0 s, is wider."""
    noisy = cell(arm(1.0, 0.010), arm(0.6, 0.012)._replace(ttft_ci=0.3))
    choice = ppd(noisy).choose(TurnView(2, 1100, 1000, last_route=Route.PD))
    assert choice.route is Route.PD
    assert "S=+0.20" in choice.reason
    assert "tie within ±0.30" in choice.reason


@pytest.mark.parametrize("last", [None, Route.REPLICA])
def test_a_tie_without_a_last_route_goes_to_the_leader(last: Route | None) -> None:
    noisy = cell(arm(1.0, 0.010), arm(0.6, 0.012)._replace(ttft_ci=0.3))
    assert ppd(noisy).choose(TurnView(2, 1100, 1000, last_route=last)).route is Route.LOCAL


def test_a_route_that_timed_out_too_often_loses_whatever_its_times() -> None:
    choice = ppd(cell(arm(1.0, 0.010), arm(0.1, 0.010, success=0.90))).choose(VIEW)
    assert choice.route is Route.PD
    assert "degraded: local" in choice.reason


def test_the_table_is_asked_about_this_turn() -> None:
    tables = OneCell(cell(arm(1, 1), arm(1, 1)))
    view = TurnView(2, 1100, 1000, output_tokens=50, rate=2.5, assignment="2P_2D")
    MeasuredTable(cast(TableSet, tables)).choose(view)
    MeasuredTable(cast(TableSet, tables), interpolate=True).choose(view)
    assert tables.looked == [
        ("2P_2D",),
        ("nearest", 1000, 100, 50, 2.5),
        ("2P_2D",),
        ("interpolated", 1000, 100, 50, 2.5),
    ]


def test_a_table_of_another_cluster_is_named() -> None:
    choice = ppd(cell(arm(1.0, 0.010), arm(0.6, 0.012)), exact=False).choose(
        TurnView(2, 1100, 1000, assignment="1P_2D")
    )
    assert choice.reason.endswith("π=1P_3D (nearest to 1P_2D)")


@pytest.mark.parametrize(("local", "route"), [(arm(0.9, 0.010), Route.LOCAL), (arm(1.1, 0.010), Route.PD)])
def test_a_readback_arm_is_left_out_where_the_gateway_cannot_take_that_route(local: Arm, route: Route) -> None:
    found = cell(arm(1.0, 0.010), local, readback=arm(0.1, 0.010))
    assert ppd(found).choose(VIEW) == ppd(found._replace(readback=None)).choose(VIEW)
    assert ppd(found).choose(VIEW).route is route


def test_a_readback_arm_wins_where_the_gateway_can_take_that_route() -> None:
    found = cell(arm(1.0, 0.010), arm(0.9, 0.010), readback=arm(0.1, 0.010))
    view = msgspec.structs.replace(VIEW, readback=True)
    assert ppd(found).choose(view).route is Route.READBACK


def test_the_policy_that_measures_readback_takes_it_where_it_can() -> None:
    assert AlwaysReadback().choose(VIEW).route is Route.PD
    assert AlwaysReadback().choose(msgspec.structs.replace(VIEW, readback=True)).route is Route.READBACK


# By name


def test_every_policy_goes_by_its_name() -> None:
    tables = cast(TableSet, OneCell(cell(arm(1, 1), arm(1, 1))))
    made = {name: make(PolicyOptions(tables=tables)) for name, make in POLICIES.items()}
    assert {name: policy.name for name, policy in made.items()} == {name: name for name in POLICIES}
    assert set(POLICIES) == {"pd", "local", "readback", "threshold", "queue", "ppd"}


def test_the_options_reach_the_policy() -> None:
    threshold = POLICIES["threshold"](PolicyOptions(threshold_tokens=7))
    assert isinstance(threshold, Threshold)
    assert threshold.max_new_tokens == 7
    measured = POLICIES["ppd"](
        PolicyOptions(tables=cast(TableSet, OneCell(cell(arm(1, 1), arm(1, 1)))), interpolate=True)
    )
    assert isinstance(measured, MeasuredTable)
    assert measured.interpolate


def test_policy_ppd_without_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match="policy ppd needs a table set"):
        POLICIES["ppd"](PolicyOptions())
