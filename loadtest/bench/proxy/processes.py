"""Processes: start them, see what they use, end them.

Rule of this room: what was started within a `with` is gone at its end, whatever happened. Every process leads a session
of its own, so that it ends with its children and Ctrl-C reaches this process only; should this process be killed, the
kernel ends them (`common.h`, `loadtest.demo.leash`).
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

START_S = 60.0

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_LAST_BYTES = 2000


class ProcessError(Exception):
    """A process did not start, or ended by itself."""


@dataclass(frozen=True, slots=True)
class Process:
    """One that runs. log: what it says, on both outputs."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path

    def check(self) -> None:
        """Raise ProcessError if it has ended."""
        status = self.popen.poll()
        if status is not None:
            raise ProcessError(f"{self.name} ended with status {status}\n{self.last_words()}")

    def last_words(self) -> str:
        return self.log.read_bytes()[-_LAST_BYTES:].decode(errors="replace").strip()

    def await_port(self, pattern: str) -> int:
        """The port it says it listens on: the first group of the pattern."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if found := re.search(pattern, self.log.read_text(errors="replace"), re.MULTILINE):
                return int(found[1])
            self.check()
            time.sleep(0.02)
        raise ProcessError(f"{self.name} did not listen within {START_S:g} s\n{self.last_words()}")


class Processes:
    """All that are started within one `with`. folder: takes their logs. grace_s: from SIGTERM to SIGKILL."""

    def __init__(self, folder: Path, grace_s: float = 5.0) -> None:
        self._folder = folder
        self._grace_s = grace_s
        self._all: list[Process] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in self._all:
            _signal(process, signal.SIGTERM)
        deadline = time.monotonic() + self._grace_s
        for process in self._all:
            with suppress(subprocess.TimeoutExpired):
                process.popen.wait(max(0.0, deadline - time.monotonic()))
            _signal(process, signal.SIGKILL)
            process.popen.wait()

    def start(self, name: str, command: Sequence[str | Path], env: Mapping[str, str] | None = None) -> Process:
        """Start a command."""
        log = self._folder / f"{name}.{len(self._all)}.log"
        with log.open("wb") as out:
            popen = subprocess.Popen(
                list(map(str, command)),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,
            )
        process = Process(name, popen, log)
        self._all.append(process)
        return process


def _signal(process: Process, number: signal.Signals) -> None:
    """To the process and its children; the group outlives a leader that has ended."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.popen.pid, number)


@dataclass(frozen=True, slots=True)
class Use:
    """What a process tree has used since it was started: CPU seconds, of ended children too, and what it holds."""

    user_s: float
    system_s: float
    rss_bytes: int

    @property
    def cpu_s(self) -> float:
        return self.user_s + self.system_s


def use_of(root: int) -> Use:
    """Read it from /proc."""
    stats = _stats()
    children: dict[int, list[int]] = {}
    for process, fields in stats.items():
        children.setdefault(int(fields[1]), []).append(process)
    tree, user, system, pages = [root], 0, 0, 0
    for process in tree:
        tree += children.get(process, [])
        if process in stats:
            # Fields 14 to 17 and 24 of proc_pid_stat(5); the list begins with field 3.
            own_user, own_system, childrens_user, childrens_system = map(int, stats[process][11:15])
            user += own_user + childrens_user
            system += own_system + childrens_system
            pages += int(stats[process][21])
    return Use(user / _TICKS, system / _TICKS, pages * _PAGE)


def _stats() -> dict[int, list[str]]:
    found = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(OSError):
                text = Path(entry.path, "stat").read_text()
                found[int(entry.name)] = text.rpartition(")")[2].split()
    return found
