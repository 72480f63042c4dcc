"""Whole process groups: who is in one, and ending all of it.

Rule of this room: works on numbers read from /proc, so that a pod started by one command line can be
stopped by another. A zombie counts as gone.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

POLL_SECONDS = 0.05
PROC = Path("/proc")


@dataclass(frozen=True)
class Leader:
    """A process that leads its own session and group; `started` (clock ticks since boot) tells it
    from a later process with the same number."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Leader:
        """Raises `ProcessLookupError` when there is no such process."""
        fields = _stat(pid)
        if fields is None:
            raise ProcessLookupError(pid)
        return cls(pid, fields.started)


@dataclass(frozen=True)
class _Stat:
    state: str
    group: int
    started: int
    resident_bytes: int


def _stat(pid: int) -> _Stat | None:
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    return _Stat(fields[0], int(fields[2]), int(fields[19]), int(fields[21]) * os.sysconf("SC_PAGE_SIZE"))


def _living(leader: Leader) -> Iterator[tuple[int, _Stat]]:
    own = _stat(leader.pid)
    if own is not None and own.started != leader.started:
        return
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            stat = _stat(int(entry.name))
            if stat is not None and stat.group == leader.pid and stat.state not in "ZX":
                yield int(entry.name), stat


def members(leader: Leader) -> list[int]:
    """Process numbers alive in the group, the leader's own among them if it lives."""
    return [pid for pid, _ in _living(leader)]


def resident_bytes(leader: Leader) -> int:
    """Sum of the group's resident memory; pages shared between its processes count twice."""
    return sum(stat.resident_bytes for _, stat in _living(leader))


def leads(leader: Leader) -> bool:
    """True while the leader itself runs."""
    return leader.pid in members(leader)


def kill(leader: Leader, wait_seconds: float = 10.0) -> None:
    """SIGKILL to the whole group; returns when it is gone."""
    _signal(leader, signal.SIGKILL)
    if not _gone_within(leader, wait_seconds):
        raise TimeoutError(f"processes {members(leader)} survive SIGKILL")


def terminate(leader: Leader) -> None:
    """SIGTERM to the leader, which ends its children; does not wait."""
    if leads(leader):
        os.kill(leader.pid, signal.SIGTERM)


def stop(leader: Leader, grace_seconds: float) -> None:
    """`terminate`, then SIGKILL to the group for what is left after `grace_seconds`."""
    terminate(leader)
    if leads(leader):
        _gone_within(leader, grace_seconds)
    kill(leader)


def _signal(leader: Leader, number: signal.Signals) -> None:
    if members(leader):
        try:
            os.killpg(leader.pid, number)
        except ProcessLookupError:
            return


def _gone_within(leader: Leader, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while members(leader):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True
