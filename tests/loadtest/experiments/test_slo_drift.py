"""The experiments on drift and uneven pods, small: what a table knows, what a run tells, what the report says."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from gateway.core.drift.monitor import DriftRules
from gateway.core.weights import Weights
from loadtest.experiments.outcomes import Fate, TurnRecord
from loadtest.experiments.run import Hardware, play, run, set_up
from loadtest.experiments.scenario import Kill
from loadtest.experiments.slo import drift, oracle, uneven
from loadtest.experiments.slo.drift import Arm, Change, Outcome, Played, Stretch, Times, cost
from loadtest.experiments.slo.oracle import Regime, table_for
from loadtest.experiments.slo.section import Effort
from loadtest.experiments.tables import Plan
from lut.table import TableSet
from tests.loadtest.experiments.small import spec

PLAN = Plan(contexts=(1024,), news=(256,), outputs=(32,), rates=(4.0,), repeats=1, samples=8, window_s=2.0)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TableSet]:
    """Of the pods as they are, with a slow P, and with company."""
    folder = tmp_path_factory.mktemp("tables")
    regimes = {
        "plain": Regime(),
        "slow": Regime(slow=(("p0", 3.0),)),
        "beside": Regime(beside=drift.BRIEFS, rate=2.0),
    }
    return {
        name: TableSet.open(table_for("1P_1D", Hardware(), regime, folder=folder, plan=PLAN, jobs=1))
        for name, regime in regimes.items()
    }


def test_the_oracles_table_knows_what_has_changed(tables: dict[str, TableSet]) -> None:
    plain, slow, beside = (of.tables["1P_1D"].nearest(1024, 256, 32, 4.0) for of in tables.values())
    assert slow.pd.ttft_mean > 1.5 * plain.pd.ttft_mean
    assert slow.local.ttft_mean == pytest.approx(plain.local.ttft_mean, rel=0.05)
    assert beside.pd.ttft_mean > plain.pd.ttft_mean
    assert beside.pd.samples == plain.pd.samples


def test_a_table_is_measured_once_for_each_regime(tables: dict[str, TableSet], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tables["plain"].directory.parent
    monkeypatch.setattr(oracle, "measure", lambda *_: pytest.fail("measured again"))
    assert table_for("1P_1D", Hardware(), Regime(), folder=folder, plan=PLAN) == tables["plain"].directory
    assert len({of.directory for of in tables.values()}) == 3


def test_a_run_tells_each_minute(tables: dict[str, TableSet]) -> None:
    times = Times(change_s=20.0, watched_s=-220.0)
    change = Change("x", "x", Regime(), Regime(), drift.DOCUMENTS, 0.5, Weights(1.0, 2.0), PLAN)
    arm = Arm(change, times, tables["plain"].directory, DriftRules(correct=True), True, "1")
    first, again = drift.played(arm), drift.played(arm)
    assert first == again
    assert len(first.stretches) == 1 + math.ceil((times.end_s - times.change_s) / 60)
    assert first.alarm_s is None
    assert first.stretches[1].turns > 10


def turn(ttft_s: float, fate: Fate = Fate.GOOD, at_s: float = 1.0) -> TurnRecord:
    return TurnRecord(1, 2, "talks", at_s, at_s, ttft_s, 0.01, 1.0, 100, 10, 10, 0, "local", fate)


def test_failed_turns_cost_what_the_client_gave_them() -> None:
    found = drift._stretch([turn(0.1), turn(math.nan, Fate.LOST), turn(9.0, at_s=99.0)], 0.0, 60.0)
    assert found.ttft_s == pytest.approx((0.1 + 30.0) / 2)
    assert found.turns == 2


def test_cost_is_weighted_as_the_policy_weighs() -> None:
    weights = Weights(1.0, 2.0)
    assert cost(Stretch(0.2, 0.01, 1, 0), Stretch(0.1, 0.01, 1, 0), weights) == pytest.approx(1 / 3)
    assert cost(Stretch(0.1, 0.02, 1, 0), Stretch(0.1, 0.01, 1, 0), weights) == pytest.approx(2 / 3)


def made(ttft_s: float, seed: str = "1") -> Played:
    stretch = Stretch(ttft_s, 0.01, 10, 0.5)
    return Played(seed, (stretch,), stretch, stretch)


def test_regret_is_against_the_oracle_seed_by_seed() -> None:
    change = Change("x", "x is slow", Regime(), Regime(), drift.DOCUMENTS, 2.0, Weights(1.0, 0.0), PLAN)
    outcome = Outcome(
        change,
        without=[made(0.4), made(0.8)],
        corrected=[made(0.13), made(0.26)],
        oracle=[made(0.1), made(0.2)],
        quiet=[made(0.1), made(0.2)],
        quiet_without=[made(0.1), made(0.2)],
    )
    without, corrected = outcome.regrets
    assert without.mean == pytest.approx(3.0)
    assert corrected.mean == pytest.approx(0.3)
    assert outcome.falls_by == pytest.approx(0.9)
    assert outcome.quiet_cost.mean == 0.0
    assert "X is slow" in drift._table(outcome)


def test_load_aware_runs_look_at_load_and_others_do_not() -> None:
    assert set_up(spec("local")).gate.fleet.loads is None
    assert set_up(spec("queue")).gate.fleet.loads is not None
    assert set_up(spec("local", load_aware=True)).gate.fleet.loads is not None


def test_when_all_is_over_no_pod_has_anything_to_compute() -> None:
    stage = set_up(spec("queue"))
    play(stage)
    assert [(pod.pending_tokens, pod.in_flight) for pod in stage.gate.fleet] == [(0, 0)] * 3


def test_a_dead_pod_leaves_nothing_to_compute_either() -> None:
    stage = set_up(spec("queue", rate=20.0, events=(Kill(0.3, "p0"),)))
    play(stage)
    assert [pod.pending_tokens for pod in stage.gate.fleet] == [0, 0, 0]


def test_the_same_seed_gives_the_same_turns_with_load() -> None:
    assert run(spec("queue")).turns == run(spec("queue")).turns


def test_the_uneven_section_speaks_of_its_runs(monkeypatch: pytest.MonkeyPatch, tables: dict[str, TableSet]) -> None:
    monkeypatch.setattr(uneven, "ASSIGNMENT", "1P_1D")
    monkeypatch.setattr(uneven, "PODS", {"even": (), "uneven": ()})
    monkeypatch.setattr(uneven, "table_for", lambda *_, **__: tables["plain"].directory)
    told = uneven.run(Effort(jobs=1, seeds=1), uneven.Times(until_s=4.0, warm_up_s=0.0, rate=1.0, plan=PLAN))
    assert [finding.measured.endswith("%") for finding in told.findings] == [True, True]
    assert all(len(text.splitlines()) == 4 + len(uneven.WAYS) for text in told.text[2::2])


def test_the_folder_of_tables_is_made_where_it_is_missing(tmp_path: Path, tables: dict[str, TableSet]) -> None:
    made_there = table_for("1P_1D", Hardware(), Regime(), folder=tmp_path / "a" / "b", plan=PLAN, jobs=1)
    assert (TableSet.open(made_there).tables["1P_1D"].data == tables["plain"].tables["1P_1D"].data).all()
