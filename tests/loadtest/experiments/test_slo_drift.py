"""The experiments on drift and uneven pods, small: what a table knows, what a run tells, what the report says."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.core.drift.monitor import DriftRules
from gateway.core.weights import Weights
from loadtest.experiments.outcomes import Fate, TurnRecord
from loadtest.experiments.run import Hardware, play, run, set_up
from loadtest.experiments.scenario import ChangeRate, Kill, Slow
from loadtest.experiments.slo import best, drift, drift_live, drift_runs, oracle, shifts, uneven
from loadtest.experiments.slo import play as slo_play
from loadtest.experiments.slo.best import Fixed, Search, Stretch, find, score, stretch
from loadtest.experiments.slo.drift_runs import Arm, Outcome, Played, Quiet, Times, cost, played
from loadtest.experiments.slo.live import on_http
from loadtest.experiments.slo.oracle import Regime, table_for
from loadtest.experiments.slo.play import Case
from loadtest.experiments.slo.section import Effort
from loadtest.experiments.slo.shifts import Change, changes
from loadtest.experiments.tables import Plan
from loadtest.experiments.traffic import Stream
from loadtest.experiments.workloads import LongTurns
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
        "beside": Regime(beside=shifts.BRIEFS, rate=2.0),
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


BRIEFLY = Times(change_s=20.0, watched_s=-270.0)
TALKS = Stream(shifts.REPORTS, 1.0, tenant=shifts.TALKS)
SLOWER = Change(
    "x", "p is slow", (TALKS,), (Slow(0.0, "p0", 3.0),), Regime(slow=(("p0", 3.0),)), assignment="1P_1D", plan=PLAN
)
SEARCH = Search(rounds=1, policies=("local",), seeds=1, learn_s=30.0, judge_s=20.0, warm_up_s=2.0)


def test_a_run_tells_each_minute(tables: dict[str, TableSet]) -> None:
    arm = Arm(SLOWER, BRIEFLY, "1", tables["plain"].directory, drift=DriftRules(correct=True))
    first, again = played(arm), played(arm)
    assert first == again
    assert len(first.stretches) == 1 + math.ceil((BRIEFLY.end_s - BRIEFLY.change_s) / 60)
    assert first.alarm_s is None
    assert first.stretches[1].turns > 10


def test_a_change_that_does_not_happen_leaves_all_as_it_was(tables: dict[str, TableSet]) -> None:
    spec = SLOWER.spec("1", 30.0, at_s=None, tables=tables["plain"].directory)
    assert spec.events == ()
    assert SLOWER.spec("1", 30.0, at_s=7.0).events == (Slow(7.0, "p0", 3.0),)


def turn(ttft_s: float, fate: Fate = Fate.GOOD, at_s: float = 1.0, tenant: str = shifts.TALKS) -> TurnRecord:
    return TurnRecord(1, 2, tenant, at_s, at_s, ttft_s, 0.01, 1.0, 100, 10, 10, 0, "local", fate)


def test_failed_turns_cost_what_the_client_gave_them_and_others_do_not_count() -> None:
    turns = [turn(0.1), turn(math.nan, Fate.LOST), turn(9.0, at_s=99.0), turn(9.0, tenant=shifts.BESIDE)]
    found = stretch(turns, 0.0, 60.0)
    assert found.ttft_s == pytest.approx((0.1 + 30.0) / 2)
    assert found.turns == 2


def test_cost_is_weighted_as_the_policy_weighs() -> None:
    weights = Weights(1.0, 2.0)
    assert cost(Stretch(0.2, 0.01, 1, 0), Stretch(0.1, 0.01, 1, 0), weights) == pytest.approx(1 / 3)
    assert cost(Stretch(0.1, 0.02, 1, 0), Stretch(0.1, 0.01, 1, 0), weights) == pytest.approx(2 / 3)
    halves = score(Stretch(0.2, 0.01, 1, 0), weights) - score(Stretch(0.1, 0.02, 1, 0), weights)
    assert halves == pytest.approx(-math.log(2) / 3)


def test_others_come_so_often_that_they_take_half_of_the_prefill_pods_time() -> None:
    alone_s = shifts.seconds_on_p(shifts.BRIEFS, Hardware())
    assert shifts.rate_of(shifts.BRIEFS, 0.5, Hardware()) == pytest.approx(2 * 0.5 / alone_s, abs=0.005)
    assert shifts.rate_of(shifts.BRIEFS, 0.5, Hardware(), 2.0) == pytest.approx(0.5 / alone_s, abs=0.005)
    rates = [
        max(event.per_second for event in change.events if isinstance(event, ChangeRate)) for change in changes()[1:]
    ]
    assert rates[0] == pytest.approx(2 * rates[1], rel=0.01)


def test_both_routes_are_seen_and_what_they_took_is_the_next_table(tmp_path: Path) -> None:
    found = find(SLOWER, SEARCH, tmp_path, jobs=1)
    assert sorted(each.name for each in found) == [
        "learnt on the way, 1",
        "measured again, one route at a time",
        "one route for all: local",
        "that, through P 2 times as long",
        "the old table",
    ]
    assert [each.score for each in found] == sorted(each.score for each in found)
    tables = {each.name: each.path(tmp_path) for each in found}
    learnt, tolled, again = (
        TableSet.open(path).tables["1P_1D"]
        for path in (
            tables["learnt on the way, 1"],
            tables["that, through P 2 times as long"],
            tables["measured again, one route at a time"],
        )
        if path is not None
    )
    for arm in ("pd", "local"):
        assert (learnt.column(arm, "samples") != again.column(arm, "samples")).any(), f"{arm} was seen on the way"
        assert (learnt.column(arm, "ttft_mean") != again.column(arm, "ttft_mean")).any()
    assert tolled.column("pd", "ttft_mean") == pytest.approx(2 * learnt.column("pd", "ttft_mean"))
    assert (tolled.column("local", "ttft_mean") == learnt.column("local", "ttft_mean")).all()


def test_what_was_found_is_not_looked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = find(SLOWER, SEARCH, tmp_path, jobs=1)
    monkeypatch.setattr(best, "run", lambda *_: pytest.fail("played again"))
    assert find(SLOWER, SEARCH, tmp_path, jobs=1) == first


def made(ttft_s: float, seed: str = "1") -> Played:
    one = Stretch(ttft_s, 0.01, 10, 0.5)
    return Played(seed, (one,), one, one)


def outcome(corrected: tuple[float, float]) -> Outcome:
    fixed = Fixed("one route for all: local", "local", None, -1.0, 0.1, 0.01, 1.0)
    change = replace(SLOWER, weights=Weights(1.0, 0.0))
    runs = [[made(0.4), made(0.8)], [made(each) for each in corrected], [made(0.1), made(0.2)]]
    return Outcome(change, [fixed], *runs)


def test_regret_is_against_the_oracle_seed_by_seed() -> None:
    found = outcome((0.13, 0.26))
    without, corrected = found.regrets
    assert without.mean == pytest.approx(3.0)
    assert corrected.mean == pytest.approx(0.3)
    assert found.falls_by == pytest.approx(0.9)


def test_the_report_says_what_was_met_and_shows_all_that_was_tried() -> None:
    nothing = Quiet([made(0.1)], [made(0.1)], Weights(1.0, 1.0))
    told = drift.told([outcome((0.13, 0.26)), outcome((0.3, 0.6))], [outcome((0.13, 0.26))], nothing)
    assert [finding.met for finding in told.findings] == [True, False, True]
    assert told.findings[0].measured == "from 300.0% to 30.0%: by 90%"
    text = "\n".join(told.text)
    assert text.count("P is slow.**") == 2
    assert sum(line.startswith("| p is slow |") for line in told.text) == 3


def test_a_yardstick_that_is_no_better_shows_nothing() -> None:
    same = replace(outcome((0.1, 0.2)), without=[made(0.11), made(0.22)])
    (finding, _) = drift.told([same], [], Quiet([made(0.1)], [made(0.1)], Weights(1.0, 1.0))).findings
    assert not finding.met
    assert "it shows nothing" in finding.measured


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


def test_on_http_pods_become_slow_in_the_middle(tables: dict[str, TableSet]) -> None:
    talks = (Stream(LongTurns("short", 2, 200, 50, 4), 10.0, tenant=shifts.TALKS),)
    change = replace(SLOWER, streams=talks, events=(Slow(0.0, "p0", 6.0),))
    whole = change.spec("live", 1.2, at_s=0.6, tables=tables["plain"].directory, drift=DriftRules(correct=True))
    found = on_http(Case("slow", whole), 1.0)
    assert {turn.fate for turn in found.turns} == {Fate.GOOD}
    assert found.alarms == ()
    first_s: dict[str, list[float]] = {"before": [], "after": []}
    for each in found.turns:
        if each.turn == 1:
            first_s["before" if each.at_s < 0.4 else "after"].append(each.ttft_s)
    assert sum(first_s["after"]) / len(first_s["after"]) > 1.5 * sum(first_s["before"]) / len(first_s["before"])


def test_what_ran_on_http_stands_beside_virtual_time() -> None:
    times = drift_live.Times(pieces=(0.0, 10.0, 20.0))
    late_s = times.change_s + 15.0

    def ran(ttft_s: float, *alarms: float) -> slo_play.Played:
        turns = [turn(0.2, at_s=times.settled_s + 1), turn(ttft_s, at_s=late_s)]
        return slo_play.Played(Case("c", SLOWER.spec("1", 1.0, at_s=None)), turns, 1.0, {}, 0, 0, [], alarms)

    alarm_s = times.change_s + 44.0
    told = drift_live.told([(ran(1.0), ran(1.1)), (ran(0.25, 3.0, alarm_s), ran(0.22))], times)
    (finding,) = told.findings
    assert (finding.met, finding.measured) == (
        True,
        "1,100 → 220 ms on HTTP (-80%), 1,000 → 250 ms in virtual time (-75%)",
    )
    assert "| 10 to 20 s after | 1,000 | 1,100 | 250 | 220 |" in told.text
    assert told.text[-1] == "First alarm: virtual after 44 s, HTTP never."
    worse = drift_live.told([(ran(1.0), ran(1.0)), (ran(0.25), ran(0.9))], times)
    assert not worse.findings[0].met


def test_on_http_everything_is_stretched_and_the_table_is_of_stretched_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Regime] = []
    monkeypatch.setattr(drift_live, "table_for", lambda *given, **_: asked.append(given[2]) or Path("t"))
    old, corrected = drift_live.cases(drift_live.Times())
    assert asked == [Regime(slow=(("p0", 2.0), ("p1", 2.0), ("d0", 2.0), ("d1", 2.0)))]
    assert old.spec.streams[0].rate == changes()[0].streams[0].rate / 2  # type: ignore[operator]
    assert old.spec.events == (Slow(160.0, "p0", 4.0), Slow(160.0, "p1", 4.0))
    assert (old.spec.drift, corrected.spec.drift) == (None, drift_runs.RULES)
