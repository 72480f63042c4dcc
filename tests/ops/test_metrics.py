"""What the metrics count, and the text they are shown in."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from prometheus_client import Gauge, generate_latest

from gateway.core.pods import PodFacts
from gateway.core.reasons import MEANINGS, ReasonClass
from gateway.net.parts import Parts
from gateway.net.records import GAP_BOUNDS_S, Outcome, RequestRecord
from gateway.ops.metrics import Metrics
from gateway.ops.metrics.families import MAX_CHILDREN, Book, Counter, Histogram, Shown
from gateway.ops.metrics.loop import LoopLag
from gateway.ops.metrics.requests import DURATION_S, FIRST_TOKEN_S, MAX_MODELS, TOKEN_S
from loadtest.bench.metrics import make_parts, make_records
from tests.ops.exposition import Samples, found, samples


def count(metrics: Metrics, **fields: Any) -> RequestRecord:
    given: dict[str, Any] = {"outcome": Outcome.OK, "status": 200, "route": "local", "turn": 2, "model": "m0"}
    record = RequestRecord("r", "POST", "/v1/chat/completions", **{**given, **fields})
    metrics.started(record)
    metrics.finished(record)
    return record


def page_of(metrics: Metrics, parts: Parts | None = None) -> Samples:
    return samples(metrics.page(parts or make_parts(8)).body.decode())


@pytest.mark.parametrize("worker", [None, 3])
def test_the_text_says_what_prometheus_clients_own_exposition_says(worker: int | None) -> None:
    metrics, parts = Metrics(worker), make_parts(8)
    for record in make_records(2):
        metrics.started(record)
        metrics.finished(record)
    metrics.fault('odd "kind"\n\\', None, "r", "")
    ours = page_of(metrics, parts)
    theirs = samples(generate_latest(metrics.registry).decode())
    only_ours = "ppd_decision_score_count"  # they leave it out together with the sum
    ours, theirs = (
        {key: value for key, value in each.items() if key[0] != only_ours and not key[0].startswith("process_")}
        for each in (ours, theirs)
    )
    assert ours.keys() == theirs.keys()
    assert all(math.isclose(ours[key], theirs[key]) for key in ours if key[0] != "ppd_kv_event_age_seconds")
    assert worker is None or all(("worker", "3") in labels for _, labels in ours)


def test_a_collector_of_another_make_is_on_the_page() -> None:
    metrics = Metrics(worker=2)
    Gauge("theirs", "Of another module.", ["a"], registry=metrics.registry).labels('x"y').set(7)
    assert found(page_of(metrics), "theirs", a='x"y', worker="2") == 7
    assert ("theirs", "gauge", ("a",), "Of another module.") in metrics.described()


def test_a_stream_is_counted_by_route_turn_and_arm() -> None:
    metrics, gaps = Metrics(), [0] * (len(GAP_BOUNDS_S) + 1)
    gaps[0], gaps[-1] = 5, 1
    count(metrics, stream=True, arm="baseline", ttft_s=0.07, tpot_s=0.012, total_s=1.0, gaps=gaps, gaps_s=12.0)
    page, mine = page_of(metrics), {"route": "local", "turn": "2+", "arm": "baseline"}
    assert found(page, "ppd_requests_total", **mine, outcome="ok", status="200") == 1
    first = "gen_ai_server_time_to_first_token_seconds"
    assert (found(page, first + "_bucket", **mine, le="0.06"), found(page, first + "_bucket", **mine, le="0.08")) == (
        0,
        1,
    )
    assert found(page, first + "_sum", **mine, gen_ai_operation_name="chat", gen_ai_request_model="m0") == 0.07
    assert found(page, "gen_ai_server_time_per_output_token_seconds_bucket", **mine, le="0.015") == 1
    assert found(page, "ppd_inter_token_latency_seconds_bucket", **mine, le="0.001") == 5
    assert found(page, "ppd_inter_token_latency_seconds_bucket", **mine, le="10.0") == 5
    assert found(page, "ppd_inter_token_latency_seconds_count", **mine) == 6
    assert found(page, "ppd_inter_token_latency_seconds_sum", **mine) == 12.0


def test_a_whole_answer_has_no_time_to_first_token_and_a_failure_says_what_it_was() -> None:
    metrics = Metrics()
    count(metrics, ttft_s=0.5, total_s=0.5)
    count(metrics, outcome=Outcome.FAILED, status=503, total_s=2.0)
    page = page_of(metrics)
    assert found(page, "gen_ai_server_time_to_first_token_seconds_count") == 0
    duration = "gen_ai_server_request_duration_seconds"
    assert found(page, duration + "_sum", error_type="failed") == 2.0
    assert found(page, duration + "_sum", error_type="") == 0.5


def test_other_paths_are_requests_but_no_generations() -> None:
    metrics = Metrics()
    record = RequestRecord("r", "GET", "/metrics", 200, Outcome.OK)
    metrics.started(record)
    assert found(page_of(metrics), "ppd_requests_in_flight", route="none") == 1
    metrics.finished(record)
    page = page_of(metrics)
    assert found(page, "ppd_requests_total", path="/metrics", turn="none", route="none") == 1
    assert found(page, "ppd_requests_in_flight") == 0
    assert not any(name.startswith("gen_ai_") for name, _ in page)


def test_a_decision_is_counted_with_its_reason_its_score_and_what_came_of_the_forecast() -> None:
    metrics = Metrics()
    decided = {"stream": True, "reason_class": ReasonClass.SCORE, "score": -0.25, "decide_s": 3e-5}
    count(metrics, **decided, ttft_s=0.3, tpot_s=0.01, forecast_ttft_s=0.2, forecast_tpot_s=0.02, attempts=1)
    count(metrics, reason_class=ReasonClass.FALLBACK, attempts=2, forecast_ttft_s=None, score=-0.25)
    page = page_of(metrics)
    assert found(page, "ppd_decisions_total", reason="score", route="local", turn="2+") == 1
    assert found(page, "ppd_decisions_total", reason="fallback") == 1
    assert found(page, "ppd_fallbacks_total", outcome="ok") == 1
    assert found(page, "ppd_decision_score_bucket", le="-0.3") == 0
    assert found(page, "ppd_decision_score_bucket", le="-0.2") == 2
    assert not [name for name, _ in page if name == "ppd_decision_score_sum"], "it could shrink"
    assert found(page, "ppd_decision_seconds_bucket", le="5e-05") == 1
    assert found(page, "ppd_ttft_prediction_ratio_sum") == pytest.approx(1.5)
    assert found(page, "ppd_tpot_prediction_ratio_sum") == pytest.approx(0.5)


def test_kv_moved_and_avoided_become_bytes_at_what_pods_say_a_token_is_worth() -> None:
    """2e9 bytes for 1e5 tokens: 20,000 bytes each; later twice as much, which changes nothing that was shown."""
    metrics, parts = Metrics(), make_parts(8)
    tokens = {"prompt_tokens": 1000, "cached_tokens": 0, "output_tokens": 10}
    count(metrics, route="pd", moved_tokens=800, **tokens)
    count(metrics, route="local", avoided_tokens=50, **tokens)
    count(metrics, route="readback", moved_tokens=100, readback_tokens=900, **tokens)
    for pod in parts.fleet:
        pod.facts = PodFacts()
    assert not [name for name, _ in page_of(metrics, parts) if name.startswith("ppd_kv_moved_bytes_total")]
    decode = next(iter(parts.fleet))
    decode.facts = PodFacts(fetched_bytes=2e9, fetched_tokens=1e5)
    page = page_of(metrics, parts)
    assert found(page, "ppd_kv_bytes_per_token") == 20_000
    assert found(page, "ppd_kv_moved_bytes_total", leg="handover") == 900 * 20_000
    assert found(page, "ppd_kv_moved_bytes_total", leg="readback") == 900 * 20_000
    assert found(page, "ppd_kv_avoided_bytes_total", route="local") == 50 * 20_000
    decode.facts = PodFacts(fetched_bytes=4e9, fetched_tokens=1e5)
    count(metrics, route="local", avoided_tokens=1, **tokens)
    assert found(page_of(metrics, parts), "ppd_kv_avoided_bytes_total", route="local") == 50 * 20_000 + 40_000


def test_models_and_label_sets_are_bounded() -> None:
    metrics = Metrics()
    for number in range(3 * MAX_MODELS):
        count(metrics, model=f"m{number}")
    page = page_of(metrics)
    models = {dict(labels).get("gen_ai_request_model") for name, labels in page if name.startswith("gen_ai_")}
    assert "other" in models
    assert len(models) <= MAX_MODELS + 1
    assert found(page, "gen_ai_server_request_duration_seconds_count") == 3 * MAX_MODELS
    family = Counter(Book(), "x", "Y.", ["a"])
    for number in range(MAX_CHILDREN + 10):
        family.child(str(number)).value += 1
    assert len(family.children()) == MAX_CHILDREN + 1
    assert family.child("other").value == 10


def test_a_pod_that_left_takes_its_series_with_it() -> None:
    metrics, parts = Metrics(), make_parts(8)
    gone = parts.fleet.of(next(iter(parts.fleet)).role)[0]
    metrics.fault("prefill_timeout", gone.url, "r", "")
    metrics.fault("client_handover", None, "r", "")
    metrics.pod_restarted(gone.url, gone.role, "")
    assert found(page_of(metrics, parts), "ppd_faults_total", pod=gone.url) == 1
    parts.fleet.remove(gone)
    page = page_of(metrics, parts)
    assert not [labels for _, labels in page if ("pod", gone.url) in labels]
    assert found(page, "ppd_faults_total", pod="none") == 1


def test_the_recommended_buckets_are_among_ours() -> None:
    """OpenTelemetry semantic conventions for generative AI, metrics of model servers."""
    assert {0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92} <= {*DURATION_S}
    recommended = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0}
    assert recommended <= {*FIRST_TOKEN_S}
    assert {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5} <= {*TOKEN_S}
    for bounds in Metrics().bounds().values():
        assert list(bounds) == sorted(set(bounds))


def test_every_reason_has_a_meaning() -> None:
    assert set(MEANINGS) == set(ReasonClass)


def test_a_wrong_number_of_labels_is_refused_and_a_family_without_labels_begins_at_zero() -> None:
    book = Book()
    with pytest.raises(ValueError, match=r"x_total has the labels a, b"):
        Counter(book, "x", "Y.", ["a", "b"]).child("1")
    Histogram(book, "h", "H.", bounds=(1.0, 2.0))
    Shown(book, "g", "G.", read=lambda parts: [((), math.inf)])
    book.parts = make_parts(8)
    text = "".join(piece for family in book.families for piece in family.text())
    assert 'h_bucket{le="+Inf"} 0.0\nh_count 0.0\nh_sum 0.0\n' in text
    assert "g +Inf\n" in text


async def test_others_have_the_loop_while_a_page_is_made() -> None:
    metrics, parts = Metrics(), make_parts(64)
    for record in make_records(3):
        metrics.started(record)
        metrics.finished(record)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.ensure_future(others())
    page = await metrics.served(parts)
    beside.cancel()
    await asyncio.gather(beside, return_exceptions=True)
    assert turns > 2
    assert len(samples(page.body.decode())) > 5000


async def test_a_blocked_loop_shows_as_lag() -> None:
    """The timer is due while nothing else runs for longer than the wait: the loop comes late by the difference."""
    histogram = Histogram(Book(), "lag", "L.", bounds=(0.001, 1.0))
    lag = LoopLag(histogram.child())
    loop = asyncio.get_running_loop()
    lag._due = loop.time() - 0.5
    lag._woken(loop)
    lag.stop()
    assert histogram.child().counts == [0, 1, 0]
    assert 0.5 <= histogram.child().total < 1.0
