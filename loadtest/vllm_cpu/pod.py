"""One pod: a process group that serves HTTP.

Rule of this room: a pod keeps its spec (and so its ports) for life; its processes come and go.
"""

from __future__ import annotations

import subprocess
import time
from collections import deque
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

from loadtest.vllm_cpu import processes
from loadtest.vllm_cpu.environment import Report, clean_environment
from loadtest.vllm_cpu.errors import PodError
from loadtest.vllm_cpu.layout import Layout
from loadtest.vllm_cpu.processes import Leader
from loadtest.vllm_cpu.spec import PodSpec, Role

START_SECONDS = 300.0
STOP_SECONDS = 15.0
HEALTH_SECONDS = 5.0
POLL_SECONDS = 0.25
HEARTBEAT_SECONDS = 15.0
LOG_LINES_SHOWN = 30

_direct = build_opener(ProxyHandler({}))


class Pod:
    """A pod as tests and the command line handle it. `changed` is called when its processes changed."""

    def __init__(
        self,
        spec: PodSpec,
        layout: Layout,
        log: Path,
        changed: Callable[[], None],
        leader: Leader | None = None,
    ) -> None:
        self.spec = spec
        self.log = log
        self.leader = leader
        self._layout = layout
        self._changed = changed
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def role(self) -> Role:
        return self.spec.role

    @property
    def url(self) -> str:
        return self.spec.url

    @property
    def pid(self) -> int | None:
        """The API server's process number, also its group's; None when the pod is down."""
        return self.leader.pid if self.leader else None

    @property
    def command(self) -> list[str]:
        return self.spec.command(self._layout)

    @property
    def variables(self) -> dict[str, str]:
        return self.spec.variables(self._layout)

    def spawn(self) -> None:
        """Start the processes and return at once; the log is appended to."""
        self.kill()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=clean_environment() | self.variables,
                cwd=self.log.parent,
                start_new_session=True,
            )
        self.leader = Leader.of(self._process.pid)
        self._changed()

    def alive(self) -> bool:
        """True while the API server process runs, healthy or not."""
        return self.leader is not None and processes.leads(self.leader)

    def healthy(self) -> bool:
        """True when `GET /health` answers 200 within some seconds."""
        try:
            with _direct.open(f"{self.url}/health", timeout=HEALTH_SECONDS) as answer:
                return bool(answer.status == 200)
        except (OSError, HTTPException):
            return False

    def resident_bytes(self) -> int:
        """Resident memory of all its processes, shared pages counted once per process."""
        return processes.resident_bytes(self.leader) if self.leader else 0

    def kill(self) -> None:
        """SIGKILL to all its processes at once, as when a node dies; nothing when it is down."""
        if self.leader is not None:
            processes.kill(self.leader)
            self._gone()

    def request_stop(self) -> None:
        """SIGTERM, without waiting."""
        if self.leader is not None:
            processes.terminate(self.leader)

    def stop(self, grace_seconds: float = STOP_SECONDS) -> None:
        """SIGTERM first, SIGKILL to what is left."""
        if self.leader is not None:
            processes.stop(self.leader, grace_seconds)
            self._gone()

    def restart(self, timeout_seconds: float = START_SECONDS) -> None:
        """A new process on the same ports, returned when healthy; `PodError` when it does not get there."""
        self.spawn()
        wait_until_healthy([self], timeout_seconds, report=lambda line: None)

    def failure(self, what: str) -> PodError:
        return PodError(f"{self.name} {what}; the end of {self.log}:\n{self.log_tail()}")

    def log_tail(self, lines: int = LOG_LINES_SHOWN) -> str:
        with self.log.open(encoding="utf-8", errors="replace") as log:
            return "".join(deque(log, maxlen=lines)).rstrip()

    def _gone(self) -> None:
        if self._process is not None:
            self._process.wait()
            self._process = None
        self.leader = None
        self._changed()


def start_pods(pods: list[Pod], at_once: int, timeout_seconds: float, report: Report) -> None:
    """Spawn all pods, at most `at_once` of them unhealthy at a time; return when all are healthy."""
    waiting = deque(pods)
    starting: dict[Pod, float] = {}
    last_report = time.monotonic()
    while waiting or starting:
        while waiting and len(starting) < at_once:
            pod = waiting.popleft()
            pod.spawn()
            starting[pod] = time.monotonic()
            report(f"{pod.name}: started, pid {pod.pid}, log {pod.log}")
        time.sleep(POLL_SECONDS)
        _settle(starting, timeout_seconds, report)
        if time.monotonic() - last_report > HEARTBEAT_SECONDS:
            last_report = time.monotonic()
            for pod, began in starting.items():
                report(f"{pod.name}: not healthy yet, {last_report - began:.0f} s")


def wait_until_healthy(pods: list[Pod], timeout_seconds: float, report: Report) -> None:
    """Return when all are healthy; `PodError` when one ends or is not healthy in time."""
    starting = dict.fromkeys(pods, time.monotonic())
    while starting:
        _settle(starting, timeout_seconds, report)
        time.sleep(POLL_SECONDS)


def _settle(starting: dict[Pod, float], timeout_seconds: float, report: Report) -> None:
    """Take the healthy pods out of `starting` (pod and its start time)."""
    for pod, began in list(starting.items()):
        seconds = time.monotonic() - began
        if pod.healthy():
            report(f"{pod.name}: healthy after {seconds:.0f} s at {pod.url}")
            del starting[pod]
        elif not pod.alive():
            raise pod.failure(f"ended after {seconds:.0f} s")
        elif seconds > timeout_seconds:
            raise pod.failure(f"is not healthy after {seconds:.0f} s")
