"""Log lines: one per request, and nothing in it that a client said."""

from __future__ import annotations

import dataclasses
import io
import logging
import re
from typing import Any

import msgspec
import pytest

from gateway.core.residency import Source, Verdict
from gateway.net.records import Outcome, RequestRecord
from gateway.ops.logs import (
    AccessWriter,
    JsonFormatter,
    LogObserver,
    console_access,
    json_access,
    request_fields,
    request_line,
)

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
        "id=req-1 status=200 outcome=ok method=POST path=/v1/chat/completions stream=1 route=readback arm=canary "
        "prefill=http://p0:1 holder=http://d1:1 answered_by=http://d0:1 conversation=00ff turn=1 attempts=2 "
        "prompt_tokens=100 expected_tokens=70 cached_tokens=0 p_cached_tokens=64 readback_tokens=48 output_tokens=20 "
        "prefill_ms=42.1 ttft_ms=50.0 tpot_ms=12.3 "
        'total_ms=1500.0 reason="turn 1: nothing resident"'
    )


def test_fields_that_few_requests_have_stand_where_they_belong() -> None:
    record = dataclasses.replace(
        FULL, shadow_route="local", shadow_reason="S=+0.25 %s", service="batch", queued_s=0.0204, refused="late", turn=0
    )
    line = request_line(record)
    assert " turn=0 " in line
    assert line.endswith(
        'total_ms=1500.0 shadow_route=local class=batch queued_ms=20.4 refused=late reason="turn 1: nothing resident" '
        'shadow_reason="S=+0.25 %s"'
    )
    assert list(request_fields(record)) == re.findall(r"(?:^| )(\w+)=", line.replace("S=", ""))
    assert request_line(dataclasses.replace(record, service=None)) == line.replace("class=batch ", "")
    assert "queued_ms" not in request_line(dataclasses.replace(record, queued_s=0.0005)), "let in at once"


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
        "arm": "str",
        "estimated_tokens": "int | None",
        "shadow_route": "str | None",
        "shadow_reason": "str | None",
        "model": "str | None",
        "reason_class": "ReasonClass | None",
        "score": "float | None",
        "decide_s": "float | None",
        "forecast_ttft_s": "float | None",
        "forecast_tpot_s": "float | None",
        "gaps": "list[int] | None",
        "gaps_s": "float",
        "moved_tokens": "int | None",
        "avoided_tokens": "int | None",
        "service": "str | None",
        "queued_s": "float",
        "refused": "str | None",
        "priority": "int | None",
        "trace": "Trace | None",
        "choice": "Choice | None",
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
        "arm",
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


# As JSON


def as_json(record: logging.LogRecord, worker: int | None = None) -> Any:
    line = JsonFormatter(worker).format(record)
    assert "\n" not in line
    return msgspec.json.decode(line)


async def test_an_access_line_as_json_has_numbers_and_the_names_of_the_console_line() -> None:
    stream = io.StringIO()
    writer = AccessWriter(stream, json_access(3))
    writer.write(FULL)
    writer.flush()
    line = stream.getvalue()
    assert line.endswith("}\n")
    found = msgspec.json.decode(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", found.pop("time"))
    head = {name: found.pop(name) for name in ("level", "logger", "worker", "event")}
    assert head == {"level": "info", "logger": "ppd_gateway.access", "worker": 3, "event": "request"}
    assert list(found) == re.findall(r"(?:^| )(\w+)=", request_line(FULL))
    assert (found["stream"], found["ttft_ms"], found["prompt_tokens"]) == (True, 50.0, 100)
    assert found["reason"] == "turn 1: nothing resident"


async def test_an_access_line_for_people_is_dated_like_all_others() -> None:
    stream = io.StringIO()
    writer = AccessWriter(stream, console_access("worker=2 "))
    writer.write(FULL)
    writer.flush()
    stamp, rest = stream.getvalue()[:23], stream.getvalue()[23:]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}", stamp)
    assert rest == f" INFO ppd_gateway.access worker=2 {request_line(FULL)}\n"


def test_other_lines_as_json_say_what_happened_by_fields(caplog: pytest.LogCaptureFixture) -> None:
    observer = LogObserver()
    with caplog.at_level(logging.DEBUG, "ppd_gateway"):
        observer.fault("prefill_connect", None, "req-1", 'a "detail"\nof two lines')
        observer.pod_changed("http://d0:1", "decode", False, "gone")
        observer.pod_breaker("http://d0:1", "decode", "open", "5 failures in a row")
        observer.pod_models("http://d0:1", "decode", ("base", "lora-1"))
        logging.getLogger("ppd_gateway").info("ppd-gateway on %s", "http://h:1")
        observer.finished(FULL)
    lines = [as_json(record) for record in caplog.records]
    for line in lines:
        del line["time"]
    assert caplog.messages[3] == "pod=http://d0:1 role=decode models='base,lora-1'"
    fault, changed, breaker, models, main, request = lines
    assert fault == {
        "level": "warning",
        "logger": "ppd_gateway.fault",
        "event": "fault",
        "fault": "prefill_connect",
        "id": "req-1",
        "detail": 'a "detail"\nof two lines',
    }
    assert (changed["event"], changed["pod"], changed["up"]) == ("pod", "http://d0:1", False)
    assert (breaker["breaker"], breaker["level"]) == ("open", "warning")
    assert (models["pod"], models["models"], models["level"]) == ("http://d0:1", ["base", "lora-1"], "info")
    assert main == {"level": "info", "logger": "ppd_gateway", "message": "ppd-gateway on http://h:1"}
    assert (request["event"], request["id"], request["tpot_ms"]) == ("request", "req-1", 12.3)


def test_of_an_exception_json_tells_the_kind_and_the_place_and_not_the_text() -> None:
    try:
        raise ValueError("what the client said")
    except ValueError as error:
        where = (type(error), error, error.__traceback__)
    line = as_json(logging.LogRecord("asyncio", logging.ERROR, "x.py", 1, "task failed", (), where))
    assert line["message"] == "task failed"
    assert line["error"].startswith("ValueError at ")
    assert "client" not in msgspec.json.encode(line).decode()
