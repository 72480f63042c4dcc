"""The raw file of one profiling: what is in it already, and what is written to it.

Rule of this room: append only, a line per cell, arm and repeat. A file belongs to one node assignment of one model.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from gateway.ops.profile.errors import ProfileError
from gateway.ops.profile.measure import Measured
from gateway.ops.profile.plan import Column, Task
from lut.cell import Route
from lut.raw import RawPoint, RawWriter, read_raw

Key = tuple[Route, int, int, int, float, int]


@dataclass(frozen=True, slots=True)
class Identity:
    """What all lines of a file share."""

    assignment: str
    model: str
    block_size: int | None
    simulated: bool


class Book:
    """`with Book(path, identity) as book`. Raises ProfileError when the file belongs to others, TableError when it is
    no raw file."""

    def __init__(self, path: Path, identity: Identity) -> None:
        self.identity = identity
        self._lines: dict[Key, RawPoint] = {}
        if path.exists():
            for located in read_raw(path).points:
                self._admit(located.where, located.point)
        self._writer = RawWriter(path)
        self.torn = self._writer.torn

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()

    def __contains__(self, task: Task) -> bool:
        return _key(task) in self._lines

    def overloaded_in(self, column: Column) -> RawPoint | None:
        """The line at which this column ended, if it did."""
        lines = [self._lines[_key(task)] for task in column.tasks if task in self]
        return next((line for line in lines if line.stopped is not None), None)

    def write(self, task: Task, measured: Measured, started_at: str | None) -> RawPoint:
        """One line for a task that was measured."""
        return self._append(
            RawPoint(
                assignment=self.identity.assignment,
                arm=task.arm,
                context_tokens=task.shape.context_tokens,
                new_tokens=task.shape.new_tokens,
                output_tokens=task.shape.output_tokens,
                rate=task.rate,
                rate_achieved=measured.rate_achieved,
                repeat=task.repeat,
                samples=measured.samples,
                success=measured.success,
                ttft_mean_s=measured.ttft_mean_s,
                ttft_p99_s=measured.ttft_p99_s,
                tpot_mean_s=measured.tpot_mean_s,
                tpot_p99_s=measured.tpot_p99_s,
                model=self.identity.model,
                block_size=self.identity.block_size,
                simulated=self.identity.simulated,
                started_at=started_at,
                duration_s=measured.duration_s,
                stopped="overloaded" if measured.overloaded else None,
            )
        )

    def write_skipped(self, task: Task, overloaded: RawPoint) -> RawPoint:
        """One line for a rate above the one at which the column was overloaded.

        It was not run: duration_s is 0 and rate_achieved that of the run below. Its latencies are at least those, and
        no more turns per second can succeed than did there.
        """
        share = overloaded.rate / task.rate
        changes = {"rate": task.rate, "success": overloaded.success * share, "duration_s": 0.0}
        return self._append(msgspec.structs.replace(overloaded, **changes))

    def _append(self, point: RawPoint) -> RawPoint:
        self._writer.append(point)
        self._lines[_key_of(point)] = point
        return point

    def _admit(self, where: str, point: RawPoint) -> None:
        for name in ("model", "assignment", "block_size", "simulated"):
            ours, theirs = getattr(self.identity, name), getattr(point, name)
            if ours != theirs:
                raise ProfileError(f"{where}: {name} is {theirs!r}, these pods are {ours!r}; choose another --out")
        self._lines[_key_of(point)] = point


def _key(task: Task) -> Key:
    shape = task.shape
    return (task.arm, shape.context_tokens, shape.new_tokens, shape.output_tokens, task.rate, task.repeat)


def _key_of(point: RawPoint) -> Key:
    cell = (point.context_tokens, point.new_tokens, point.output_tokens)
    return (point.arm, *cell, point.rate, point.repeat)
