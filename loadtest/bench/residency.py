"""What knowing where the KV is costs: CPU per block event, delay of requests, bytes per block.

A process of its own publishes events as a cluster of pods would, over ZMQ, at a steady rate; the gateway's subscriber
takes them on an event loop. What that does to requests is measured by a third process that writes the time into a
socket every millisecond: the loop reads it like a request and notes how old it is. The yardstick is the same in the
same run with the same publisher to whom nobody listens.
"""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing
import random
import socket
import struct
import time
import tracemalloc
from multiprocessing.reduction import DupFd
from typing import Any

import msgspec
import uvloop
import zmq

from gateway.core.blocks import BlockTree
from gateway.core.conversations import ConversationStore
from gateway.core.pods import Fleet, Pod, Role
from gateway.core.policies import AlwaysLocal
from gateway.net.events import EventSubscriber
from gateway.net.parts import Parts
from gateway.net.records import IdleObserver
from gateway.net.settings import GatewaySettings
from gateway.net.upstream import PodClient
from gateway.ops.serve import tame_garbage_collector
from gateway.wire.kv_events import EventSource

BLOCK_TOKENS = 16
CAPACITY_BLOCKS = 40_000
"""Per pod: an H100 with Llama-3.1-8B holds about 30,000 blocks of 16 tokens."""

PROMPT_BLOCKS = 64
SESSIONS = 400
PROBE_S = 0.001
TARGETS = {"delay_p99_ms": 1.0, "bytes_per_block": 120.0, "blocks_per_s": 50_000.0}

Events = list[dict[str, Any]]


class FakePod:
    """The events of a busy pod: prompts of many blocks, replies block by block, evictions once it is full."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._sessions = [self._random.randbytes(16).hex() for _ in range(SESSIONS)]
        self._tails: dict[str, int] = {}
        self._blocks: list[int] = []
        self._first = 0
        self._token = 0

    def step(self) -> tuple[Events, int]:
        """One scheduler step: (events, blocks in them)."""
        events: Events = []
        count = 0
        for _ in range(4):
            session = self._random.choice(self._sessions)
            blocks = PROMPT_BLOCKS if self._random.random() < 0.08 else 1
            fresh = [self._random.getrandbits(64) for _ in range(blocks)]
            new_turn = blocks > 1 and self._random.random() < 0.3
            parent = None if new_turn else self._tails.get(session)
            self._tails[session] = fresh[-1]
            self._blocks.extend(fresh)
            events.append(self._stored(session, parent, fresh))
            count += blocks
        while len(self._blocks) - self._first > CAPACITY_BLOCKS:
            events.append(
                {"type": "BlockRemoved", "block_hashes": [self._blocks[self._first]], "medium": "GPU", "group_idx": 0}
            )
            self._first += 1
            count += 1
        return events, count

    def _stored(self, session: str, parent: int | None, fresh: list[int]) -> dict[str, Any]:
        self._token += 1
        return {
            "type": "BlockStored",
            "block_hashes": fresh,
            "parent_block_hash": parent,
            "token_ids": [(self._token * 7919 + n) % 128_000 for n in range(BLOCK_TOKENS * len(fresh))],
            "block_size": BLOCK_TOKENS,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "extra_keys": [None] * len(fresh),
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
            "session_id": session,
        }


def _prepare(seed: int, blocks: int) -> list[tuple[bytes, int]]:
    """Encoded batches with at least so many block events."""
    pod, batches, total = FakePod(seed), [], 0
    while total < blocks:
        events, count = pod.step()
        batches.append((msgspec.msgpack.encode([time.time(), events, 0]), count))
        total += count
    return batches


def _publish(port: Any, go: Any, rate: float, seconds: float, pods: int) -> None:
    """The publishing process: so many block events a second, evenly, over all pods."""
    context = zmq.Context()
    context.linger = 0
    sockets = []
    for _ in range(pods):
        out = context.socket(zmq.PUB)
        out.set_hwm(1_000_000)
        sockets.append((out, out.bind_to_random_port("tcp://127.0.0.1")))
    batches = [_prepare(seed, int(rate * seconds / pods)) for seed in range(pods)]
    port.send([number for _, number in sockets])
    go.wait()
    began, sent = time.perf_counter(), 0
    for number in range(max(map(len, batches))):
        for (out, _), of_pod in zip(sockets, batches, strict=True):
            if number < len(of_pod):
                payload, count = of_pod[number]
                out.send_multipart([b"kv", number.to_bytes(8, "big"), payload])
                sent += count
        ahead = sent / rate - (time.perf_counter() - began)
        if ahead > 0:
            time.sleep(ahead)
    port.send(sent)
    go.clear()
    port.recv()
    context.destroy(linger=0)


def _stamp(descriptor: Any, seconds: float) -> None:
    """The probing process: the time, every millisecond."""
    with socket.socket(fileno=descriptor.detach()) as out:
        end = time.perf_counter() + seconds
        while (now := time.perf_counter()) < end:
            out.send(struct.pack("d", now))
            time.sleep(PROBE_S)


async def _ages(seconds: float) -> list[float]:
    """How old the probe's words are when the loop reads them, in seconds."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    ours.setblocking(False)
    ages: list[float] = []
    loop = asyncio.get_running_loop()
    context = multiprocessing.get_context("spawn")
    prober = context.Process(target=_stamp, args=(DupFd(theirs.fileno()), seconds), daemon=True)

    def read() -> None:
        ages.append(time.perf_counter() - struct.unpack("d", ours.recv(8))[0])

    loop.add_reader(ours.fileno(), read)
    prober.start()
    await loop.run_in_executor(None, prober.join)
    loop.remove_reader(ours.fileno())
    ours.close()
    theirs.close()
    return ages


class Publisher:
    """The publishing process, from here."""

    def __init__(self, rate: float, seconds: float, pods: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        self._go = context.Event()
        self._process = context.Process(target=_publish, args=(there, self._go, rate, seconds, pods), daemon=True)
        self._process.start()

    async def ports(self) -> list[int]:
        """Where its pods publish, once it has prepared everything."""
        found: list[int] = await asyncio.get_running_loop().run_in_executor(None, self._pipe.recv)
        return found

    async def run(self) -> int:
        """Publish; gives the number of block events when all is sent."""
        self._go.set()
        sent: int = await asyncio.get_running_loop().run_in_executor(None, self._pipe.recv)
        return sent

    def stop(self) -> None:
        """End it."""
        self._pipe.send(None)
        self._process.join()


async def _unheard(rate: float, seconds: float, pods: int) -> list[float]:
    publisher = Publisher(rate, seconds, pods)
    await publisher.ports()
    _, ages = await asyncio.gather(publisher.run(), _ages(seconds))
    publisher.stop()
    return ages


async def _measure(rate: float, seconds: float, pods: int) -> dict[str, Any]:
    tame_garbage_collector()
    unheard = await _unheard(rate, seconds, pods)
    publisher = Publisher(rate, seconds, pods)
    ports = await publisher.ports()
    fleet = Fleet(Pod(f"http://pod-{number}:8000", Role.DECODE, up=True) for number in range(pods))
    async with PodClient(1.0) as client:
        parts = Parts(fleet, ConversationStore(10, 1e9), AlwaysLocal(), client, IdleObserver(), GatewaySettings())
        sources = {
            pod.url: EventSource(True, "zmq", f"tcp://127.0.0.1:{port}") for pod, port in zip(fleet, ports, strict=True)
        }
        subscriber = EventSubscriber(parts, sources)
        subscriber.start()
        await asyncio.sleep(0.5)
        cpu = time.process_time()
        sent, heard = await asyncio.gather(publisher.run(), _ages(seconds))
        views = [parts.residency.view(pod, 0) for pod in fleet]
        async with asyncio.timeout(60):
            while sum(view.blocks for view in views) < sent:  # noqa: ASYNC110 - nothing announces it
                await asyncio.sleep(0.01)
        cpu = time.process_time() - cpu
        publisher.stop()
        await subscriber.stop()
    return {
        "blocks": sent,
        "blocks_per_s": round(rate),
        "cpu_us_per_block": round(1e6 * cpu / sent, 2),
        "cpu_share": round(cpu / seconds, 3),
        "lost": sum(view.lost for view in views),
        "resident_blocks": sum(view.resident_blocks for view in views),
        "unheard_p50_ms": _percentile_ms(unheard, 0.5),
        "unheard_p99_ms": _percentile_ms(unheard, 0.99),
        "heard_p50_ms": _percentile_ms(heard, 0.5),
        "heard_p99_ms": _percentile_ms(heard, 0.99),
        "delay_p99_ms": round(_percentile_ms(heard, 0.99) - _percentile_ms(unheard, 0.99), 3),
    }


def _percentile_ms(values: list[float], share: float) -> float:
    return round(1e3 * sorted(values)[int(share * (len(values) - 1))], 3)


def measure_bytes(blocks: int) -> float:
    """Bytes per resident block of a tree under the same mix, measured by tracemalloc."""
    draw = random.Random(3)
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    tree = BlockTree()
    tails: dict[bytes, int] = {}
    sessions = [draw.randbytes(16) for _ in range(blocks // 100)]
    while len(tree) < blocks:
        session = draw.choice(sessions)
        fresh = [draw.getrandbits(60) for _ in range(PROMPT_BLOCKS if draw.random() < 0.08 else 1)]
        tree.stored(session, tails.get(session), fresh)
        tails[session] = fresh[-1]
    del tails, sessions
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return round((after - before) / len(tree), 1)


def add_command(commands: Any) -> None:
    """Mount the benchmark."""
    parser = commands.add_parser("residency", help="what listening to the pods' KV events costs")
    parser.add_argument("--rate", type=float, default=50_000.0, help="block events per second")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--pods", type=int, default=8)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.set_defaults(run=_run)


def _run(options: Any) -> int:
    found = uvloop.run(_measure(options.rate, options.seconds, options.pods))
    sizes = {str(blocks): measure_bytes(blocks) for blocks in (30_000, 100_000, 300_000)}
    found |= {"bytes_per_block": max(sizes.values()), "bytes_per_block_at": sizes}
    print(f"{found['blocks']:,} block events of {options.pods} pods at {options.rate:,.0f}/s, {found['lost']} gaps")
    share = found["cpu_share"]
    print(f"CPU of the gateway's process       {found['cpu_us_per_block']:8.2f} us per block, {share:.0%} of a core")
    for name, words in (("unheard", "nobody listening"), ("heard", "the gateway listening")):
        median, slow = found[f"{name}_p50_ms"], found[f"{name}_p99_ms"]
        print(f"other work waits, {words:22s} P50 {median:6.3f} ms, P99 {slow:6.3f} ms")
    print(f"added at P99                       {found['delay_p99_ms']:8.3f} ms (target {TARGETS['delay_p99_ms']:g})")
    print(f"bytes per resident block           {found['bytes_per_block']:8.1f} (target {TARGETS['bytes_per_block']:g})")
    if options.json:
        print(json.dumps(found))
    return 0
