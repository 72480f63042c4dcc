"""The gate with a desk, and what the sections make of its runs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.core.admission.classes import ServiceClass
from gateway.core.admission.desk import AdmissionRules
from gateway.core.slo import SloSettings, Targets
from gateway.core.tenants import Tenant
from loadtest.experiments.client import Patience
from loadtest.experiments.outcomes import Fate, Slo, TurnRecord
from loadtest.experiments.run import run
from loadtest.experiments.scenario import Kill
from loadtest.experiments.slo import death, flood, overload
from loadtest.experiments.slo.__main__ import SECTIONS, document, keep, kept, sections
from loadtest.experiments.slo.gate import Control
from loadtest.experiments.slo.live import on_http, stretched
from loadtest.experiments.slo.play import Case, goodput, p99_ttft_ms, played, stage_of
from loadtest.experiments.slo.section import Finding, Section, Told
from loadtest.experiments.traffic import Extent, Stream
from loadtest.experiments.workloads import LongTurns
from tests.loadtest.experiments.small import TALK, spec

TIGHT = AdmissionRules(prefill_tokens=600, decode_tokens=2000, queue_s=30.0)


def case(rules: AdmissionRules = TIGHT, rate: float = 20.0, **more: Any) -> Case:
    fields = ("deadlines_s", "tenants", "slo")
    control = Control(rules, **{name: more.pop(name) for name in fields if name in more})
    return Case("small", spec(rate=rate, **{"extent": Extent(conversations=30), **more}), control)


def turn(fate: Fate = Fate.GOOD, ttft_s: float = 0.1, at_s: float = 0.0, conversation: int = 0) -> TurnRecord:
    return TurnRecord(conversation, 1, "", at_s, at_s, ttft_s, 0.01, 1.0, 10, 10, 10, 0, "pd", fate)


def test_without_limits_a_desk_changes_nothing() -> None:
    found = played(case(AdmissionRules()))
    assert found.turns == run(found.case.spec).turns


def test_with_limits_every_turn_is_answered_later_and_the_desk_is_empty_in_the_end() -> None:
    stage, gate = stage_of(case())
    stage.client.begin()
    stage.watch.begin()
    while not stage.client.over:
        gate.cluster.run(gate.cluster.now + 10)
    stage.watch.end()
    assert {each.fate for each in stage.client.turns} == {Fate.GOOD}
    assert sum(gate.desk.queued.values()) > 10
    assert (gate.desk.in_flight_tokens, len(gate.desk.queue), gate._entries, gate._waiting) == (0, 0, {}, {})
    assert all(pod.load_tokens == 0 for pod in gate.fleet)


def test_the_same_case_gives_the_same_turns() -> None:
    assert played(case()).turns == played(case()).turns


def test_what_would_miss_its_deadline_is_refused_and_the_conversation_is_over() -> None:
    found = played(case(rate=100.0, deadlines_s={ServiceClass.STANDARD: 0.3}))
    fates = {each.fate for each in found.turns}
    assert fates == {Fate.GOOD, Fate.REJECTED, Fate.LOST}
    assert sum(found.refused.values()) == sum(each.fate is Fate.REJECTED for each in found.turns)


def test_a_quota_is_of_the_tenant_that_has_it() -> None:
    streams = (Stream(TALK, 5.0, "a"), Stream(TALK, 5.0, "b"))
    tenants = {"a": Tenant("a", requests_per_s=0.5, burst_s=2.0)}
    found = played(case(AdmissionRules(), streams=streams, extent=Extent(conversations=8), tenants=tenants))
    refused = {each.tenant for each in found.turns if each.fate is Fate.REJECTED}
    assert refused == {"a"}
    assert found.refused["quota"] > 0


def test_an_impatient_client_leaves_the_queue() -> None:
    found = played(case(rate=200.0, patience=Patience(first_token_s=0.2)))
    assert any(each.fate is Fate.TIMED_OUT for each in found.turns)


def test_the_controller_steps_in_virtual_time() -> None:
    targets = {ServiceClass.STANDARD: Targets(ttft_p99_ms=1.0)}
    slo = SloSettings(targets, window_s=1.0, min_samples=5)
    found = played(case(AdmissionRules(), rate=5.0, slo=slo))
    assert found.steps[0][1] == 1


def test_a_client_sends_a_turn_again_when_its_pod_died_and_no_conversation_is_lost() -> None:
    patience = Patience(repeats=5, repeat_s=0.5)
    one = case(AdmissionRules(), rate=4.0, events=(Kill(2.0, "d0"),), patience=patience)
    found = played(one)
    assert found.repeated > 0
    assert death.lost(found) == 0
    assert death.lost(played(replace(one, spec=replace(one.spec, patience=Patience())))) > 0


def test_goodput_and_p99_count_what_was_due_and_failures_as_endless() -> None:
    turns = [turn(ttft_s=0.1), turn(ttft_s=0.9), turn(Fate.REJECTED), turn(at_s=9.0)]
    assert goodput(turns, Slo(0.5, 0.03), 0.0, 2.0) == 0.5
    assert p99_ttft_ms(turns[:2]) == pytest.approx(900)
    assert p99_ttft_ms([turn(), turn(Fate.FAILED)]) == math.inf
    assert math.isnan(p99_ttft_ms([turn(Fate.REJECTED)]))


def test_the_time_until_the_target_is_met_again_is_that_of_the_last_bad_bin() -> None:
    found = played(case(AdmissionRules()))._replace(
        turns=[turn(ttft_s=9.0 if 60 <= at < 71 else 0.1, at_s=float(at)) for at in range(60, 100)]
    )
    assert death.back_after_s(found, 60.0, 100.0) == 15.0


def test_slow_pods_get_stretched_traffic_and_targets() -> None:
    slow = overload.slowly(overload.case("x", 8.0, 1, limits=True))
    assert slow.spec.streams[0].rate == 2.0
    assert slow.spec.slo.ttft_s == overload.SLO.ttft_s * 4
    assert slow.control.deadlines_s == {ServiceClass.STANDARD: overload.SLO.ttft_s * 4}
    assert len(stretched(slow, 4.0).spec.events) == 3
    loud = flood.slowly(flood.case("x", 1, 10.0, fair=True, quotas=True)).control.tenants["loud"]
    assert loud.requests_per_s == pytest.approx(flood.LOUD_RATE * 6 * flood.QUOTA / 4)


def test_the_same_case_runs_on_http_pods_behind_the_gateway_as_it_is_served() -> None:
    talk = LongTurns("short", 2, 60, 20, 8)
    small = Case(
        "http",
        spec(workload=talk, streams=(Stream(talk, 20.0, "a"),), extent=Extent(until_s=0.4), seed="3"),
        Control(replace(TIGHT, prefill_tokens=100), {ServiceClass.STANDARD: 60.0}, {"a": Tenant("a", share=2.0)}),
    )
    found, virtual = on_http(small, 1.0), played(small)
    due = {(each.conversation, each.turn) for each in found.turns}
    assert due <= {(each.conversation, each.turn) for each in virtual.turns}
    assert {each.fate for each in found.turns} == {Fate.GOOD}
    by_turn = {(each.conversation, each.turn): each.prompt_tokens for each in virtual.turns}
    spare = max(abs(each.prompt_tokens - by_turn[each.conversation, each.turn]) for each in found.turns)
    assert spare < 30, "what is said has as many tokens, but for the chat template"


def test_a_report_has_every_finding_at_its_top_and_sections_below() -> None:
    told = Told([Finding("it holds", "1 %", True), Finding("it does not", "9 %", False)], ["text"])
    lines = document([(Section("x", "Title", lambda effort: told), told)])
    assert "| it holds | 1 % | met |" in lines
    assert "| it does not | 9 % | **not met** |" in lines
    assert lines[-3:] == ["", "text", ""]
    assert [section.name for section in sections(SECTIONS)] == list(SECTIONS)


def test_a_section_is_kept_for_a_later_report(tmp_path: Path) -> None:
    told = Told([Finding("it holds", "1 %", True)], ["text"])
    section = Section("x", "Title", lambda effort: told)
    assert kept(section, tmp_path) is None
    keep(section, told, tmp_path)
    assert kept(section, tmp_path) == told
