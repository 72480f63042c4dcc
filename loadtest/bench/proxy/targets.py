"""The proxies that are measured, and how each is started.

Rule of this room: every proxy stands before the same pods and is set up as its makers would, except that a peer gets
the cheapest routing policy it has: we compare with its best.
"""

from __future__ import annotations

import os
import socket
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest.bench.proxy import build
from loadtest.bench.proxy.processes import START_S, Process, ProcessError, Processes
from loadtest.bench.proxy.workloads import Workload
from loadtest.demo import leash
from loadtest.demo.children import clean_environment

ROUTER = ("vllm-router==0.1.17",)
FASTAPI = ("fastapi==0.165.0", "httpx==0.28.1", "uvicorn[standard]==0.54.0")

_PROBE = b'{"model":"mock","messages":[{"role":"user","content":"Are you there?"}],"max_tokens":1}'


@dataclass(frozen=True, slots=True)
class Pods:
    """Where the mocks listen."""

    prefill: int
    decode: int

    @property
    def urls(self) -> tuple[str, str]:
        return f"http://127.0.0.1:{self.prefill}", f"http://127.0.0.1:{self.decode}"


@dataclass(frozen=True, slots=True)
class Launched:
    """One that was started. port: where it will listen, or the pattern of the line in which it says so."""

    process: Process
    port: int | str


@dataclass(frozen=True, slots=True)
class Proxy:
    """One that runs; `process` is None where the client talks to the pod itself."""

    target: str
    port: int
    process: Process | None


Launch = Callable[[Processes, Pods], Launched]


@dataclass(frozen=True, slots=True)
class Target:
    """A proxy to measure.

    launch: start it; None for the pod itself. prepare: make what it needs, once; raises CannotBuildError. later_turns:
    it serves workloads of later turns, because it may send them straight to D.
    """

    name: str
    words: str
    launch: Launch | None
    prepare: Callable[[], object] = lambda: None
    later_turns: bool = False

    def serves(self, workload: Workload) -> bool:
        return self.later_turns or not workload.later_turn


def _leashed(python: str | Path, module: str, *arguments: str) -> list[str | Path]:
    """A module that ends with this process. In another environment the leash is a file, whose folder (-P) is no place
    to import from."""
    leashed = ("-m", leash.__name__) if python == sys.executable else ("-P", leash.__file__)
    return [python, *leashed, str(os.getpid()), module, *arguments]


def _ours(processes: Processes, pods: Pods) -> Launched:
    prefill, decode = pods.urls
    serve = ("serve", "--prefill", prefill, "--decode", decode, "--policy", "ppd", "--port", "0")
    command = _leashed(sys.executable, "gateway.ops.cli", *serve)
    process = processes.start("ours", command, clean_environment(os.environ))
    return Launched(process, r"ppd-gateway \S+ on http://127\.0\.0\.1:(\d+)")


def _floor(processes: Processes, pods: Pods) -> Launched:
    ports = ("--prefill", str(pods.prefill), "--decode", str(pods.decode))
    process = processes.start("floor", _leashed(sys.executable, "loadtest.bench.proxy.peers.floor", *ports))
    return Launched(process, r"^(\d+)$")


def _router(processes: Processes, pods: Pods) -> Launched:
    prefill, decode = pods.urls
    port = _free_port()
    command = _leashed(
        build.environment("vllm-router", ROUTER),
        "vllm_router.launch_router",
        *("--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(_free_port())),
        *("--vllm-pd-disaggregation", "--prefill", prefill, "--decode", decode, "--policy", "round_robin"),
    )
    return Launched(processes.start("vllm-router", command, clean_environment(os.environ)), port)


def _fastapi(processes: Processes, pods: Pods) -> Launched:
    prefill, decode = pods.urls
    peers = str(Path(__file__).resolve().parent / "peers")
    listen = ("--host", "127.0.0.1", "--port", "0", "--app-dir", peers)
    command = _leashed(build.environment("fastapi", FASTAPI), "uvicorn", *listen, "fastapi_proxy:app")
    env = {**os.environ, "PREFILL_URL": prefill, "DECODE_URL": decode, "PYTHONDONTWRITEBYTECODE": "1"}
    return Launched(processes.start("fastapi", command, env), r"running on http://127\.0\.0\.1:(\d+)")


DIRECT = Target("direct", "no proxy: the client asks the decode pod", None, later_turns=True)
TARGETS = (
    Target("ours", "ppd-gateway, policy ppd, metrics, access log to a file", _ours, later_turns=True),
    Target("floor", "a two-leg relay without features on asyncio.Protocol, httptools and uvloop", _floor),
    Target(
        "vllm-router", f"{ROUTER[0]} (Rust), round_robin", _router, lambda: build.environment("vllm-router", ROUTER)
    ),
    Target("fastapi", "a two-leg proxy on FastAPI and httpx", _fastapi, lambda: build.environment("fastapi", FASTAPI)),
)


def chosen(names: str) -> list[Target]:
    """Those named, comma-separated, less `direct`, which is always there. Raises ValueError."""
    by_name = {target.name: target for target in TARGETS}
    wanted = [name for name in dict.fromkeys(map(str.strip, names.split(","))) if name != "direct"]
    for name in wanted:
        if name not in by_name:
            raise ValueError(f"no target {name!r}; there are direct, {', '.join(by_name)}")
    return [by_name[name] for name in wanted]


def start_all(targets: Sequence[Target], processes: Processes, pods: Pods) -> list[Proxy]:
    """Start them beside each other and wait until each answers a small request. Raises ProcessError."""
    launched = [(target.name, target.launch(processes, pods) if target.launch else None) for target in targets]
    proxies = []
    for name, one in launched:
        if one is None:
            proxies.append(Proxy(name, pods.decode, None))
        else:
            port = one.port if isinstance(one.port, int) else one.process.await_port(one.port)
            proxies.append(Proxy(name, port, one.process))
    for proxy in proxies:
        _await_ready(proxy)
    return proxies


def _await_ready(proxy: Proxy) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{proxy.port}/v1/chat/completions", _PROBE, {"Content-Type": "application/json"}
    )
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if proxy.process is not None:
            proxy.process.check()
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            pass
        time.sleep(0.05)
    said = proxy.process.last_words() if proxy.process is not None else ""
    raise ProcessError(f"{proxy.target} did not answer within {START_S:g} s\n{said}")


def _free_port() -> int:
    """For a program that cannot be told to let the kernel choose."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
