"""OpenTelemetry traces: a span per generation request, and one below it for each leg.

Rule of this room: the only module that knows OpenTelemetry, imported only where `tracing.endpoint` is set. Attributes
are those of the access log, under the names of OpenTelemetry's conventions for generative AI where these have one: no
message text, no header values. The exporter has a thread of its own; a collector that is away costs no request.
"""

from __future__ import annotations

import logging
import random
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from gateway.net.exchange import Incoming
from gateway.net.records import IdleObserver, Outcome, RequestRecord
from gateway.net.tracing import Items, Step
from gateway.ops.logs import MAIN
from gateway.ops.tracing_plan import TracingPlan
from gateway.version import VERSION

PARENT = "traceparent"
STATE = "tracestate"
EXPORT_S = 5.0
"""For one batch, and for the last one when the gateway stops."""

_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
}


class RequestTrace:
    """One request's spans (`net.tracing.Trace`)."""

    __slots__ = ("_legs", "_make", "_root", "span")

    def __init__(self, make: Any, span: Span) -> None:
        self._make = make
        self._root = set_span_in_context(span)
        self._legs: dict[Step, Span] = {}
        self.span = span

    def leg(self, step: Step, pod: str, headers: Items) -> Items:
        self.over(step)
        where = urlsplit(pod)
        span: Span = self._make(
            step.value,
            self._root,
            SpanKind.CLIENT,
            {
                "server.address": where.hostname or "",
                "server.port": where.port or (443 if where.scheme == "https" else 80),
                "ppd.pod": pod,
            },
        )
        self._legs[step] = span
        seen = span.get_span_context()
        kept = [item for item in headers if item[0].lower() != PARENT]
        kept.append((PARENT, f"00-{seen.trace_id:032x}-{seen.span_id:016x}-01"))
        return kept

    def over(self, step: Step, fault: str | None = None) -> None:
        span = self._legs.pop(step, None)
        if span is None:
            return
        if fault is not None:
            span.set_attribute("error.type", fault)
            span.set_status(Status(StatusCode.ERROR))
        span.end()

    def end(self, record: RequestRecord) -> None:
        """The request is over."""
        for step in list(self._legs):
            self.over(step)
        span = self.span
        attributes = attributes_of(record)
        span.update_name(f"{attributes['gen_ai.operation.name']} {record.model or 'unknown'}")
        span.set_attributes(attributes)
        if record.outcome in (Outcome.FAILED, Outcome.BROKEN):
            span.set_attribute("error.type", record.outcome.value)
            span.set_status(Status(StatusCode.ERROR))
        span.end()


class Reporting(SpanExporter):
    """An exporter that says once in the gateway's log when spans are lost, and when they no longer are."""

    def __init__(self, inner: SpanExporter, where: str) -> None:
        self._inner = inner
        self._where = where
        self._failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._inner.export(spans)
        failed = result is not SpanExportResult.SUCCESS
        if failed and not self._failing:
            MAIN.warning("tracing: %s does not take spans; they are dropped until it does", self._where)
        elif self._failing and not failed:
            MAIN.info("tracing: %s takes spans again", self._where)
        self._failing = failed
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()


class Tracing(IdleObserver):
    """Makes traces, and as an observer ends them. exporter: where spans go, in place of the collector."""

    def __init__(self, plan: TracingPlan, exporter: SpanExporter | None = None) -> None:
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # `Reporting` says it in the log's own format
        self._plan = plan
        resource = Resource.create({"service.name": "ppd-gateway", "service.version": VERSION})
        self._provider = TracerProvider(sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False)
        out = exporter or OTLPSpanExporter(f"{plan.endpoint}/v1/traces", timeout=EXPORT_S)
        self._exporter = Reporting(out, plan.endpoint)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("ppd-gateway", VERSION)

    def begin(self, incoming: Incoming) -> RequestTrace | None:
        parent = parent_of(incoming.headers.get(PARENT), incoming.headers.get(STATE)) if self._plan.follow else None
        if parent is None:
            if random.random() >= self._plan.sample:
                return None
        elif not parent.trace_flags.sampled:
            return None
        context = Context() if parent is None else set_span_in_context(NonRecordingSpan(parent), Context())
        return RequestTrace(self._start, self._start("request", context, SpanKind.SERVER, {}))

    def finished(self, record: RequestRecord) -> None:
        if isinstance(record.trace, RequestTrace):
            record.trace.end(record)

    def close(self) -> None:
        """Send what is left, within EXPORT_S. Blocks; call it off the loop."""
        sending = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        sending.start()
        sending.join(EXPORT_S)
        if sending.is_alive():
            self._exporter.shutdown()  # which ends its waiting for another try
            sending.join(1.0)

    def _start(self, name: str, context: Context, kind: SpanKind, attributes: Mapping[str, str | int]) -> Span:
        return self._tracer.start_span(name, context, kind, attributes)


def parent_of(header: str | None, state: str | None) -> SpanContext | None:
    """The span that a client's `traceparent` names (W3C Trace Context); None for none, or one that is no good."""
    found = None if header is None else _PARENT.fullmatch(header.strip())
    if found is None or (found[4] and header is not None and header.startswith("00")):
        return None
    trace_state = TraceState.from_header([state]) if state else TraceState()
    return SpanContext(int(found[1], 16), int(found[2], 16), True, TraceFlags(int(found[3], 16) & 1), trace_state)


def attributes_of(record: RequestRecord) -> dict[str, str | int | float | bool | Sequence[str]]:
    """What a request's span says of it."""
    found: dict[str, Any] = {
        "gen_ai.operation.name": _OPERATIONS.get(record.path, "chat"),
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": record.model,
        "gen_ai.request.stream": record.stream,
        "gen_ai.conversation.id": record.conversation,
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.output_tokens": record.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
        "gen_ai.response.time_to_first_chunk": record.ttft_s if record.stream else None,
        "http.request.method": record.method,
        "http.route": record.path,
        "http.response.status_code": record.status or None,
        "ppd.request_id": record.request_id,
        "ppd.outcome": record.outcome.value,
        "ppd.route": record.route,
        "ppd.reason": record.reason,
        "ppd.arm": record.arm,
        "ppd.turn": record.turn,
        "ppd.attempts": record.attempts,
        "ppd.score": record.score,
        "ppd.decide_s": record.decide_s,
        "ppd.tpot_s": record.tpot_s,
        "ppd.prefill": record.prefill,
        "ppd.answered_by": record.answering,
        "ppd.readback_tokens": record.readback_tokens,
    }
    return {name: value for name, value in found.items() if value is not None}
