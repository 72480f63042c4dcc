"""OpenTelemetry traces: the spans of a request, what pods are told, and what a collector gets."""

from __future__ import annotations

import asyncio
import gzip
import re
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from gateway.ops import tracing
from gateway.ops.config import load
from gateway.ops.layers import ConfigError
from tests.net.world import CHAT, World, _lower, user, world

TRACE, PARENT_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, NOT_SAMPLED = f"00-{TRACE}-{PARENT_SPAN}-01", f"00-{TRACE}-{PARENT_SPAN}-00"
SECRET = "the-secret-words-of-a-message"


class Spans:
    """What was exported, in the order in which it ended."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    def ended(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def of(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.ended() if span.name == name]
        return found


@asynccontextmanager
async def traced_world(monkeypatch: pytest.MonkeyPatch, **options: Any) -> AsyncIterator[tuple[World, Spans]]:
    """A world whose spans are kept in memory; they are all there once it is left."""
    exporter = InMemorySpanExporter()
    monkeypatch.setattr(tracing, "OTLPSpanExporter", lambda *_, **__: exporter)
    flags = {"tracing.endpoint": "http://127.0.0.1:9", "policy": "local", **options}
    async with world(**flags) as w:
        yield w, Spans(exporter)


def seen(pod: Any, number: int = -1) -> dict[str, str]:
    return _lower(pod.requests[number].headers)


async def ask(w: World, messages: list[dict[str, str]], **headers: str) -> None:
    body = {"model": "sim", "messages": messages, "max_tokens": 4, "stream": True}
    reply = await w.post(CHAT, body, headers)
    assert reply.status == 200


async def test_a_turn_through_p_has_a_span_for_each_leg(monkeypatch: pytest.MonkeyPatch) -> None:
    async with traced_world(monkeypatch, decode=1) as (w, spans):
        await ask(w, [user(SECRET)])
        record = await w.record(1)
        p, d = w.prefill[0], w.decode[0]
        told = {"prefill": seen(p)["traceparent"], "answer": seen(d)["traceparent"]}
        urls = {"prefill": p.url, "answer": d.url}
    root = spans.of("chat sim")
    assert root.kind is SpanKind.SERVER
    assert root.parent is None
    for name, header in told.items():
        leg = spans.of(name)
        assert leg.kind is SpanKind.CLIENT
        assert leg.parent == root.context
        assert header == f"00-{leg.context.trace_id:032x}-{leg.context.span_id:016x}-01"
        assert leg.attributes is not None
        assert leg.attributes["ppd.pod"] == urls[name]
        assert leg.start_time is not None
        assert root.start_time is not None
        assert root.start_time <= leg.start_time <= (leg.end_time or 0) <= (root.end_time or 0)
    assert (spans.of("prefill").end_time or 0) <= (spans.of("answer").start_time or 0)
    said = dict(root.attributes or {})
    assert said["gen_ai.operation.name"] == "chat"
    assert said["gen_ai.request.model"] == "sim"
    assert said["gen_ai.usage.input_tokens"] == record.prompt_tokens
    assert said["gen_ai.usage.output_tokens"] == 4
    assert said["http.response.status_code"] == 200
    assert (said["ppd.route"], said["ppd.turn"], said["ppd.prefill"]) == ("pd", 1, urls["prefill"])
    assert SECRET not in "".join(span.to_json() for span in spans.ended())


async def test_a_turn_straight_to_d_has_one_leg(monkeypatch: pytest.MonkeyPatch) -> None:
    async with traced_world(monkeypatch, decode=1) as (w, spans):
        messages = [user("one " * 200)]
        reply = await w.post(CHAT, {"model": "sim", "messages": messages, "max_tokens": 4})
        await ask(w, [*messages, {"role": "assistant", "content": reply.text}, user("two")])
        assert (await w.record(2)).route == "local"
    assert [span.name for span in spans.ended()] == ["prefill", "answer", "chat sim", "answer", "chat sim"]


async def test_a_readback_has_spans_for_the_questions_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"policy": "readback", "readback": "true", "pod": {"bidirectional": True}, "decode": 1}
    async with traced_world(monkeypatch, **options) as (w, spans):
        messages = [user("one " * 200)]
        reply = await w.post(CHAT, {"model": "sim", "messages": messages, "max_tokens": 4})
        await ask(w, [*messages, {"role": "assistant", "content": reply.text}, user("two")])
        assert (await w.record(2)).route == "readback"
    names = [span.name for span in spans.ended()][3:]
    assert names[-3:] == ["prefill", "answer", "chat sim"]
    assert set(names[:-3]) == {"recall"}


async def test_the_trace_of_a_client_is_taken_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async with traced_world(monkeypatch, decode=1, **{"tracing.sample": "0"}) as (w, spans):
        await ask(w, [user()], traceparent=SAMPLED, tracestate="vendor=1")
        assert seen(w.decode[0])["tracestate"] == "vendor=1"
        assert seen(w.decode[0])["traceparent"].startswith(f"00-{TRACE}-")
        assert PARENT_SPAN not in seen(w.decode[0])["traceparent"]
    root = spans.of("chat sim")
    assert root.parent is not None
    assert (f"{root.parent.trace_id:x}", f"{root.parent.span_id:x}") == (TRACE.lstrip("0"), PARENT_SPAN)


@pytest.mark.parametrize(
    ("options", "header"),
    [
        ({"tracing.sample": "1"}, NOT_SAMPLED),
        ({"tracing.sample": "0", "tracing.follow_clients": "false"}, SAMPLED),
        ({"tracing.endpoint": None}, SAMPLED),
    ],
)
async def test_where_nothing_is_traced_the_clients_headers_pass_through(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], header: str
) -> None:
    async with traced_world(monkeypatch, decode=1, **options) as (w, spans):
        await ask(w, [user()], traceparent=header, tracestate="vendor=1")
        for pod in (w.prefill[0], w.decode[0]):
            assert (seen(pod)["traceparent"], seen(pod)["tracestate"]) == (header, "vendor=1")
    assert spans.ended() == []


async def test_without_a_clients_trace_and_without_sampling_pods_hear_of_none(monkeypatch: pytest.MonkeyPatch) -> None:
    async with traced_world(monkeypatch, decode=1, **{"tracing.sample": "0"}) as (w, spans):
        await ask(w, [user()])
        assert "traceparent" not in seen(w.decode[0])
    assert spans.ended() == []


async def test_a_leg_that_failed_says_so_and_the_next_one_is_another_span(monkeypatch: pytest.MonkeyPatch) -> None:
    async with traced_world(monkeypatch, prefill=2, decode=1) as (w, spans):
        for pod in w.prefill:
            pod.fault("refuse_5xx", status=503)
        await ask(w, [user()])
    failed = [span for span in spans.ended() if span.name == "prefill"]
    assert len(failed) == 2
    for span in failed:
        assert span.status.status_code is StatusCode.ERROR
        assert (span.attributes or {})["error.type"] == "status"
    assert spans.of("answer").status.status_code is StatusCode.UNSET
    assert spans.of("chat sim").status.status_code is StatusCode.UNSET


async def test_a_request_that_no_pod_answered_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async with traced_world(monkeypatch, prefill=0, decode=1) as (w, spans):
        w.decode[0].fault("refuse_5xx", status=500, times=-1)
        assert (await w.post(CHAT, {"model": "sim", "messages": [user()]})).status == 500
    assert spans.of("chat sim").status.status_code is StatusCode.ERROR


@pytest.mark.parametrize(
    ("header", "good"),
    [
        (SAMPLED, True),
        (f"01-{TRACE}-{PARENT_SPAN}-01-more", True),
        (f"00-{TRACE}-{PARENT_SPAN}-01-more", False),
        (f"ff-{TRACE}-{PARENT_SPAN}-01", False),
        (f"00-{'0' * 32}-{PARENT_SPAN}-01", False),
        (f"00-{TRACE}-{'0' * 16}-01", False),
        (SAMPLED.upper(), False),
        ("", False),
        (None, False),
    ],
)
def test_only_a_traceparent_as_the_w3c_has_it_is_taken_up(header: str | None, good: bool) -> None:
    found = tracing.parent_of(header, "a=b,c=d")
    assert (found is not None) is good
    if found is not None:
        assert found.trace_state.to_header() == "a=b,c=d"


async def test_a_collector_gets_the_spans() -> None:
    got: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()

    async def take(request: web.Request) -> web.Response:
        got.put_nowait((request.path, await request.read()))
        return web.Response(content_type="application/x-protobuf")

    app = web.Application()
    app.router.add_post("/{path:.*}", take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        async with world(policy="local", decode=1, **{"tracing.endpoint": f"http://127.0.0.1:{port}"}) as w:
            await ask(w, [user()])
        path, body = got.get_nowait()
    finally:
        await runner.cleanup()
    message = ExportTraceServiceRequest.FromString(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)
    (resource,) = message.resource_spans
    named = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
    assert path == "/v1/traces"
    assert named["service.name"] == "ppd-gateway"
    assert sorted(span.name for span in resource.scope_spans[0].spans) == ["answer", "chat sim", "prefill"]


async def test_a_collector_that_is_away_costs_no_request_and_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracing, "EXPORT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        async with world(policy="local", decode=1, **{"tracing.endpoint": endpoint}) as w:
            await ask(w, [user()])
            assert (await w.record(1)).status == 200
    lost = [record.message for record in caplog.records if "tracing" in record.message]
    assert lost == [f"tracing: {endpoint} does not take spans; they are dropped until it does"]
    assert not [thread for thread in threading.enumerate() if "span" in thread.name.lower()]


class Moody(InMemorySpanExporter):
    """Takes spans only in a good mood."""

    good = False

    def export(self, spans: Any) -> SpanExportResult:
        return super().export(spans) if self.good else SpanExportResult.FAILURE


def test_a_collector_that_is_back_is_said_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "ppd_gateway")
    moody = Moody()
    exporter = tracing.Reporting(moody, "http://c:4318")
    for mood in (False, False, True, True):
        moody.good = mood
        exporter.export([])
    assert [record.message for record in caplog.records] == [
        "tracing: http://c:4318 does not take spans; they are dropped until it does",
        "tracing: http://c:4318 takes spans again",
    ]


def test_a_gateway_without_traces_loads_nothing_of_it() -> None:
    program = (
        "import sys\nfrom gateway.ops.serve import running\nfrom gateway.ops.config import load\n"
        "load(None, {}, {'decode': ['http://d:1']})\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_extra_that_is_not_installed_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.ops.tracing_plan.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=re.escape("pip install 'ppd-gateway[otel]'")):
        load(None, {}, {"decode": ["http://d:1"], "tracing.endpoint": "http://c:4318"})
