"""`/admin/residency`, from caches of which everything is known."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from gateway.core.conversations import ConversationStore
from gateway.core.pods import Fleet, Pod, PodFacts, Role
from gateway.core.policies import AlwaysLocal
from gateway.core.residency import Expectation
from gateway.net.parts import Parts
from gateway.net.records import IdleObserver, RequestRecord
from gateway.net.settings import GatewaySettings
from gateway.net.upstream import PodClient
from gateway.ops.metrics import Metrics
from gateway.ops.residency_page import residency_page

A, B = b"a" * 16, b"b" * 16


@pytest.fixture
def parts() -> Parts:
    pods = [Pod("http://d0", Role.DECODE, up=True), Pod("http://p0", Role.PREFILL)]
    return Parts(
        Fleet(pods), ConversationStore(10, 100.0), AlwaysLocal(), PodClient(1.0), IdleObserver(), GatewaySettings()
    )


def shown(parts: Parts, url: str = "http://d0") -> dict[str, Any]:
    page = residency_page(parts)
    assert (page.status, page.content_type) == (200, "application/json")
    (found,) = [pod for pod in msgspec.json.decode(page.body)["pods"] if pod["pod"] == url]
    return dict(found)


def pod(parts: Parts, url: str = "http://d0") -> Pod:
    found = parts.fleet.get(url)
    assert found is not None
    return found


def test_a_pod_of_which_nothing_is_known(parts: Parts) -> None:
    assert shown(parts, "http://p0") == {
        "pod": "http://p0",
        "role": "prefill",
        "up": False,
        "epoch": 0,
        "block_size": 16,
        "predictions": {},
        "ledger": {"conversations": 0, "tokens": 0, "room_tokens": None, "capacity_tokens": None},
        "events": [],
    }


def test_a_pod_that_is_listened_to(parts: Parts) -> None:
    d0 = pod(parts)
    d0.facts = PodFacts(block_size=32, num_blocks=10)
    for rank in (1, 0):
        view = parts.residency.view(d0, rank)
        view.arrival(0)
        view.heard_batch(0, time.time() - 60.0)
        view.stored(A, None, [1, 2, 3], 32)
    for sequence in (5, 7):
        parts.residency.view(d0, 1).arrival(sequence)
    parts.residency.view(d0, 1).lose(6)
    parts.residency.used(d0, A, 100)
    parts.residency.used(d0, B, 50)
    parts.residency.learn(d0, A, Expectation(96, 96), 100, 200, 32)
    parts.residency.learn(d0, A, Expectation(96, None), 100, 200, 96)
    found = shown(parts)
    ages = [events.pop("age_s") for events in found["events"]]
    assert all(abs(age - 60.0) < 5.0 for age in ages)
    assert found["block_size"] == 32
    assert found["predictions"] == {
        "events": {
            "turns": 1,
            "exact": 0,
            "over": 1,
            "under": 0,
            "error_tokens": 64,
            "predicted_tokens": 96,
            "cached_tokens": 32,
            "mean_error_tokens": 64.0,
        },
        "ledger": {
            "turns": 2,
            "exact": 1,
            "over": 1,
            "under": 0,
            "error_tokens": 64,
            "predicted_tokens": 192,
            "cached_tokens": 128,
            "mean_error_tokens": 32.0,
        },
    }
    assert found["events"] == [
        {
            "rank": 0,
            "heard": True,
            "complete": True,
            "resident_blocks": 3,
            "batches": 1,
            "blocks": 3,
            "gaps": 0,
            "gaps_lost": 0,
        },
        {
            "rank": 1,
            "heard": True,
            "complete": False,
            "resident_blocks": 0,
            "batches": 1,
            "blocks": 3,
            "gaps": 2,
            "gaps_lost": 1,
        },
    ]


def test_the_ledgers_room_is_what_it_has_learned(parts: Parts) -> None:
    """Of 320 tokens it was seen to have 50 + 96 for conversations, and moved half-way there; 146 when A had 96."""
    d0 = pod(parts)
    d0.facts = PodFacts(block_size=16, num_blocks=20)
    parts.residency.used(d0, A, 200)
    parts.residency.used(d0, B, 50)
    parts.residency.learn(d0, A, Expectation(200, None), 200, 300, 96)
    assert shown(parts)["ledger"] == {
        "conversations": 2,
        "tokens": 146,
        "room_tokens": 233,
        "capacity_tokens": 320,
    }


def test_a_pod_that_was_never_heard_has_no_age_and_no_event_metrics(parts: Parts) -> None:
    parts.residency.view(pod(parts), 0)
    (events,) = shown(parts)["events"]
    assert (events["heard"], events["age_s"]) == (False, None)
    page = Metrics().page(parts).body.decode()
    assert 'ppd_kv_view_complete{pod="http://d0"}' not in page
    assert 'ppd_ledger_room_tokens{pod="http://d0"}' not in page


def test_no_conversation_is_named(parts: Parts) -> None:
    parts.residency.used(pod(parts), A, 200)
    body = residency_page(parts).body
    assert A not in body
    assert A.hex().encode() not in body


def test_metrics_count_verdicts_by_pod_and_sum_over_ranks(parts: Parts) -> None:
    d0, metrics = pod(parts), Metrics()
    for rank in (0, 1):
        view = parts.residency.view(d0, rank)
        view.arrival(0)
        view.heard_batch(0, time.time())
        view.stored(A, None, range(10 * rank + 1, 10 * rank + 4), 16)
    parts.residency.view(d0, 1).distrust()
    verdicts = parts.residency.learn(d0, A, Expectation(96, 32), 100, 200, 64)
    record = RequestRecord("r", "POST", "/x", answering="http://d0", prefill="http://p0", residency=verdicts)
    record.prefill_residency = parts.residency.learn(pod(parts, "http://p0"), A, Expectation(16, None), 90, 200, 16)
    metrics.started(record)
    metrics.finished(record)
    lines = metrics.page(parts).body.decode().splitlines()
    for line in (
        'ppd_residency_predictions_total{pod="http://d0",source="ledger",verdict="over"} 1.0',
        'ppd_residency_predictions_total{pod="http://d0",source="events",verdict="under"} 1.0',
        'ppd_residency_predictions_total{pod="http://p0",source="ledger",verdict="exact"} 1.0',
        'ppd_residency_error_tokens_total{pod="http://d0",source="ledger"} 32.0',
        'ppd_residency_error_tokens_total{pod="http://d0",source="events"} 32.0',
        'ppd_kv_resident_blocks{pod="http://d0"} 3.0',
        'ppd_kv_view_complete{pod="http://d0"} 0.0',
        'ppd_kv_event_batches{pod="http://d0"} 2.0',
        'ppd_kv_event_gaps_lost{pod="http://d0"} 1.0',
    ):
        assert line in lines
