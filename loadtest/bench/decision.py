"""How long a decision takes: recognise, locate, estimate, score, choose pods.

Rule of this room: the code that is timed is the gateway's own, with its garbage collector settings, on a store as
large as asked for. Parsing the body is listed beside the decision, not hidden in it.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from gateway.core.chains import MessageChain, root_of
from gateway.core.conversations import ConversationStore, Recognition, TurnResult
from gateway.core.decide import Request, decide
from gateway.core.estimates import BytesPerToken
from gateway.core.outputs import OutputLengths
from gateway.core.pods import Fleet, Pod, Role
from gateway.core.policies import MeasuredTable, Policy
from gateway.core.rates import RequestRate
from gateway.core.residency import Residency
from gateway.core.weights import BALANCED, Weights
from gateway.ops.serve import tame_garbage_collector
from gateway.wire import fields as wire_fields
from gateway.wire import prompts
from loadtest.bench import extras
from loadtest.bench.pages import SharedPages, measure_open, measure_sharing
from loadtest.bench.synthetic import write_large_set
from lut.table import TableSet

MESSAGES = 40
BODY_BYTES = 32 * 1024
APART, APART_S = 400, 0.005
"""Decisions with a pause before each, as at 200 requests per second: what the processor had in its caches is gone."""

TARGETS = {"p50_us": 20.0, "p99_us": 50.0, "p999_us": 1000.0, "lookup_us": 2.0, "open_ms": 5.0}


def add_command(commands: Any) -> None:
    """Mount the benchmark."""
    parser = commands.add_parser("decision", help="how long a decision takes")
    parser.add_argument("--conversations", type=int, default=1_000_000)
    parser.add_argument("--pods", type=int, default=64)
    parser.add_argument("--decisions", type=int, default=20_000, help="distinct conversations that are decided")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.set_defaults(run=_run)


@dataclass(frozen=True, slots=True)
class Asked:
    """A later turn as it arrives, parsed."""

    digests: tuple[bytes, ...]
    reply_heads: tuple[bytes | None, ...]


class World:
    """A gateway's memory after a long day."""

    def __init__(self, conversations: int, decisions: int, pods: int, tables: TableSet) -> None:
        draw = random.Random(1)
        prefill = max(1, pods // 4)
        roles = [Role.PREFILL] * prefill + [Role.DECODE] * (pods - prefill)
        self.fleet = Fleet(Pod(f"http://10.0.{n // 256}.{n % 256}:8000", role, up=True) for n, role in enumerate(roles))
        for pod in self.fleet:
            pod.take(draw.randrange(100_000))
        self.policy: Policy = MeasuredTable(tables)
        self.residency = Residency()
        self.store = ConversationStore(conversations, 1e9)
        self.outputs, self.rate, self.sizes = OutputLengths(), RequestRate(0.0), BytesPerToken()
        self.root, self.tenant = root_of("key", "model", ""), root_of("key")
        self.asked = [self._remember_long(draw) for _ in range(decisions)]
        for number in range(conversations - decisions):
            self._remember(self._chain((number.to_bytes(16, "big"),), (None,)), draw)

    def _chain(self, digests: Sequence[bytes], heads: Sequence[bytes | None]) -> MessageChain:
        return MessageChain(self.root, digests, heads)

    def _remember_long(self, draw: random.Random) -> Asked:
        digests = tuple(draw.randbytes(16) for _ in range(MESSAGES))
        heads = (*(draw.randbytes(9) if number % 2 else None for number in range(MESSAGES - 1)), None)
        self._remember(self._chain(digests[:-2], heads[:-2]), draw, reply_head=heads[-2])
        return Asked(digests, heads)

    def _remember(self, chain: MessageChain, draw: random.Random, reply_head: bytes | None = None) -> None:
        recognition = self.store.recognise(self.root, None, chain, draw.randbytes(16), 0.0)
        self.store.begin(recognition.conversation)
        decode = draw.choice(self.fleet.up(Role.DECODE))
        prefill = self.fleet.up(Role.PREFILL)[0]
        tokens = draw.randrange(500, 20_000)
        result = TurnResult(prefill.url, decode.url, 0, "local", tokens, 200, reply_head)
        self.store.finish(recognition, chain, result)
        self.residency.used(decode, recognition.conversation.key, tokens + 200)

    def request_of(
        self, asked: Asked, fresh_key: bytes, now_s: float, weights: Weights = BALANCED
    ) -> tuple[Recognition, Request]:
        """A parsed request as the decision sees it."""
        chain = MessageChain(self.root, asked.digests, asked.reply_heads)
        recognition = self.store.recognise(self.root, None, chain, fresh_key, now_s)
        self.rate.count(now_s)
        request = Request(
            prompt_tokens=self.sizes.tokens("model", BODY_BYTES),
            output_tokens=self.outputs.expect(recognition.conversation.recent_outputs, self.tenant, 1024),
            rate=self.rate.per_second(now_s),
            weights=weights,
        )
        return recognition, request

    def decide(self, asked: Asked, fresh_key: bytes, now_s: float) -> Recognition:
        """What the gateway does with a parsed request before it asks a pod."""
        recognition, request = self.request_of(asked, fresh_key, now_s)
        plan = decide(request, recognition, self.fleet, self.policy, self.residency)
        assert plan is not None
        return recognition


def time_decisions(
    world: World, clock: Callable[[], float], most: int | None = None, pause: Callable[[], object] = lambda: None
) -> list[float]:
    """Seconds of every decision by that clock, sorted. most: no more than so many. pause: called before each."""
    spent = []
    order = list(world.asked)
    random.Random(2).shuffle(order)
    for number, asked in enumerate(order[:most]):
        pause()
        began = clock()
        recognition = world.decide(asked, bytes(16), number * 0.001)
        spent.append(clock() - began)
        assert recognition.turn == 2
    return sorted(spent)


def _percentile_us(ordered: Sequence[float], share: float) -> float:
    return 1e6 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _best_us(work: Callable[[], object], repeats: int) -> float:
    """Microseconds per call, the best of five rounds."""
    rounds = []
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(repeats):
            work()
        rounds.append((time.perf_counter() - began) / repeats)
    return 1e6 * min(rounds)


def _body() -> bytes:
    text = "word " * (BODY_BYTES // MESSAGES // 5 - 8)
    messages = [{"role": "assistant" if n % 2 else "user", "content": text} for n in range(MESSAGES - 1)]
    return msgspec.json.encode({"model": "model", "messages": [*messages, {"role": "user", "content": text}]})


def _lookup_us(tables: TableSet) -> float:
    table = next(iter(tables.tables.values()))
    points = np.random.default_rng(3).uniform(1, 100_000, (1000, 4)).tolist()
    return _best_us(lambda: [table.nearest(*point) for point in points], 20) / len(points)


def _run(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "set"
        size_mib = write_large_set(directory)
        opening = measure_open(directory)
        sharing = measure_sharing(directory, processes=8)
        tables = TableSet.open(directory)
        lookup_us = _lookup_us(tables)
        body = _body()
        parsed = wire_fields.parse(body)
        parse_us = _best_us(lambda: wire_fields.parse(body), 200)
        read_us = _best_us(lambda: prompts.read_messages(parsed), 200)
        world = World(options.conversations, options.decisions, options.pods, tables)
        tame_garbage_collector()
        cpu = time_decisions(world, time.thread_time)
        spent = time_decisions(world, time.perf_counter)
        apart = time_decisions(world, time.thread_time, APART, lambda: time.sleep(APART_S))
        costs = extras.measure(world)
    found: dict[str, float] = {
        "p50_us": _percentile_us(spent, 0.5),
        "p99_us": _percentile_us(spent, 0.99),
        "p999_us": _percentile_us(spent, 0.999),
        "cpu_p50_us": _percentile_us(cpu, 0.5),
        "cpu_p99_us": _percentile_us(cpu, 0.99),
        "cpu_p999_us": _percentile_us(cpu, 0.999),
        "apart_cpu_p50_us": _percentile_us(apart, 0.5),
        "apart_cpu_p99_us": _percentile_us(apart, 0.99),
        "lookup_us": lookup_us,
        "open_ms": opening.open_ms,
        "verify_ms": opening.verify_ms,
        "open_private_kib": opening.private_kib,
        "parse_us": parse_us,
        "read_messages_us": read_us,
    }
    _print(found, sharing, options, size_mib, len(body))
    print("what else a request may cost, this thread's own time:", *extras.lines(costs), sep="\n")
    if options.json:
        numbers = found | extras.for_json(costs)
        print(json.dumps({name: round(value, 3) for name, value in numbers.items()} | sharing.for_json()))
    return 0


def _print(
    found: dict[str, float], sharing: SharedPages, options: argparse.Namespace, size_mib: float, body: int
) -> None:
    print(f"{options.conversations:,} conversations, {options.pods} pods, {options.decisions:,} decisions; ", end="")
    print(f"table set of {size_mib:.0f} MiB; body of {MESSAGES} messages, {body:,} bytes")
    for name, value in found.items():
        target = f"   (target {TARGETS[name]:g})" if name in TARGETS else ""
        print(f"  {name:<18} {value:>10.2f}{target}")
    print("  p… are wall clock, so they hold what else the machine does; cpu_… is this thread's own time")
    print(f"  apart_… are of {APART} decisions with {1e3 * APART_S:g} ms of rest before each, the others are in a row")
    print(sharing.for_people())
