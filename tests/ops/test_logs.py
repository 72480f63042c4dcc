"""Log lines: one per request, and nothing in it that a client said."""

from __future__ import annotations

import dataclasses
import logging

import pytest

from gateway.core.residency import Source, Verdict
from gateway.net.records import Outcome, RequestRecord
from gateway.ops.logs import LogObserver, request_line

FULL = RequestRecord(
    request_id="req-1",
    method="POST",
    path="/v1/chat/completions",
    status=200,
    outcome=Outcome.OK,
    stream=True,
    route="readback",
    prefill="http://p0:1",
    holder="http://d1:1",
    answering="http://d0:1",
    reason="turn 1: nothing resident",
    conversation="00ff",
    turn=1,
    kind="new",
    attempts=2,
    prompt_tokens=100,
    cached_tokens=0,
    prefill_cached_tokens=64,
    output_tokens=20,
    expected_tokens=70,
    readback_tokens=48,
    residency={Source.EVENTS: Verdict(3, "exact")},
    prefill_residency={Source.LEDGER: Verdict(-40, "under")},
    ids_s=0.003,
    recall_s=0.004,
    prefill_s=0.0421,
    ttft_s=0.05,
    tpot_s=0.01234,
    total_s=1.5,
)


def test_the_line_of_a_request_that_went_all_the_way() -> None:
    assert request_line(FULL) == (
        "id=req-1 status=200 outcome=ok method=POST path=/v1/chat/completions stream=1 route=readback "
        "prefill=http://p0:1 holder=http://d1:1 answered_by=http://d0:1 conversation=00ff turn=1 attempts=2 "
        "prompt_tokens=100 expected_tokens=70 cached_tokens=0 p_cached_tokens=64 readback_tokens=48 output_tokens=20 "
        "prefill_ms=42.1 ttft_ms=50.0 tpot_ms=12.3 "
        'total_ms=1500.0 reason="turn 1: nothing resident"'
    )


def test_what_a_request_never_came_to_is_left_out() -> None:
    line = request_line(RequestRecord("req-2", "GET", "other", outcome=Outcome.CANCELLED, attempts=1))
    assert line == "id=req-2 outcome=cancelled method=GET path=other stream=0 total_ms=0.0"


def test_a_record_has_no_place_for_what_a_client_said() -> None:
    """The line is made of these fields only. A new one must be a number, an id or a word of the gateway's own."""
    assert {field.name: field.type for field in dataclasses.fields(RequestRecord)} == {
        "request_id": "str",
        "method": "str",
        "path": "str",
        "status": "int",
        "outcome": "Outcome",
        "stream": "bool",
        "route": "str | None",
        "prefill": "str | None",
        "answering": "str | None",
        "reason": "str | None",
        "conversation": "str | None",
        "turn": "int | None",
        "kind": "str | None",
        "attempts": "int",
        "prompt_tokens": "int | None",
        "cached_tokens": "int | None",
        "prefill_cached_tokens": "int | None",
        "output_tokens": "int | None",
        "holder": "str | None",
        "readback_tokens": "int | None",
        "expected_tokens": "int | None",
        "residency": "Mapping[Source, Verdict]",
        "prefill_residency": "Mapping[Source, Verdict]",
        "ids_s": "float | None",
        "recall_s": "float | None",
        "prefill_s": "float | None",
        "ttft_s": "float | None",
        "tpot_s": "float | None",
        "total_s": "float",
    }


def test_the_line_names_no_more_than_these_keys() -> None:
    keys = [part.partition("=")[0] for part in request_line(dataclasses.replace(FULL, reason="x")).split(" ")]
    assert keys == [
        "id",
        "status",
        "outcome",
        "method",
        "path",
        "stream",
        "route",
        "prefill",
        "holder",
        "answered_by",
        "conversation",
        "turn",
        "attempts",
        "prompt_tokens",
        "expected_tokens",
        "cached_tokens",
        "p_cached_tokens",
        "readback_tokens",
        "output_tokens",
        "prefill_ms",
        "ttft_ms",
        "tpot_ms",
        "total_ms",
        "reason",
    ]


@pytest.mark.parametrize(
    ("route", "outcome", "level"),
    [
        ("pd", Outcome.OK, logging.INFO),
        (None, Outcome.OK, logging.DEBUG),
        (None, Outcome.REJECTED, logging.INFO),
        ("pd", Outcome.FAILED, logging.INFO),
    ],
)
def test_only_pages_that_were_served_well_are_quiet(
    caplog: pytest.LogCaptureFixture, route: str | None, outcome: Outcome, level: int
) -> None:
    record = dataclasses.replace(FULL, route=route, outcome=outcome)
    with caplog.at_level(logging.DEBUG, "ppd_gateway"):
        LogObserver().finished(record)
    assert [(line.levelno, line.getMessage()) for line in caplog.records] == [(level, request_line(record))]


def test_a_fault_is_one_line_whatever_its_detail(caplog: pytest.LogCaptureFixture) -> None:
    LogObserver().fault("prefill_connect", None, "req-1", 'a "detail"\nof two lines')
    assert [line.getMessage() for line in caplog.records] == [
        "fault=prefill_connect id=req-1 pod=- detail='a \"detail\"\\nof two lines'"
    ]
    assert caplog.records[0].levelno == logging.WARNING


@pytest.mark.parametrize(("up", "level"), [(True, logging.INFO), (False, logging.WARNING)])
def test_a_pod_that_goes_down_is_louder_than_one_that_comes_up(
    caplog: pytest.LogCaptureFixture, up: bool, level: int
) -> None:
    with caplog.at_level(logging.DEBUG, "ppd_gateway"):
        LogObserver().pod_changed("http://d0:1", "decode", up, "answered")
    assert [(line.levelno, line.getMessage()) for line in caplog.records] == [
        (level, f"pod=http://d0:1 role=decode up={int(up)} detail='answered'")
    ]
