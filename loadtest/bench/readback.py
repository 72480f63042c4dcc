"""What the three routes of a later turn cost on real vLLM pods, and what a readback is made of.

Needs pods that are up: `python -m loadtest.vllm_cpu up --prefill 1 --decode 2 --bidirectional prefill`. Every
conversation's first turn runs on a decode pod alone, so that the prefill pod has nothing of it in its own cache: this
is the case a readback is for (P evicted the history, or never had it). The routes take turns.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import uuid
from pathlib import Path
from typing import Any

import httpx

from gateway.core.pods import Role
from gateway.core.policies import Choice, Route, TurnView
from gateway.net.records import IdleObserver, RequestRecord
from gateway.ops.config import load
from gateway.ops.serve import Running, running
from loadtest.vllm_cpu import spec
from loadtest.vllm_cpu.cluster import Cluster
from loadtest.vllm_cpu.layout import Layout
from loadtest.vllm_cpu.spec import SERVED_MODEL_NAME

ROUTES = (Route.PD, Route.LOCAL, Route.READBACK)
CONTEXTS = (1400, 4500)
WORDS = ("river", "engine", "cache", "window", "summer", "letter", "market", "doctor", "garden", "mountain", "picture")
WORDS_PER_TOKEN = 0.43
"""Of the tiny model's tokenizer, on these words in this chat template."""


class Fixed:
    """A policy that says what it is told to."""

    name = "fixed"

    def __init__(self) -> None:
        self.route = Route.LOCAL

    def choose(self, view: TurnView) -> Choice:
        return Choice(self.route, "as the benchmark says")


class Last(IdleObserver):
    """The record of the last request, and which pods are up."""

    def __init__(self) -> None:
        self.record: RequestRecord | None = None
        self.up: set[str] = set()
        self.changed = asyncio.Event()

    def finished(self, record: RequestRecord) -> None:
        self.record = record

    def pod_changed(self, pod: str, role: str, up: bool, detail: str) -> None:
        (self.up.add if up else self.up.discard)(pod)
        self.changed.set()


async def _turn(http: httpx.AsyncClient, gateway: Running, messages: list[dict[str, str]], salt: str) -> str:
    body = {
        "model": SERVED_MODEL_NAME,
        "messages": messages,
        "temperature": 0,
        "max_tokens": 48,
        "cache_salt": salt,
        "conversation_id": salt,
        "stream": True,
    }
    text = ""
    async with http.stream("POST", f"{gateway.url}/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                choices = json.loads(line[6:])["choices"]
                text += (choices[0]["delta"].get("content") or "") if choices else ""
    return text


async def _measure(context: int, talks: int, gateway: Running, policy: Fixed, last: Last) -> dict[str, Any]:
    parts = gateway.gateway.parts
    draw = random.Random(context)
    found: dict[str, list[RequestRecord]] = {route.value: [] for route in ROUTES}
    async with httpx.AsyncClient(timeout=120.0, trust_env=False) as http:
        for number in range(talks * len(ROUTES) + len(ROUTES)):
            route = ROUTES[number % len(ROUTES)]
            salt = uuid.uuid4().hex
            messages = [{"role": "user", "content": " ".join(draw.choices(WORDS, k=int(context * WORDS_PER_TOKEN)))}]
            for pod in parts.fleet.of(Role.PREFILL):
                parts.fleet.set_draining(pod, True)
            reply = await _turn(http, gateway, messages, salt)
            for pod in parts.fleet.of(Role.PREFILL):
                parts.fleet.set_draining(pod, False)
            policy.route = route
            messages += [
                {"role": "assistant", "content": reply},
                {"role": "user", "content": " ".join(draw.choices(WORDS, k=30))},
            ]
            await _turn(http, gateway, messages, salt)
            record = last.record
            if record is None or record.route != route:
                raise RuntimeError(f"asked for {route}, got {record.route if record else None}: {record}")
            if number >= len(ROUTES):  # the first of each pays for handshakes
                found[route].append(record)
    return {route: _summary(records) for route, records in found.items()}


def _summary(records: list[RequestRecord]) -> dict[str, Any]:
    def median_ms(values: list[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return round(1e3 * statistics.median(known), 1) if known else None

    return {
        "prompt_tokens": round(statistics.median(record.prompt_tokens or 0 for record in records)),
        "ttft_ms": median_ms([record.ttft_s for record in records]),
        "ids_ms": median_ms([record.ids_s for record in records]),
        "recall_ms": median_ms([record.recall_s for record in records]),
        "prefill_leg_ms": median_ms([record.prefill_s for record in records]),
        "read_tokens": round(statistics.median(record.readback_tokens or 0 for record in records)),
        "turns": len(records),
    }


async def _all(talks: int, directory: Path) -> dict[str, Any]:
    cluster = Cluster.attach(directory)
    prefill, decode = ([pod.url for pod in cluster.of_role(role)] for role in (spec.Role.PREFILL, spec.Role.DECODE))
    if not prefill or not decode:
        raise SystemExit(f"no pods in {directory}: see the top of this module")
    policy, last = Fixed(), Last()
    flags = {"prefill": prefill, "decode": decode[:1], "policy": "local", "port": 0, "readback": True}
    async with running(load(None, {}, flags), last) as gateway:
        gateway.gateway.parts.policy = policy
        async with asyncio.timeout(60):
            while not last.up >= {*prefill, decode[0]}:
                last.changed.clear()
                await last.changed.wait()
        return {str(context): await _measure(context, talks, gateway, policy, last) for context in CONTEXTS}


def add_command(commands: Any) -> None:
    """Mount the benchmark."""
    parser = commands.add_parser("readback", help="the three routes of a later turn on real vLLM pods")
    parser.add_argument("--talks", type=int, default=7, help="conversations per route and context length")
    parser.add_argument("--state", type=Path, default=Layout.default().pods, metavar="DIR")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.set_defaults(run=_run)


def _run(options: Any) -> int:
    found = asyncio.run(_all(options.talks, options.state))
    print(f"{'prompt':>7} {'route':9} {'TTFT ms':>8} {'':>6} {'ids':>7} {'recall':>7} {'P leg':>7} {'read':>6}")
    for routes in found.values():
        base = routes[Route.PD]["ttft_ms"]
        for route, row in routes.items():
            change = f"{100 * (row['ttft_ms'] / base - 1):+.0f} %" if route != Route.PD else ""
            cells = [row[name] if row[name] is not None else "" for name in ("ids_ms", "recall_ms", "prefill_leg_ms")]
            print(
                f"{row['prompt_tokens']:7d} {route:9} {row['ttft_ms']:8.1f} {change:>6} "
                f"{cells[0]!s:>7} {cells[1]!s:>7} {cells[2]!s:>7} {row['read_tokens'] or '':>6}"
            )
    if options.json:
        print(json.dumps(found))
    return 0
