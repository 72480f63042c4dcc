"""Drift in a running gateway: requests that end, lines that are said, the file of measurements, the settings."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import pytest

from gateway.core.conversations import ConversationStore
from gateway.core.drift.detect import BATCH_S, MIN_BATCH, REFERENCE_BATCHES
from gateway.core.drift.monitor import Drift, DriftRules
from gateway.core.load import Loads
from gateway.core.pods import Fleet, Pod, Role
from gateway.core.policies import Choice, MeasuredTable, Route
from gateway.net.parts import Parts
from gateway.net.records import IdleObserver, Outcome, RequestRecord
from gateway.net.settings import GatewaySettings
from gateway.net.upstream import PodClient
from gateway.ops import drift as ops_drift
from gateway.ops.admin.drift import drift as shown_drift
from gateway.ops.admin.drift import merged_drift
from gateway.ops.config import Config, load
from gateway.ops.drift import DriftPlan, DriftWatch, Measurements, loads_of, take_rules, watch_drift
from gateway.ops.metrics import Metrics
from gateway.ops.state import kept
from lut.learn import learn
from lut.raw import read_raw
from lut.table import TableError
from tests.tables import arm, make_set

CHOICE = Choice(Route.LOCAL, "", context_tokens=1024, rate=1.0, assignment="1P_3D")


@pytest.fixture
def policy(tmp_path: Path) -> MeasuredTable:
    tables = make_set(tmp_path / "t", {"1P_3D": (arm(100, 10), arm(60, 10.7))})
    return MeasuredTable(tables, drift=Drift(DriftRules(correct=True)))


@pytest.fixture
def parts(policy: MeasuredTable) -> Parts:
    fleet = Fleet([Pod("http://d0", Role.DECODE, up=True)])
    return Parts(fleet, ConversationStore(10, 60.0), policy, PodClient(1.0), IdleObserver(), GatewaySettings())


class Clock:
    """Stands for `time` in `gateway.ops.drift`."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def time(self) -> float:
        return 1.7e9 + self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(ops_drift, "time", found)
    return found


def record(**changes: object) -> RequestRecord:
    values: dict[str, object] = {
        "outcome": Outcome.OK,
        "stream": True,
        "route": "local",
        "attempts": 1,
        "prompt_tokens": 1064,
        "output_tokens": 32,
        "estimated_tokens": 1064,
        "ttft_s": 0.06,
        "tpot_s": 0.0107,
        "choice": CHOICE,
    }
    return RequestRecord("id", "POST", "/v1/chat/completions", **{**values, **changes})  # type: ignore[arg-type]


def observed(policy: MeasuredTable) -> int:
    assert policy.drift is not None
    return policy.drift.observed


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        ({}, 1),
        ({"choice": None}, 0),
        ({"attempts": 2}, 0),
        ({"route": "pd"}, 0),
        ({"outcome": Outcome.CANCELLED}, 0),
        ({"outcome": Outcome.FAILED}, 0),
        ({"output_tokens": None}, 0),
    ],
)
def test_only_turns_that_went_as_the_policy_chose_are_held_against_the_table(
    parts: Parts, policy: MeasuredTable, changes: dict[str, object], counts: int
) -> None:
    DriftWatch(parts, policy, None).finished(record(**changes))
    assert observed(policy) == counts


def test_waiting_to_be_let_in_is_not_the_tables_matter(parts: Parts, policy: MeasuredTable, clock: Clock) -> None:
    watch = DriftWatch(parts, policy, None)
    for _ in range(3):
        for _ in range(MIN_BATCH):
            clock.now_s += BATCH_S
            watch.finished(record(ttft_s=5.06, queued_s=5.0))
    assert policy.drift is not None
    assert policy.drift.series["local", "ttft"].level == pytest.approx(0.0, abs=1e-6)


def drifted(parts: Parts, policy: MeasuredTable, clock: Clock, *, batches: int = 40) -> None:
    watch = DriftWatch(parts, policy, None)
    for batch in range(REFERENCE_BATCHES + batches):
        for _ in range(MIN_BATCH):
            clock.now_s += BATCH_S / MIN_BATCH + 0.1
            watch.finished(record(ttft_s=0.06 if batch < REFERENCE_BATCHES else 0.2))


def test_drift_is_one_line(parts: Parts, policy: MeasuredTable, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        drifted(parts, policy, clock)
    (said,) = caplog.messages
    assert said.startswith("the table no longer describes this cluster: first tokens on local are ")


def test_metrics_and_the_admin_api_show_it(parts: Parts, policy: MeasuredTable, clock: Clock) -> None:
    drifted(parts, policy, clock)
    text = Metrics().page(parts).body.decode()
    assert 'ppd_table_drift{arm="local",latency="ttft"} 1' in text
    assert 'ppd_table_drift{arm="local",latency="tpot"} 0' in text
    assert "ppd_explored_turns_total 0" in text
    found = shown_drift(parts)
    assert (found.enabled, found.correcting, found.drifting) == (True, True, True)
    ttft = next(each for each in found.series if (each.arm, each.latency) == ("local", "ttft"))
    assert ttft.drifting
    assert ttft.ratio == pytest.approx(0.2 / 0.06, rel=0.01)
    assert ttft.correction > 2
    assert merged_drift([found, msgspec.json.decode(msgspec.json.encode(found), type=type(found))], None).observed == (
        2 * observed(policy)
    )


def test_where_nothing_is_watched_nothing_is_shown(parts: Parts, policy: MeasuredTable) -> None:
    policy.drift = None
    assert "ppd_table_drift{" not in Metrics().page(parts).body.decode()
    assert not shown_drift(parts).enabled
    assert kept(policy) == ""


def test_rules_change_while_the_gateway_runs(policy: MeasuredTable) -> None:
    before = policy.drift
    take_rules(policy, DriftRules(correct=False, tolerance=0.5))
    assert policy.drift is before
    assert before is not None
    assert before.rules.tolerance == 0.5
    take_rules(policy, None)
    assert policy.drift is None
    take_rules(policy, DriftRules())
    assert policy.drift is not None


def test_a_pods_pace_is_forgotten_with_its_process(parts: Parts, policy: MeasuredTable) -> None:
    loads = parts.fleet.loads = Loads()
    pod = parts.fleet.get("http://d0")
    assert pod is not None
    loads.first_token(pod, 100, 5.0)
    before = loads.pace(pod)
    DriftWatch(parts, policy, None).pod_restarted(pod.url, "decode", "")
    assert loads.pace(pod) is not before


def test_only_policies_that_look_at_load_pay_for_it() -> None:
    assert loads_of("ppd", load_aware=False) is None
    assert loads_of("ppd", load_aware=True) is not None
    assert loads_of("queue", load_aware=False) is not None


def test_a_policy_without_a_table_is_not_watched(parts: Parts) -> None:
    before = parts.observer
    parts.policy = Threshold()
    watch_drift(parts, None)
    assert parts.observer is before


class Threshold:
    name = "threshold"

    def choose(self, view: object) -> Choice:
        return CHOICE


# The file


async def test_what_was_measured_becomes_a_table(parts: Parts, policy: MeasuredTable, tmp_path: Path) -> None:
    measurements = Measurements(tmp_path / "m.jsonl", 600.0, policy)
    measurements.start()
    watch = DriftWatch(parts, policy, measurements.tally)
    for _ in range(99):
        watch.finished(record(ttft_s=0.2))
    watch.finished(record(outcome=Outcome.FAILED, ttft_s=None, tpot_s=None, output_tokens=None))
    await measurements.stop()
    points = read_raw(tmp_path / "m.jsonl").points
    by_output = {located.point.output_tokens: located.point for located in points}
    point = by_output[32]
    assert sum(located.point.samples for located in points) == 100
    assert (point.arm, point.context_tokens, point.new_tokens, point.rate) == ("local", 1024, 16, 1.0)
    assert point.ttft_mean_s == pytest.approx(0.2)
    new = learn(policy.tables, points, prior=0)
    assert new.cells == 1


async def test_another_table_ends_the_tally_of_the_former(parts: Parts, policy: MeasuredTable, tmp_path: Path) -> None:
    measurements = Measurements(tmp_path / "m.jsonl", 600.0, policy, worker=2)
    DriftWatch(parts, policy, measurements.tally).finished(record())
    other = make_set(tmp_path / "other", {"2P_2D": (arm(100, 10), arm(60, 10.7))})
    policy.take(other)
    measurements.table_changed(other)
    await measurements.stop()
    assert measurements.path == tmp_path / "m.jsonl.2"
    assert [located.point.assignment for located in read_raw(measurements.path).points] == ["1P_3D"]


async def test_a_large_file_begins_anew(
    parts: Parts, policy: MeasuredTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops_drift, "MAX_FILE_BYTES", 10)
    measurements = Measurements(tmp_path / "m.jsonl", 600.0, policy)
    DriftWatch(parts, policy, measurements.tally).finished(record())
    await measurements.write()
    await measurements.stop()
    assert len(read_raw(tmp_path / "m.jsonl.old").points) == 1
    assert read_raw(tmp_path / "m.jsonl").points == ()


def test_a_file_of_something_else_is_refused(policy: MeasuredTable, tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text("hello\n")
    with pytest.raises(TableError, match=r"m\.jsonl:1"):
        Measurements(tmp_path / "m.jsonl", 600.0, policy)


# Settings


def config(**flags: object) -> Config:
    return load(None, {}, {"decode": ["http://d:1"], **flags})


def test_by_default_drift_is_watched_and_changes_nothing() -> None:
    assert config().drift == DriftPlan(DriftRules(correct=False))
    assert not config().load_aware


def test_every_setting_arrives() -> None:
    found = config(
        **{
            "drift.mode": "correct",
            "drift.tolerance": "0.5",
            "drift.false_alarms": "0.1",
            "drift.half_life_s": "60",
            "drift.explore": "0.02",
            "drift.measurements_file": "m.jsonl",
            "drift.measurements_interval_s": "30",
            "load_aware": "true",
        }
    )
    assert found.drift == DriftPlan(DriftRules(True, 60.0, 0.5, 0.1, 0.02), Path("m.jsonl"), 30.0)
    assert found.load_aware
    assert config(**{"drift.mode": "off"}).drift.rules is None
