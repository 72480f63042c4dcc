"""`python -m loadtest.virtual_profile -o DIR`: the raw files of the shipped table, one per node assignment.

Rule of this room: the grid and the pods of the shipped table are written here and nowhere else. Like `ppd-gateway
profile` it goes on where it was; the bytes written do not depend on how often it was interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

from gateway.ops.profile.book import Book, Identity
from gateway.ops.profile.campaign import carry_out
from gateway.ops.profile.errors import ProfileError
from gateway.ops.profile.measure import Limits, Measured
from gateway.ops.profile.plan import Plan, Task, grid
from loadtest.engine import profile as profiles
from loadtest.virtual_profile.bench import VirtualBench
from lut.assignment import Assignment, parse
from lut.errors import TableError
from lut.raw import RawPoint

PROFILE = "h100-llama3.1-8b"
MODEL = "Llama-3.1-8B"
MAX_MODEL_LEN = 140_000
IN_FLIGHT_PER_DECODE_POD = 256
ASSIGNMENTS = ("1P_3D", "2P_2D", "3P_1D", "1P_2D", "1P_1D")

PLAN = Plan(
    shapes=grid((256, 2048, 8192, 32_768, 131_072), (16, 128, 1024), (32, 256)),
    rates=(1.0, 4.0, 16.0, 32.0),
    samples=16,
    window_s=2.0,
    repeats=3,
    seed=1,
)


_SAID_EVERY = 100


class _Counter:
    """Says now and then how far one assignment is."""

    def __init__(self, name: str, total: int) -> None:
        self._name = name
        self._total = total
        self._done = 0

    def begins(self, task: Task) -> None: ...

    def done(self, task: Task, measured: Measured, line: RawPoint) -> None:
        self._count()

    def skipped(self, task: Task, *, known: bool) -> None:
        self._count()

    def _count(self) -> None:
        self._done += 1
        if self._done % _SAID_EVERY == 0 or self._done == self._total:
            print(f"{self._name}: {self._done}/{self._total}", flush=True)


def measure(assignment: Assignment, path: Path, plan: Plan = PLAN) -> None:
    """Measure one node assignment into a raw file."""
    profile = replace(profiles.load(PROFILE), max_model_len=MAX_MODEL_LEN)
    limits = Limits(IN_FLIGHT_PER_DECODE_POD * assignment.decode)
    identity = Identity(str(assignment), MODEL, profile.cache.block_size, simulated=True)
    with Book(path, identity) as book:
        bench = VirtualBench(profile, assignment, limits)
        counter = _Counter(str(assignment), plan.num_tasks)
        asyncio.run(carry_out(plan, bench, book, counter, lambda: None))


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.virtual_profile", description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="for the raw files")
    parser.add_argument("--assignments", default=",".join(ASSIGNMENTS), metavar="π,π")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="processes")
    options = parser.parse_args()
    assignments = [parse(name) for name in options.assignments.split(",")]
    wanted = [assignment for assignment in assignments if assignment is not None and min(assignment) > 0]
    if len(wanted) < len(assignments):
        parser.error(f"--assignments: {options.assignments!r} is not a list like 1P_3D,2P_2D")
    options.output.mkdir(parents=True, exist_ok=True)
    paths = [options.output / f"{assignment}.jsonl" for assignment in wanted]
    try:
        with ProcessPoolExecutor(options.jobs) as pool:
            list(pool.map(measure, wanted, paths))
    except (ProfileError, TableError) as error:
        print(f"loadtest.virtual_profile: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
