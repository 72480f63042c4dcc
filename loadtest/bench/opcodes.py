"""How many steps of the interpreter a request takes in the gateway, by file.

Rule of this room: it counts, it does not time, so that the figures are the same on a busy machine. What C does behind a
step is not in them. The gateway runs as `ppd-gateway serve` would run it, in this process; pods and client are the
programs of the proxy's benchmark, one request after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import uvloop

from gateway.core.pods import Role
from gateway.ops.config import Config, load
from gateway.ops.logs import AccessWriter
from gateway.ops.serve import Running, running
from loadtest.bench.proxy import build, workloads
from loadtest.bench.proxy.processes import ProcessError, Processes
from loadtest.bench.proxy.workloads import Workload

ROOT = Path(__file__).resolve().parents[2]
WARM_REQUESTS = 30
PACE_US = 500
"""Between two events, at most: far enough apart to be one read each, nearly always."""

READY_S = 30.0
OTHERS = "others"


@dataclass(frozen=True, slots=True)
class Steps:
    """Of one request, on average: opcodes and calls of Python functions (a coroutine that goes on is a call), in all
    and by file; files that are not the gateway's are one."""

    opcodes: float
    calls: float
    by_file: dict[str, tuple[float, float]]


class Counting:
    """Counts what this thread does between `start` and `stop`."""

    def __init__(self) -> None:
        self.opcodes: Counter[CodeType] = Counter()
        self.calls: Counter[CodeType] = Counter()

    def start(self) -> None:
        """From the next call on."""
        sys.settrace(self._call)

    def stop(self, requests: int) -> Steps:
        """What it came to per request."""
        sys.settrace(None)
        files: dict[str, tuple[float, float]] = {}
        for code, opcodes in self.opcodes.items():
            path = Path(code.co_filename)
            name = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT / "gateway") else OTHERS
            before = files.get(name, (0.0, 0.0))
            files[name] = before[0] + opcodes / requests, before[1] + self.calls[code] / requests
        ordered = dict(sorted(files.items(), key=lambda item: -item[1][0]))
        return Steps(self.opcodes.total() / requests, self.calls.total() / requests, ordered)

    def _call(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
        self.calls[frame.f_code] += 1
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
        if event == "opcode":
            self.opcodes[frame.f_code] += 1
        return self._step


def add_command(commands: Any) -> None:
    """Mount the benchmark."""
    parser = commands.add_parser("opcodes", help="steps of the interpreter per request: the same on a busy machine")
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--policy", default="ppd")
    parser.add_argument("--files", type=int, default=20, help="how many to show")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    found = {}
    logging.disable(logging.WARNING)
    try:
        for name in ("W1", "W3-200"):
            found[name] = measure(workloads.chosen(name)[0], options.requests, options.policy)
    except (build.CannotBuildError, ProcessError) as error:
        print(f"bench opcodes: {error}", file=sys.stderr)
        return 2
    for name, steps in found.items():
        print(f"{name}: {steps.opcodes:,.0f} opcodes and {steps.calls:,.0f} calls per request")
        for file, (opcodes, calls) in list(steps.by_file.items())[: options.files]:
            print(f"  {opcodes:8.0f} {calls:6.1f}  {file}")
    if options.json:
        rows = {name: {"opcodes": steps.opcodes, "calls": steps.calls} for name, steps in found.items()}
        print(json.dumps({"python": sys.version.split()[0], "requests": options.requests, **rows}))
    return 0


def measure(workload: Workload, requests: int, policy: str = "ppd") -> Steps:
    """Raises CannotBuildError without a C compiler, ProcessError where a pod or the client fails."""
    tools = build.tools()
    with tempfile.TemporaryDirectory(prefix="ppd-opcodes-") as name, Processes(Path(name)) as processes:
        body = Path(name, "body")
        body.write_bytes(workload.body())
        pace = ["--gap-us", str(min(workload.gap_us, PACE_US))]
        ports = [processes.start(role, [tools.mock, *pace]).await_port(r"^(\d+)$") for role in ("prefill", "decode")]
        prefill, decode = (f"http://127.0.0.1:{port}" for port in ports)
        flags = {"prefill": [prefill], "decode": [decode], "policy": policy, "port": 0, "health.interval_s": 60.0}
        answer = ["--events", str(workload.events)] if workload.stream else ["--expect", "token"]
        ask = [str(tools.load), "--body", str(body), *answer]
        with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
            config, access = load(None, {}, flags), AccessWriter(nowhere)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(_measure(config, access, ask, requests))


async def _measure(config: Config, access: AccessWriter, ask: list[str], requests: int) -> Steps:
    async with running(config, access=access) as gateway:
        await _ready(gateway)
        ask = [*ask, "--port", gateway.url.rpartition(":")[2]]
        await _ask(ask, 0, WARM_REQUESTS)
        counting = Counting()
        counting.start()
        try:
            await _ask(ask, WARM_REQUESTS, requests)
        finally:
            steps = counting.stop(requests)
        return steps


async def _ready(gateway: Running) -> None:
    fleet = gateway.gateway.parts.fleet
    async with asyncio.timeout(READY_S):
        while not (fleet.up(Role.PREFILL) and fleet.up(Role.DECODE)):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def _ask(command: list[str], first: int, requests: int) -> None:
    numbers = ["--first", str(first), "--requests", str(requests)]
    client = await asyncio.create_subprocess_exec(*command, *numbers, stdout=asyncio.subprocess.PIPE)
    out, _ = await client.communicate()
    said = json.loads(out or b"{}")
    if client.returncode or said.get("ok") != requests:
        raise ProcessError(f"the client ended with status {client.returncode} and said {said}")
