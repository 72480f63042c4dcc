"""What idle connections cost: memory, the time of new requests beside them, and whether they are cut in time.

Rule of this room: as many connections as were asked for, or the benchmark says why not. One process may have no more
file descriptors than its hard limit (`ulimit -Hn`); where that is too few for one gateway, several share them out, each
full to its limit. The clients are processes of their own, one address of 127.0.0.0/8 each.
"""

from __future__ import annotations

import json
import math
import os
import re
import resource
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loadtest.bench import idlers
from loadtest.bench.proxy.processes import START_S, Process, ProcessError, Processes, use_of
from loadtest.demo import leash
from loadtest.demo.children import clean_environment

SPARE = 300
"""File descriptors that a gateway keeps for pods, files and new clients."""

LISTENS = r"ppd-gateway \S+ on http://127\.0\.0\.1:(\d+)"
POD = r"^http://127\.0\.0\.1:(\d+)"
REQUESTS = 200


@dataclass(frozen=True, slots=True)
class Idle:
    """What was seen. Times of requests in milliseconds, over REQUESTS of them, on one of the gateways.

    kib_each: resident memory of the gateways per connection. idle_cpu: share of a core that they need while nothing
    happens. cut_first_s, cut_last_s: shortest and longest time from the question of a connection to its end.
    """

    connections: int
    gateways: int
    limit: int
    open_s: float
    kib_each: float
    idle_cpu: float
    before_p50_ms: float
    before_p99_ms: float
    beside_p50_ms: float
    beside_p99_ms: float
    idle_s: float
    cut_first_s: float
    cut_last_s: float


def measure(connections: int, idle_s: float, folder: Path, say: Callable[[str], None] = lambda line: None) -> Idle:
    """Run it all. idle_s: the gateways' setting; longer than it takes to open so many. Raises ProcessError."""
    limit = idlers.raise_limit()
    gateways = math.ceil(connections / (limit - SPARE))
    shares = [connections // gateways + (number < connections % gateways) for number in range(gateways)]
    say(f"{connections} connections, {gateways} gateway(s): one process may have {limit} file descriptors")
    with Processes(folder) as processes:
        pod = _start(processes, "pod", "loadtest.pod", "--role", "decode", "--profile", "instant")
        pod_url = f"http://127.0.0.1:{pod.await_port(POD)}"
        flags = ("--decode", pod_url, "--port", "0", "--limits-idle-s", str(idle_s))
        serving = [_start(processes, "gateway", "gateway.ops.cli", "serve", *flags) for _ in shares]
        ports = [gateway.await_port(LISTENS) for gateway in serving]
        for port in ports:
            _until_ready(port)
        before = _times_ms(ports[0])
        empty = [use_of(gateway.popen.pid).rss_bytes for gateway in serving]
        clients = [
            _start(processes, "clients", "loadtest.bench.idlers", str(port), str(share), f"127.0.{number + 1}.1")
            for number, (port, share) in enumerate(zip(ports, shares, strict=True))
        ]
        opened = [_say_of(client, r"^open \d+ ([\d.]+)$", START_S * 10) for client in clients]
        full = [use_of(gateway.popen.pid).rss_bytes for gateway in serving]
        say(f"open after {max(float(each[0]) for each in opened):.1f} s")
        cpu_before, at = sum(use_of(gateway.popen.pid).cpu_s for gateway in serving), time.monotonic()
        time.sleep(min(5.0, idle_s / 4))
        idle_cpu = (sum(use_of(gateway.popen.pid).cpu_s for gateway in serving) - cpu_before) / (time.monotonic() - at)
        beside = _times_ms(ports[0])
        say(f"now they are left alone, to be cut after {idle_s:g} s")
        cut = [_say_of(client, r"^closed \d+ ([\d.]+) ([\d.]+)$", idle_s + 120) for client in clients]
        for port in ports:
            _until_ready(port)
    return Idle(
        connections=connections,
        gateways=gateways,
        limit=limit,
        open_s=max(float(each[0]) for each in opened),
        kib_each=(sum(full) - sum(empty)) / connections / 1024,
        idle_cpu=idle_cpu,
        before_p50_ms=statistics.median(before),
        before_p99_ms=_p99(before),
        beside_p50_ms=statistics.median(beside),
        beside_p99_ms=_p99(beside),
        idle_s=idle_s,
        cut_first_s=min(float(each[0]) for each in cut),
        cut_last_s=max(float(each[1]) for each in cut),
    )


def _start(processes: Processes, name: str, module: str, *arguments: str) -> Process:
    """A module in a process that ends with this one, with all the file descriptors that it may have."""
    command = [sys.executable, "-m", leash.__name__, str(os.getpid()), module, *arguments]
    return processes.start(name, command, clean_environment(os.environ))


def _say_of(process: Process, pattern: str, limit_s: float) -> tuple[str, ...]:
    """The groups of the line that a process is to say."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if found := re.search(pattern, process.log.read_text(errors="replace"), re.MULTILINE):
            return found.groups()
        if process.popen.poll() not in (None, 0):
            process.check()
        time.sleep(0.05)
    raise ProcessError(f"{process.name} did not say {pattern!r} within {limit_s:g} s\n{process.last_words()}")


def _until_ready(port: int) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _times_ms(port: int) -> list[float]:
    """The times of some requests, each on a new connection."""
    body = json.dumps({"model": "sim", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}).encode()
    headers = {"Content-Type": "application/json"}
    times = []
    for _ in range(REQUESTS):
        request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", body, headers)
        began = time.perf_counter()
        with urllib.request.urlopen(request, timeout=30) as answer:
            answer.read()
        times.append(1e3 * (time.perf_counter() - began))
    return times


def _p99(times: list[float]) -> float:
    return sorted(times)[math.ceil(0.99 * len(times)) - 1]


def add_command(commands: Any) -> None:
    """Mount the benchmark."""
    parser = commands.add_parser("idle", help="what idle client connections cost")
    parser.add_argument("--connections", type=int, default=100_000)
    parser.add_argument("--idle-s", type=float, default=180.0, help="limits.idle_s; longer than opening takes")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.set_defaults(run=_run)


def _run(options: Any) -> int:
    with tempfile.TemporaryDirectory(prefix="idle-") as folder:
        try:
            seen = measure(options.connections, options.idle_s, Path(folder), print)
        except ProcessError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    print(f"memory        {seen.kib_each:.1f} KiB per connection, of the gateway")
    print(f"CPU, idle     {100 * seen.idle_cpu:.1f} % of a core")
    print(f"new requests  P50 {seen.beside_p50_ms:.1f} ms, P99 {seen.beside_p99_ms:.1f} ms", end="")
    print(f" (without: {seen.before_p50_ms:.1f}, {seen.before_p99_ms:.1f})")
    print(f"cut           {seen.cut_first_s:.1f} to {seen.cut_last_s:.1f} s after its question, of {seen.idle_s:g} s")
    if options.json:
        print(json.dumps(asdict(seen)))
    return 0


def most_of(share: float) -> int:
    """So many connections as fit a share of one process's file descriptors."""
    return int((resource.getrlimit(resource.RLIMIT_NOFILE)[1] - SPARE) * share)
