"""Measuring: one workload at a time, the proxies in turn, round after round.

Rule of this room: proxies that are compared stand before the same pods in the same minutes (A B C, A B C, ...), because
the machine is never as quiet as one would like; figures of different runs are not compared.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.bench.proxy.build import Tools
from loadtest.bench.proxy.processes import ProcessError, Processes, use_of
from loadtest.bench.proxy.targets import Pods, Proxy, Target, start_all
from loadtest.bench.proxy.workloads import Workload

_SETTLE_S = 0.1
"""After the last answer: a proxy may still write its log."""

_NUMBERS_APART = 1_000_000
_LATER_TURNS_PER_S = 300
_DRAIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured. requests: exactly so many each time, instead of `seconds`."""

    rounds: int = 3
    seconds: float = 3.0
    warmup_s: float = 0.5
    requests: int | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One proxy, one workload, one round.

    Times in ms: of the first byte, between reads, of the whole. cpu_us: of the proxy's process tree. done: answered,
    well or not. errors: by kind. prefills, decodes: chat requests that reached the pods.
    """

    target: str
    workload: str
    seconds: float
    requests: int
    ok: int
    errors: dict[str, int]
    events: int
    reads: int
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    gap_p50_ms: float | None
    gap_p99_ms: float | None
    cpu_us: float
    system_us: float
    rss_mb: float
    prefills: int
    decodes: int

    @property
    def done(self) -> int:
        return self.requests - self.errors["unfinished"]

    @property
    def failed(self) -> int:
        return sum(self.errors.values())


class Bench:
    """Runs workloads. tell: takes a line for people now and then."""

    def __init__(self, tools: Tools, effort: Effort, tell: Callable[[str], None]) -> None:
        self._tools = tools
        self._effort = effort
        self._tell = tell

    def run(self, workload: Workload, targets: Sequence[Target]) -> list[Sample]:
        """Start pods and proxies, measure, end them. Raises ProcessError."""
        with tempfile.TemporaryDirectory(prefix="ppd-bench-") as name, Processes(Path(name)) as processes:
            folder = Path(name)
            (folder / "body").write_bytes(workload.body())
            if workload.later_turn:
                (folder / "first").write_bytes(workload.first_turn())
            pods = Pods(self._mock(processes, "prefill", 0), self._mock(processes, "decode", workload.gap_us))
            proxies = start_all([target for target in targets if target.serves(workload)], processes, pods)
            one = _One(self._tools, self._effort, workload, pods, folder)
            if self._effort.warmup_s > 0:
                for proxy in proxies:
                    one.warm_up(proxy)
            samples = []
            for number in range(self._effort.rounds):
                for proxy in proxies:
                    self._tell(f"{workload.name}, round {number + 1} of {self._effort.rounds}: {proxy.target}")
                    samples.append(one.measure(proxy))
            return samples

    def _mock(self, processes: Processes, name: str, gap_us: int) -> int:
        return processes.start(name, [self._tools.mock, "--gap-us", str(gap_us)]).await_port(r"^(\d+)$")


class _One:
    """Measures proxies under one workload."""

    def __init__(self, tools: Tools, effort: Effort, workload: Workload, pods: Pods, folder: Path) -> None:
        self._tools = tools
        self._effort = effort
        self._workload = workload
        self._pods = pods
        self._folder = folder
        self._number = 0

    def warm_up(self, proxy: Proxy) -> None:
        """Open the connections and let everything happen once that happens once."""
        seconds = max(self._effort.warmup_s, self._workload.duration_ms / 1e3)
        if self._workload.later_turn:
            self._first_turns(proxy, self._workload.at_once)
        self._load(proxy, "body", ["--seconds", str(seconds)], self._workload.events)
        self._number += _NUMBERS_APART

    def measure(self, proxy: Proxy) -> Sample:
        """Raises ProcessError when the proxy has ended."""
        effort, workload = self._effort, self._workload
        amount = ["--seconds", str(effort.seconds)]
        if workload.later_turn:
            count = effort.requests or int(_LATER_TURNS_PER_S * effort.seconds)
            self._first_turns(proxy, count)
            amount = ["--requests", str(count)]
        elif effort.requests is not None:
            amount = ["--requests", str(effort.requests)]
        if effort.requests is None:
            amount += ["--ramp-ms", str(workload.duration_ms)]
        seen = self._counts()
        before = use_of(proxy.process.popen.pid) if proxy.process is not None else None
        found = self._load(proxy, "body", amount, workload.events)
        time.sleep(_SETTLE_S)
        after = use_of(proxy.process.popen.pid) if proxy.process is not None else None
        prefills, decodes = (now - then for now, then in zip(self._counts(), seen, strict=True))
        self._number += _NUMBERS_APART
        if proxy.process is not None:
            proxy.process.check()
        return Sample(
            target=proxy.target,
            workload=workload.name,
            seconds=found["seconds"],
            requests=found["requests"],
            ok=found["ok"],
            errors={kind: found[kind] for kind in ("wrong_status", "incomplete", "broken", "unfinished")},
            events=found["events"],
            reads=found["reads"],
            ttft_p50_ms=found["ttft_p50"],
            ttft_p99_ms=found["ttft_p99"],
            gap_p50_ms=found["gap_p50"],
            gap_p99_ms=found["gap_p99"],
            cpu_us=1e6 * (after.cpu_s - before.cpu_s) if before and after else 0.0,
            system_us=1e6 * (after.system_s - before.system_s) if before and after else 0.0,
            rss_mb=after.rss_bytes / 2**20 if after else 0.0,
            prefills=prefills,
            decodes=decodes,
        )

    def _first_turns(self, proxy: Proxy, count: int) -> None:
        self._load(proxy, "first", ["--requests", str(count)], 0)

    def _load(self, proxy: Proxy, body: str, amount: Sequence[str], events: int) -> dict[str, Any]:
        limit = self._effort.requests
        at_once = self._workload.at_once if limit is None else min(limit, self._workload.at_once)
        command = [
            *(str(self._tools.load), "--port", str(proxy.port), "--body", str(self._folder / body)),
            *("--concurrency", str(at_once), "--first", str(self._number), "--events", str(events)),
            *("--drain-s", str(_DRAIN_S), *amount),
        ]
        within_s = self._effort.seconds + self._effort.warmup_s + _DRAIN_S + 30
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
            try:
                output, errors = running.communicate(timeout=within_s)
            except subprocess.TimeoutExpired:
                raise ProcessError(f"{proxy.target}: the load client came to no end in {within_s:g} s") from None
            finally:
                running.kill()
                running.wait()
        if running.returncode:
            raise ProcessError(f"{proxy.target}: the load client failed: {errors.strip()}")
        found: dict[str, Any] = json.loads(output)
        return found

    def _counts(self) -> tuple[int, int]:
        return _chats_at(self._pods.prefill), _chats_at(self._pods.decode)


def _chats_at(port: int) -> int:
    """Chat requests that a mock has seen; what a gateway asks of its own accord are completions."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        found = re.search(rb"^mock_chats (\d+)$", answer.read(), re.MULTILINE)
    assert found is not None
    return int(found[1])
