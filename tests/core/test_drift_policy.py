"""Policy ppd with what was seen against its table."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.core.drift.detect import BATCH_S, MIN_BATCH, REFERENCE_BATCHES
from gateway.core.drift.memory import dump, restore
from gateway.core.drift.monitor import WARM_UP, Change, Drift, DriftRules
from gateway.core.policies import Choice, MeasuredTable, Route, Seen
from gateway.core.reasons import ReasonClass
from tests.core.plans import view
from tests.tables import arm, make_set

CORRECT = DriftRules(correct=True, half_life_s=1e9)


def policy(tmp_path: Path, rules: DriftRules = CORRECT, local_ttft_ms: float = 60) -> MeasuredTable:
    tables = make_set(tmp_path / "t", {"1P_3D": (arm(100, 10), arm(local_ttft_ms, 10.7))})
    return MeasuredTable(tables, drift=Drift(rules))


def play(of: MeasuredTable, ttft_s: float, batches: int, now_s: float = 0.0) -> tuple[list[Change], float]:
    """Turns that went local and took so long."""
    choice = Choice(Route.LOCAL, "", context_tokens=1024, rate=1.0, assignment="1P_3D")
    found = []
    for _ in range(batches):
        for turn in range(MIN_BATCH):
            seen = Seen(choice, 1064, 32, ttft_s, 0.0107)
            found += of.learn(seen, now_s + turn * BATCH_S / (MIN_BATCH - 1))
        now_s += 2 * BATCH_S
    return found, now_s


def test_a_slower_route_is_told_once_and_loses_its_turns(tmp_path: Path) -> None:
    of = policy(tmp_path)
    changes, now_s = play(of, 0.06, REFERENCE_BATCHES)
    assert changes == []
    assert of.choose(view()).route is Route.LOCAL
    changes, _ = play(of, 0.18, 60, now_s)
    (change,) = changes
    assert (change.arm, change.metric, change.drifting) == ("local", "ttft", True)
    assert str(change).startswith("the table no longer describes this cluster: first tokens on local are ")
    choice = of.choose(view())
    assert choice.route is Route.PD
    assert " drift pd ×1.00/×1.00 local ×2." in choice.reason
    assert choice.ttft_s == pytest.approx(0.1)


def test_a_tie_keeps_the_last_route_only_while_the_table_is_believed(tmp_path: Path) -> None:
    tables = make_set(tmp_path / "t", {"1P_3D": (arm(100, 10, ci_ms=60), arm(90, 10, ci_ms=60))})
    of = MeasuredTable(tables, drift=Drift(CORRECT))
    _, now_s = play(of, 0.09, REFERENCE_BATCHES)
    before = of.choose(view(last_route=Route.LOCAL))
    assert (before.route, before.reason_class) == (Route.LOCAL, ReasonClass.TIE)
    play(of, 0.17, 60, now_s)
    assert of.drift is not None
    assert of.drift.drifting
    after = of.choose(view(last_route=Route.LOCAL))
    assert (after.route, after.reason_class) == (Route.PD, ReasonClass.TIE)


def test_watching_tells_and_changes_nothing(tmp_path: Path) -> None:
    of = policy(tmp_path, DriftRules(correct=False))
    _, now_s = play(of, 0.06, REFERENCE_BATCHES)
    changes, _ = play(of, 0.18, 60, now_s)
    assert len(changes) == 1
    choice = of.choose(view())
    assert choice.route is Route.LOCAL
    assert "drift" not in choice.reason


def test_no_alarm_no_difference(tmp_path: Path) -> None:
    of, plain = policy(tmp_path), policy(tmp_path / "b")
    plain.drift = None
    play(of, 0.06 * 1.1, 2 * REFERENCE_BATCHES)
    assert of.choose(view()) == plain.choose(view())


def test_another_table_forgets_what_was_seen_against_the_old_one(tmp_path: Path) -> None:
    of = policy(tmp_path)
    _, now_s = play(of, 0.06, REFERENCE_BATCHES)
    play(of, 0.18, 60, now_s)
    assert of.drift is not None
    assert of.drift.correcting
    of.take(make_set(tmp_path / "new", {"1P_3D": (arm(100, 10), arm(180, 10.7))}))
    assert not of.drift.correcting
    assert len(of.drift.corrections) == 0
    assert of.choose(view()).route is Route.PD


def test_a_degraded_arm_teaches_nothing(tmp_path: Path) -> None:
    tables = make_set(tmp_path / "t", {"1P_3D": (arm(100, 10), arm(60, 10, success=0.5))})
    of = MeasuredTable(tables, drift=Drift(CORRECT))
    play(of, 0.5, 5)
    assert of.drift is not None
    assert of.drift.observed == 0


def test_exploring_takes_the_other_route_and_says_so(tmp_path: Path) -> None:
    of = policy(tmp_path, DriftRules(correct=True, explore=0.1))
    play(of, 0.06, WARM_UP // MIN_BATCH)
    choices = [of.choose(view(key=bytes([number]) * 16)) for number in range(200)]
    explored = [choice for choice in choices if choice.explored]
    assert 0 < len(explored) <= 20
    assert {choice.route for choice in explored} == {Route.PD}
    assert {choice.reason_class for choice in explored} == {ReasonClass.EXPLORED}
    assert "explores pd" in explored[0].reason


def test_nothing_is_explored_where_an_arm_fails_too_often(tmp_path: Path) -> None:
    tables = make_set(tmp_path / "t", {"1P_3D": (arm(100, 10, success=0.5), arm(60, 10))})
    of = MeasuredTable(tables, drift=Drift(DriftRules(correct=True, explore=0.1)))
    play(of, 0.06, WARM_UP // MIN_BATCH)
    assert not any(of.choose(view(key=bytes([number]) * 16)).explored for number in range(200))


def test_what_is_known_survives_a_restart(tmp_path: Path) -> None:
    of = policy(tmp_path)
    _, now_s = play(of, 0.06, REFERENCE_BATCHES)
    _, now_s = play(of, 0.18, 60, now_s)
    assert of.drift is not None
    content = dump(of.drift, "table one")
    again = Drift(CORRECT)
    assert restore(again, "table one", content, 5.0)
    assert again.correcting
    place = (1, 0, 0, 0)
    before, after = (drift.factor("local", "ttft", "1P_3D", place) for drift in (of.drift, again))
    assert after == pytest.approx(before)


def test_what_is_known_of_another_table_is_left_alone(tmp_path: Path) -> None:
    of = policy(tmp_path)
    play(of, 0.06, 3)
    assert of.drift is not None
    fresh = Drift(CORRECT)
    assert not restore(fresh, "table two", dump(of.drift, "table one"), 0.0)
    assert len(fresh.corrections) == 0


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"table":"t","series":[],"regions":[[[],1,1,1]]}', b"\xff"])
def test_a_torn_record_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"drift|region"):
        restore(Drift(CORRECT), "t", content, 0.0)


def test_other_rules_keep_what_was_seen(tmp_path: Path) -> None:
    of = policy(tmp_path, DriftRules(correct=False))
    _, now_s = play(of, 0.06, REFERENCE_BATCHES)
    play(of, 0.18, 60, now_s)
    assert of.drift is not None
    of.drift.reconfigure(CORRECT)
    assert of.choose(view()).route is Route.PD
