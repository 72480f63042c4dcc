"""What metrics cost: per request, per chunk of a stream, per scrape.

Rule of this room: the observer and the page that are timed are the gateway's own; the scrape runs on an event loop
with a timer beside it that notes how long it had to wait.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable
from typing import Any

from prometheus_client import generate_latest

from gateway.core.conversations import ConversationStore
from gateway.core.pods import Fleet, Pod, PodFacts, Role
from gateway.core.policies import AlwaysLocal
from gateway.core.reasons import ReasonClass
from gateway.core.residency import Expectation
from gateway.net.exchange import Page
from gateway.net.parts import Parts
from gateway.net.records import GAP_BOUNDS_S, Arm, IdleObserver, Outcome, RequestRecord
from gateway.net.settings import GatewaySettings
from gateway.net.upstream import PodClient
from gateway.ops.metrics import Metrics
from gateway.ops.metrics.turns import joined
from gateway.ops.scrape import merged

TARGETS = {"request_us": 10.0, "chunk_us": 0.3, "scrape_ms": 20.0, "stall_ms": 5.0, "merge_stall_ms": 5.0}
ROUTES = (("pd", 1), ("pd", 2), ("local", 1), ("local", 2), ("readback", 2), ("replica", 1), ("replica", 2))
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")


def add_command(commands: Any) -> None:
    """Mount the benchmark."""
    parser = commands.add_parser("metrics", help="what metrics cost per request, per chunk and per scrape")
    parser.add_argument("--pods", type=int, default=64)
    parser.add_argument("--models", type=int, default=1)
    parser.add_argument("--workers", type=int, default=4, help="pages that one scrape lays side by side")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.set_defaults(run=_run)


def make_parts(pods: int) -> Parts:
    """A fleet of so many pods, all up, each with facts and with predictions that were compared."""
    roles = [Role.PREFILL] * (pods // 4) + [Role.REPLICA] * (pods // 8)
    roles += [Role.DECODE] * (pods - len(roles))
    facts = PodFacts(block_size=16, num_blocks=10_000, models=("m0",), fetched_bytes=2e9, fetched_tokens=1e5)
    fleet = Fleet(
        Pod(f"http://10.0.{n // 256}.{n % 256}:8000", role, up=True, facts=facts) for n, role in enumerate(roles)
    )
    parts = Parts(fleet, ConversationStore(10, 100.0), AlwaysLocal(), PodClient(1.0), IdleObserver(), GatewaySettings())
    for pod in fleet:
        view = parts.residency.view(pod, 0)
        view.arrival(0)
        view.heard_batch(0, time.time())
        parts.residency.learn(pod, bytes(16), Expectation(96, 96), 100, 200, 96)
    return parts


def make_records(models: int) -> list[RequestRecord]:
    """One finished, streamed request of every path, model, route, turn and arm."""
    gaps = [0] * (len(GAP_BOUNDS_S) + 1)
    gaps[6], gaps[7] = 100, 27
    return [
        RequestRecord(
            "id", "POST", path, 200, Outcome.OK, True, route, turn=turn, arm=arm, model=f"m{number}", attempts=1,
            prompt_tokens=4000, cached_tokens=3500, output_tokens=128, prefill_s=0.2, ttft_s=0.25, tpot_s=0.02,
            total_s=2.8, reason_class=ReasonClass.SCORE, score=0.2, decide_s=2e-5, forecast_ttft_s=0.2,
            forecast_tpot_s=0.02, gaps=gaps, gaps_s=2.5, moved_tokens=500, avoided_tokens=500,
        )
        for path, number, (route, turn), arm in itertools.product(PATHS, range(models), ROUTES, Arm)
    ]  # fmt: skip


def per_request_us(metrics: Metrics, records: list[RequestRecord]) -> float:
    """Microseconds for one request, `started` and `finished`; the best of five rounds."""

    def work() -> None:
        for record in records:
            metrics.started(record)
            metrics.finished(record)

    return _best_us(work, 20) / len(records)


def per_chunk_us() -> float:
    """Microseconds that counting a gap adds to the passing on of one chunk: what `net.relay` does, less the clock."""
    gaps = [0] * (len(GAP_BOUNDS_S) + 1)
    waits = [0.0004 * (number % 50) for number in range(1000)]

    def counted() -> None:
        for wait in waits:
            gaps[bisect_left(GAP_BOUNDS_S, wait)] += 1

    def empty() -> None:
        for _ in waits:
            pass

    return (_best_us(counted, 100) - _best_us(empty, 100)) / len(waits)


def _best_us(work: Callable[[], object], repeats: int) -> float:
    """Microseconds of this thread's own time, so that what else the machine does matters less."""
    rounds = []
    for _ in range(5):
        began = time.thread_time()
        for _ in range(repeats):
            work()
        rounds.append((time.thread_time() - began) / repeats)
    return 1e6 * min(rounds)


async def scrape_ms(make: Callable[[], Awaitable[Page]], rounds: int = 20) -> tuple[float, float, int]:
    """Median milliseconds of a scrape, the longest time the loop was not free meanwhile (median of the rounds), and
    the bytes of the page."""
    waits = 0.0

    async def others() -> None:
        nonlocal waits
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0)
            waits = max(waits, time.perf_counter() - began)

    times, stalls, size = [], [], 0
    for _ in range(rounds):
        waits = 0.0
        beside = asyncio.ensure_future(others())
        await asyncio.sleep(0)
        began = time.perf_counter()
        size = len((await make()).body)
        times.append(time.perf_counter() - began)
        await asyncio.sleep(0)
        beside.cancel()
        await asyncio.gather(beside, return_exceptions=True)
        stalls.append(waits)
    return 1e3 * sorted(times)[rounds // 2], 1e3 * sorted(stalls)[rounds // 2], size


def _run(options: argparse.Namespace) -> int:
    metrics, parts, records = Metrics(worker=1), make_parts(options.pods), make_records(options.models)
    request_us = per_request_us(metrics, records)
    took_ms, stall_ms, size = asyncio.run(scrape_ms(lambda: metrics.served(parts)))
    page = metrics.page(parts).body
    pages: dict[int, bytes | None] = dict.fromkeys(range(1, options.workers + 1), page)

    async def merge() -> Page:
        return Page("", await joined(merged(pages)))

    merge_ms, merge_stall_ms, _ = asyncio.run(scrape_ms(merge))
    found: dict[str, float] = {
        "request_us": request_us,
        "chunk_us": per_chunk_us(),
        "scrape_ms": took_ms,
        "stall_ms": stall_ms,
        "at_once_ms": _best_us(lambda: metrics.page(parts), 3) / 1e3,
        "generate_latest_ms": _best_us(lambda: generate_latest(metrics.registry), 1) / 1e3,
        "merge_ms": merge_ms,
        "merge_stall_ms": merge_stall_ms,
    }
    lines = sum(not line.startswith(b"#") for line in page.splitlines())
    print(f"{options.pods} pods, {len(records)} label sets of requests: {lines:,} samples, {size / 1024:.0f} KiB")
    for name, value in found.items():
        target = f"   (target {TARGETS[name]:g})" if name in TARGETS else ""
        print(f"  {name:<18} {value:>10.3f}{target}")
    print("  scrape, stall, merge are wall clock, so they hold what else the machine does; the others are CPU time")
    print(f"  merge_ms: the pages of {options.workers} workers; generate_latest_ms: the same by prometheus_client")
    if options.json:
        print(json.dumps({name: round(value, 4) for name, value in found.items()} | {"samples": lines}))
    return 0
