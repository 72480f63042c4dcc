"""What traces cost per request, on the event loop and in the exporter's thread.

Rule of this room: the gateway's own calls in the order in which a request makes them; the spans go to an exporter that
throws them away, so a collector's time is not in it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gateway.net.records import Outcome, RequestRecord
from gateway.net.request import Request
from gateway.net.tracing import Step, traced
from gateway.ops.tracing_plan import TracingPlan

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

    from gateway.ops.tracing import Tracing

HEADERS = [("Content-Type", "application/json"), ("X-Request-Id", "r" * 32), ("Accept-Encoding", "identity")]
PARENT = ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")


def nowhere() -> SpanExporter:
    """Throws everything away."""
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    class Nowhere(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    return Nowhere()


def add_command(commands: Any) -> None:
    """Mount the benchmark."""
    parser = commands.add_parser("tracing", help="what traces cost per request")
    parser.add_argument("--requests", type=int, default=5_000, help="of one round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.set_defaults(run=_run)


def measure(requests: int, rounds: int) -> dict[str, float]:
    """Microseconds of the calling thread per request, medians over rounds, by case."""
    from gateway.ops.tracing import Tracing

    cases: dict[str, tuple[TracingPlan | None, list[tuple[str, str]]]] = {
        "off": (None, HEADERS),
        "not sampled": (TracingPlan("http://nowhere", 0.0, True), HEADERS),
        "sampled": (TracingPlan("http://nowhere", 1.0, True), HEADERS),
        "sampled, client's trace": (TracingPlan("http://nowhere", 0.0, True), [*HEADERS, PARENT]),
    }
    found = {}
    for name, (plan, headers) in cases.items():
        tracing = None if plan is None else Tracing(plan, nowhere())
        play = _request(tracing, Request("POST", "/v1/chat/completions", headers, b"", True, True))
        found[name] = statistics.median(_round(play, requests) for _ in range(rounds))
        if tracing is not None:
            tracing.close()
    return found


def _round(play: Callable[[], None], requests: int) -> float:
    began = time.thread_time()
    for _ in range(requests):
        play()
    return (time.thread_time() - began) / requests * 1e6


def _request(tracing: Tracing | None, incoming: Request) -> Callable[[], None]:
    """A turn through P and D, as far as traces have a part in it."""

    def play() -> None:
        record = RequestRecord("r", "POST", "/v1/chat/completions", 200, Outcome.OK, True, "pd", model="m", turn=1)
        if tracing is not None:
            record.trace = tracing.begin(incoming)
        for step, pod in ((Step.PREFILL, "http://p:8000"), (Step.ANSWER, "http://d:8000")):
            traced(record.trace, step, pod, list(incoming.header_items()))
            if record.trace is not None and step is Step.PREFILL:
                record.trace.over(step)
        if tracing is not None:
            tracing.finished(record)

    return play


def _run(options: argparse.Namespace) -> int:
    found = measure(options.requests, options.rounds)
    base = found["off"]
    print("per request, less what is done without traces, µs of the event loop's thread")
    for name, micros in found.items():
        if name != "off":
            print(f"  {name:24} {micros - base:6.1f}")
    if options.json:
        print(json.dumps({name: round(micros - base, 2) for name, micros in found.items() if name != "off"}))
    return 0
