"""Admission and targets as the admin API and the metrics show them."""

from __future__ import annotations

import time

from gateway.core.admission.classes import ServiceClass
from gateway.core.slo import SloController, SloSettings, Targets
from gateway.core.weights import BALANCED
from gateway.net.parts import Parts
from gateway.net.records import Outcome, RequestRecord
from gateway.ops.admin import limits
from gateway.ops.admission import SloWatch
from gateway.ops.config import load
from tests.net.world import user, world

SLO = {"slo.standard.ttft_p99_ms": 200, "slo.standard.e2e_p99_s": 100, "slo.min_samples": 2}


def controller_of(parts: Parts) -> SloController:
    assert parts.slo is not None
    return parts.slo


async def test_targets_are_measured_on_what_clients_asked() -> None:
    async with world(prefill=1, decode=1, **SLO) as w:
        for number in range(3):
            await w.chat([user(f"question {number}")], stream=True)
        await w.record(3)
        shown = limits.slo(w.gateway.parts)
        assert [(target.target, target.samples, target.violated) for target in shown.targets] == [
            ("ttft_p99_ms", 3, False),
            ("e2e_p99_s", 3, False),
        ]
        assert (shown.enabled, shown.step, shown.w_ttft, shown.w_tpot) == (True, 0, 1.0, 1.0)
        page = (await w.get("/metrics")).body.decode()
        assert 'ppd_slo_target{service_class="standard",target="ttft_p99_ms"} 200.0' in page
        assert "ppd_slo_step 0.0" in page


async def test_a_step_changes_the_weights_of_the_next_request_but_not_those_a_client_says_itself() -> None:
    async with world(prefill=1, decode=1, allow_request_weights=True, **SLO) as w:
        controller_of(w.gateway.parts).step = 2
        shown = limits.slo(w.gateway.parts)
        assert (shown.factor, shown.w_ttft, shown.w_tpot) == (4.0, 2.0, 0.5)


def test_failures_count_against_the_targets_and_clients_that_left_do_not() -> None:
    found = SloController(SloSettings({ServiceClass.STANDARD: Targets(500, None, None)}, min_samples=1))
    watch = SloWatch(found)
    for outcome in (Outcome.OK, Outcome.FAILED, Outcome.CANCELLED, Outcome.REJECTED):
        watch.finished(
            RequestRecord("x", "POST", "/", outcome=outcome, route="pd", service="standard", stream=True, ttft_s=0.1)
        )
    watch.finished(RequestRecord("x", "GET", "/metrics", outcome=Outcome.OK))

    (standing,) = found.standings(time.monotonic())
    assert (standing.samples, standing.violated) == (2, True)


async def test_targets_are_set_changed_and_taken_away_at_a_reload() -> None:
    async with world(prefill=1, decode=1, **{"admission.decode_tokens": 100_000}) as w:
        parts, reloader = w.gateway.parts, w.running.administration.reloader

        async def after_reload(**targets: object) -> limits.SloShown:
            reloader.again = lambda: load(None, {}, {**w.settings, "slo.min_samples": 2, **targets})
            w.running.reload()
            await w.chat([user("hello")], stream=True)
            await w.record(len(w.watcher.records))
            return limits.slo(parts)

        assert not limits.slo(parts).enabled
        found = await after_reload(**{"slo.standard.ttft_p99_ms": 700})
        assert [(each.target, each.samples) for each in found.targets] == [("ttft_p99_ms", 1)]
        assert parts.settings.classes.deadlines_s == {"standard": 0.7}
        controller_of(parts).step = 1
        found = await after_reload(**{"slo.standard.ttft_p99_ms": 900, "slo.standard.e2e_p99_s": 9})
        assert [(each.wanted, each.samples) for each in found.targets] == [(900.0, 2), (9.0, 1)]
        assert found.step == 1
        found = await after_reload()
        assert (found.enabled, found.targets, parts.settings.classes.deadlines_s) == (False, [], {})
        assert parts.slo is not None
        assert parts.slo.shifted(BALANCED) == BALANCED


async def test_admission_shows_limits_and_counts() -> None:
    async with world(prefill=1, decode=1, **{"admission.decode_tokens": 150}) as w:
        assert (await w.chat([user()])).status == 200
        shown = limits.admission(w.gateway.parts)
        assert (shown.enabled, shown.decode_tokens, shown.waiting, shown.in_flight_tokens) == (True, 150, 0, 0)
        both = limits.merged_admission([shown, limits.admission(w.gateway.parts)], None)
        assert [each.queued for each in both.classes] == [0, 0, 0]


def test_workers_show_the_controller_that_moved_most_and_the_worst_measured() -> None:
    def shown(step: int, pressure: float) -> limits.SloShown:
        target = limits.TargetShown("standard", "ttft_p99_ms", 500, 500 * pressure, pressure, pressure > 1, 10)
        return limits.SloShown(True, step, 4, 1.0, 1.0, 1.0, 0, "", [target])

    found = limits.merged_slo([shown(0, 1.5), shown(-2, 0.5)], None)
    assert (found.step, found.targets[0].pressure, found.targets[0].samples) == (-2, 1.5, 20)
