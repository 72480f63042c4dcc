"""What an open table costs in memory, read from /proc/PID/smaps.

Rule of this room: each measurement happens in a fresh process, so that nothing else's pages are counted.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_OPEN = """
import json, sys, time
from pathlib import Path
from lut.table import TableSet
from loadtest.bench.pages import smaps
before = smaps("self", "")
times = []
for _ in range(20):
    began = time.perf_counter()
    tables = TableSet.open(Path(sys.argv[1]))
    times.append(time.perf_counter() - began)
after = smaps("self", "")
began = time.perf_counter()
tables.verify()
verify = time.perf_counter() - began
print(json.dumps([1e3 * sorted(times)[len(times) // 2], 1e3 * verify, after["private_kib"] - before["private_kib"]]))
"""
_HOLD = """
import sys
from pathlib import Path
from lut.table import TableSet
tables = TableSet.open(Path(sys.argv[1]))
touched = [float(table.data.sum()) for table in tables.tables.values()]
print("ready", flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True, slots=True)
class Opening:
    """One process opening a set: median milliseconds, milliseconds to check every byte, private memory in KiB."""

    open_ms: float
    verify_ms: float
    private_kib: float


@dataclass(frozen=True, slots=True)
class SharedPages:
    """Several processes that have read the whole table.

    Per process, in KiB: rss of the mapping, pss (its fair share of it) and what of it is private.
    """

    processes: int
    rss_kib: tuple[float, ...]
    pss_kib: tuple[float, ...]
    private_kib: tuple[float, ...]

    def for_people(self) -> str:
        """One line."""
        return (
            f"  {self.processes} processes map the table: each sees {_mean(self.rss_kib) / 1024:.1f} MiB of it, "
            f"pays {_mean(self.pss_kib) / 1024:.1f} MiB (PSS), {_mean(self.private_kib):.0f} KiB are private"
        )

    def for_json(self) -> dict[str, float]:
        """Means per process."""
        return {
            "shared_processes": self.processes,
            "shared_rss_kib": _mean(self.rss_kib),
            "shared_pss_kib": _mean(self.pss_kib),
            "shared_private_kib": _mean(self.private_kib),
        }


def smaps(process: int | str, name: str) -> dict[str, float]:
    """Sums over the mappings whose line holds `name`, in KiB: rss_kib, pss_kib, private_kib."""
    sums = {"rss_kib": 0.0, "pss_kib": 0.0, "private_kib": 0.0}
    counted = False
    for line in Path(f"/proc/{process}/smaps").read_text().splitlines():
        label, _, rest = line.partition(" ")
        if not label.endswith(":"):
            counted = name in line
        elif counted and label in ("Rss:", "Pss:"):
            sums[label[:3].lower() + "_kib"] += float(rest.split()[0])
        elif counted and label in ("Private_Clean:", "Private_Dirty:"):
            sums["private_kib"] += float(rest.split()[0])
    return sums


def measure_open(directory: Path) -> Opening:
    """Open the set in a fresh process."""
    done = subprocess.run([sys.executable, "-c", _OPEN, str(directory)], check=True, capture_output=True, text=True)
    return Opening(*json.loads(done.stdout))


def measure_sharing(directory: Path, processes: int) -> SharedPages:
    """Let several processes read the whole set and look at who pays for its pages."""
    command = [sys.executable, "-c", _HOLD, str(directory)]
    running = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(processes)
    ]
    try:
        for process in running:
            if process.stdout is None or process.stdout.readline() != "ready\n":
                raise RuntimeError("a process could not read the table set")
        seen = [smaps(process.pid, ".npy") for process in running]
    finally:
        for process in running:
            process.communicate()
    return SharedPages(
        processes,
        tuple(each["rss_kib"] for each in seen),
        tuple(each["pss_kib"] for each in seen),
        tuple(each["private_kib"] for each in seen),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
