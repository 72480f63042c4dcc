"""Tables of policy ppd that are measured in simulation."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.experiments import tables
from loadtest.experiments.run import Hardware, run
from loadtest.experiments.tables import Plan, measure, table_for
from lut.table import TableSet
from tests.loadtest.experiments.small import spec

PLAN = Plan(contexts=(512, 2048), news=(64,), outputs=(32,), rates=(4.0,), repeats=2, samples=8, window_s=1.0)


def test_local_is_measured_to_have_the_faster_first_token() -> None:
    points = measure("1P_1D", Hardware(), PLAN, jobs=1)
    assert len(points) == 8
    by_arm = {arm: [p.ttft_mean_s for p in points if p.arm == arm and p.context_tokens == 2048] for arm in tables.ARMS}
    assert all(local < pd for local, pd in zip(by_arm["local"], by_arm["pd"], strict=True))  # type: ignore[operator]
    assert all(point.success == 1.0 and point.simulated for point in points)


def test_a_table_is_measured_once_and_serves_policy_ppd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = table_for("1P_2D", Hardware(), folder=tmp_path, plan=PLAN, jobs=1)
    assert list(TableSet.open(directory).tables) == ["1P_2D"]
    monkeypatch.setattr(tables, "measure", None)
    assert table_for("1P_1D_1pD", Hardware(), folder=tmp_path, plan=PLAN, jobs=1) == directory
    routes = {turn.route for turn in run(spec("ppd", tables=directory)).turns if turn.turn > 1}
    assert routes == {"local"}


def test_other_hardware_has_another_table(tmp_path: Path) -> None:
    plain = table_for("1P_1D", Hardware(), folder=tmp_path, plan=PLAN, jobs=1)
    slow = table_for("1P_1D", Hardware(bandwidth=1e9), folder=tmp_path, plan=PLAN, jobs=1)
    assert plain != slow


def test_what_no_pod_could_hold_is_not_measured() -> None:
    plan = Plan(contexts=(512, 9000), news=(64,), outputs=(32,), rates=(4.0,), repeats=1, samples=4, window_s=0.1)
    assert {point.context_tokens for point in measure("1P_1D", Hardware(), plan, jobs=1)} == {512}
