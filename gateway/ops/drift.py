"""Drift in a running gateway: what ended requests tell of the table, the lines it is told in, the file of measurements.

Rule of this room: after a request has ended, never on its way. A file that cannot be written costs measurements, not
requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gateway.core.drift.monitor import Drift, DriftRules
from gateway.core.drift.tally import CellTally, Tally
from gateway.core.load import Loads
from gateway.core.policies import MeasuredTable, Seen
from gateway.net.parts import Parts
from gateway.net.records import IdleObserver, Outcome, RequestRecord
from gateway.ops.logs import MAIN
from gateway.ops.observers import Observers
from lut.cell import Route
from lut.raw import RawPoint, RawWriter
from lut.table import Table, TableError, TableSet

MAX_FILE_BYTES = 64 << 20
_FAILED = (Outcome.FAILED, Outcome.BROKEN)


@dataclass(frozen=True, slots=True)
class DriftPlan:
    """rules: None where drift is not watched. file: of measurements."""

    rules: DriftRules | None = None
    file: Path | None = None
    interval_s: float = 600.0

    def drift(self) -> Drift | None:
        """What a policy is given to begin with."""
        return None if self.rules is None else Drift(self.rules)


def drift_of(values: Mapping[str, Any]) -> DriftPlan:
    """What the settings mean."""
    file, rules = values["drift.measurements_file"], None
    if values["drift.mode"] != "off":
        rules = DriftRules(
            correct=values["drift.mode"] == "correct",
            half_life_s=values["drift.half_life_s"],
            tolerance=values["drift.tolerance"],
            false_alarms=values["drift.false_alarms"],
            explore=values["drift.explore"],
        )
    return DriftPlan(rules, None if file is None else Path(file), values["drift.measurements_interval_s"])


def loads_of(policy: str, *, load_aware: bool) -> Loads | None:
    """What a fleet is given where load counts."""
    return Loads() if load_aware or policy == "queue" else None


def measurements_of(plan: DriftPlan, policy: MeasuredTable, worker: int | None) -> Measurements | None:
    """None where none are kept. Raises TableError."""
    return None if plan.file is None else Measurements(plan.file, plan.interval_s, policy, worker)


def told_of_tables(
    told: Callable[[TableSet, bool], None], measurements: Measurements | None
) -> Callable[[TableSet, bool], None]:
    """Who is told of a table that was taken or refused."""

    def tell(tables: TableSet, taken: bool) -> None:
        if taken and measurements is not None:
            measurements.table_changed(tables)
        told(tables, taken)

    return tell


def watch_drift(parts: Parts, measurements: Measurements | None) -> None:
    """Listen to what ends, where somebody wants to know."""
    policy = parts.policy if isinstance(parts.policy, MeasuredTable) else None
    if policy is not None or parts.fleet.loads is not None:
        tally = None if measurements is None else measurements.tally
        parts.observer = Observers(parts.observer, DriftWatch(parts, policy, tally))


def take_rules(policy: MeasuredTable, rules: DriftRules | None) -> None:
    """Other rules from now on."""
    if rules is None or policy.drift is None:
        policy.drift = None if rules is None else Drift(rules)
    else:
        policy.drift.reconfigure(rules)


def table_id(tables: TableSet) -> str:
    """Which table something was held against."""
    manifest = tables.manifest
    return "/".join((manifest.model, manifest.created, *(record.xxh3_128 for record in manifest.tables.values())))


class DriftWatch(IdleObserver):
    """An observer that tells a policy what became of its choices, and a tally, if there is one. Forgets pods' paces."""

    def __init__(self, parts: Parts, policy: MeasuredTable | None, tally: Tally | None) -> None:
        self._parts = parts
        self._policy = policy
        self._tally = tally

    def finished(self, record: RequestRecord) -> None:
        choice, policy = record.choice, self._policy
        if choice is None or policy is None or record.attempts != 1 or record.route != choice.route:
            return
        good = record.outcome is Outcome.OK
        if not good and record.outcome not in _FAILED:
            return
        prompt, output = record.prompt_tokens, record.output_tokens
        if good and prompt is not None and output:
            ttft_s = None if record.ttft_s is None or not record.stream else record.ttft_s - record.queued_s
            seen = Seen(choice, prompt, output, ttft_s, record.tpot_s)
            for change in policy.learn(seen, time.monotonic()):
                (MAIN.warning if change.drifting else MAIN.info)("%s", change)
        else:
            estimated = record.estimated_tokens or 1
            seen = Seen(choice, estimated, 1, None, None)
        if self._tally is not None and record.stream:
            table, assignment, _ = policy.tables.nearest_assignment(choice.assignment)
            self._tally.count(
                assignment,
                table.place(*seen.point),
                choice.route,
                choice.rate,
                good=good,
                ttft_s=seen.ttft_s,
                tpot_s=seen.tpot_s,
            )

    def pod_restarted(self, pod: str, role: str, detail: str) -> None:
        self._forget(pod)

    def pod_removed(self, pod: str, role: str, detail: str) -> None:
        self._forget(pod)

    def _forget(self, pod: str) -> None:
        if self._parts.fleet.loads is not None:
            self._parts.fleet.loads.forget(pod)


class Measurements:
    """Adds a tally to a file every so often, and once more at `stop`. Raises TableError for a file that is not one."""

    def __init__(self, path: Path, interval_s: float, policy: MeasuredTable, worker: int | None = None) -> None:
        self.path = path if worker is None else path.with_name(f"{path.name}.{worker}")
        self.tally = Tally()
        self._interval_s = interval_s
        self._tables = policy.tables
        self._since_s = time.time()
        self._writer = RawWriter(self.path)
        self._written = 0
        self._task: asyncio.Task[None] | None = None
        if self._writer.torn is not None:
            MAIN.warning("%s", self._writer.torn)

    def start(self) -> None:
        self._task = asyncio.ensure_future(self._write_often())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            await self.write()
        self._writer.close()

    def table_changed(self, tables: TableSet) -> None:
        """Another one is in use: what was measured in the cells of the former is written now."""
        points = self._points()
        self._tables = tables
        if points:
            self._extend(points)

    async def write(self) -> None:
        """Add what was measured since the last time."""
        points = self._points()
        if points:
            await asyncio.to_thread(self._extend, points)

    def _extend(self, points: list[RawPoint]) -> None:
        try:
            self._writer.extend(points)
            self._turn_over()
        except TableError as error:
            MAIN.warning("measurements lost: %s", error)

    def _turn_over(self) -> None:
        """Begin a new file when this one is large; the one before it stays, its predecessor does not."""
        with contextlib.suppress(OSError):
            if self.path.stat().st_size > MAX_FILE_BYTES:
                self._writer.close()
                self.path.replace(self.path.with_name(f"{self.path.name}.old"))
                self._writer = RawWriter(self.path)

    async def _write_often(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self.write()

    def _points(self) -> list[RawPoint]:
        now_s, tables = time.time(), self._tables
        since_s, self._since_s = self._since_s, now_s
        self._written += 1
        found = []
        for (assignment, place, arm), cell in self.tally.take().items():
            table = tables.table(assignment)
            if table is not None:
                found.append(point_of(tables, table, place, arm, cell, self._written, since_s, now_s - since_s))
        return found


def point_of(
    tables: TableSet,
    table: Table,
    place: tuple[int, int, int, int],
    arm: str,
    cell: CellTally,
    repeat: int,
    since_s: float,
    duration_s: float,
) -> RawPoint:
    """One arm in one cell as a raw measurement. Whether it is simulated is as the table in use has it."""
    context, new, output, rate = (values[index] for values, index in zip(table.axes.values, place, strict=True))
    route: Route = "local" if arm == "local" else "readback" if arm == "readback" else "pd"
    good = cell.ttft.count
    return RawPoint(
        assignment=table.assignment,
        arm=route,
        context_tokens=int(context),
        new_tokens=int(new),
        output_tokens=int(output),
        rate=rate,
        rate_achieved=cell.rate / cell.turns,
        repeat=repeat,
        samples=cell.turns,
        success=good / cell.turns,
        ttft_mean_s=cell.ttft.mean_s,
        ttft_p99_s=cell.ttft.p99_s,
        tpot_mean_s=cell.tpot.mean_s,
        tpot_p99_s=cell.tpot.p99_s,
        model=tables.manifest.model,
        block_size=tables.manifest.block_size,
        simulated=tables.manifest.simulated,
        started_at=datetime.fromtimestamp(since_s, UTC).isoformat(timespec="seconds"),
        duration_s=duration_s,
        stopped=None,
    )
