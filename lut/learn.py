"""A table set and measurements from production → a new table set.

Rule of this room: the old table is the prior. In a cell with new turns both are averaged by their numbers of turns,
the old ones counting for no more than `prior`; a cell that was only filled counts for a few. Cells without new turns
stay as they are, and the manifest says how many.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from lut.build import Place, group
from lut.cell import FIELDS, UNKNOWN_CI, Arm, Origin
from lut.errors import TableError, refuse
from lut.fill import Floats
from lut.publish import Draft, DraftTable
from lut.raw import Located, RawPoint
from lut.repeats import combine
from lut.tableset import TableSet

PRIOR = 200
MIN_SAMPLES = 20
FILLED_COUNTS = 5.0
"""Turns that a filled cell's numbers count for."""

_SURE_OF_P99 = 100


@dataclass(frozen=True, slots=True)
class Learned:
    """The new set, and what became of the measurements. turns: that count. cells: that they changed, of `arms_cells`.

    passed_over: why others do not count, with how many points.
    """

    draft: Draft
    turns: int
    cells: int
    arms_cells: int
    passed_over: dict[str, int]


def learn(
    old: TableSet,
    points: Sequence[Located],
    *,
    prior: int = PRIOR,
    min_samples: int = MIN_SAMPLES,
    notes: Iterable[str] = (),
) -> Learned:
    """Merge. Raises TableError for points that are of another model, lie off the axes, or when none counts."""
    manifest = old.manifest
    _check(old, points)
    counting = [located for located in points if located.point.samples > 0]
    tables: dict[str, DraftTable] = {}
    passed_over: dict[str, int] = {}
    turns = cells = arms_cells = 0
    groups = group(counting, manifest.axes)
    for assignment in groups.keys() - old.tables.keys():
        passed_over[f"no table of {assignment}"] = sum(
            len(some) for arms in groups[assignment].values() for some in arms.values()
        )
    for assignment, table in old.tables.items():
        data: Floats = np.array(table.data, dtype=np.float64)
        arms_cells += data.size // len(FIELDS)
        for arm, places in groups.get(assignment, {}).items():
            if arm not in table.arms:
                key = f"no arm {arm} in the table of {assignment}"
                passed_over[key] = passed_over.get(key, 0) + sum(map(len, places.values()))
                continue
            found = _merge(data[..., table.arms.index(arm), :], places, prior, min_samples)
            turns, cells = turns + found.turns, cells + found.cells
            if found.scarce:
                key = f"fewer than {min_samples} turns in a cell"
                passed_over[key] = passed_over.get(key, 0) + found.scarce
        tables[assignment] = DraftTable(table.arms, data.astype("<f4"))
    if cells == 0:
        reasons = "; ".join(f"{reason}: {count} lines" for reason, count in passed_over.items())
        raise TableError(f"nothing to learn from{f' ({reasons})' if reasons else ''}")
    said = (
        f"learned from {turns} turns in {cells} cells; {arms_cells - cells} cells are as in the table made "
        f"{manifest.created}"
    )
    draft = Draft(
        model=manifest.model,
        block_size=manifest.block_size,
        simulated=manifest.simulated,
        axes=manifest.axes,
        tables=tables,
        gpu=manifest.gpu,
        network=manifest.network,
        left_out=manifest.left_out,
        notes=(*manifest.notes, said, *notes),
    )
    return Learned(draft, turns, cells, arms_cells, passed_over)


def _check(old: TableSet, points: Sequence[Located]) -> None:
    manifest, seen = old.manifest, dict[RawPoint, str]()
    for located in points:
        for name in ("model", "block_size", "simulated"):
            theirs, ours = getattr(located.point, name), getattr(manifest, name)
            if theirs != ours:
                raise refuse(located.where, f"{name} is {theirs!r}, but {ours!r} in the table {old.directory}")
        if located.point in seen:
            raise refuse(located.where, f"is the same measurement as {seen[located.point]}")
        seen[located.point] = located.where


@dataclass(frozen=True, slots=True)
class _Merged:
    turns: int
    cells: int
    scarce: int


def _merge(values: Floats, places: dict[Place, list[RawPoint]], prior: int, min_samples: int) -> _Merged:
    """Change one arm's cells in place."""
    turns = cells = scarce = 0
    for place, points in places.items():
        count = sum(point.samples for point in points)
        if count < min_samples or all(point.ttft_mean_s is None for point in points):
            scarce += len(points)
            continue
        values[place] = merged(Arm(*values[place].tolist()), combine(points), prior)
        turns, cells = turns + count, cells + 1
    return _Merged(turns, cells, scarce)


def merged(old: Arm, new: Arm, prior: int) -> Arm:
    """Two arms of one cell as one. `new` was measured and has a TTFT; it may have no TPOT (NaN)."""
    before = min(float(prior), old.samples) if old.origin == Origin.MEASURED else min(float(prior), FILLED_COUNTS)
    share = new.samples / (before + new.samples)
    no_tpot = math.isnan(new.tpot_mean)
    sure = new.samples >= _SURE_OF_P99

    def mean(ours: float, theirs: float) -> float:
        return ours + share * (theirs - ours)

    def p99(ours: float, theirs: float) -> float:
        return theirs if sure else max(ours, theirs)

    return Arm(
        ttft_mean=mean(old.ttft_mean, new.ttft_mean),
        ttft_p99=p99(old.ttft_p99, new.ttft_p99),
        tpot_mean=old.tpot_mean if no_tpot else mean(old.tpot_mean, new.tpot_mean),
        tpot_p99=old.tpot_p99 if no_tpot else p99(old.tpot_p99, new.tpot_p99),
        success=mean(old.success, new.success),
        samples=before + new.samples,
        ttft_ci=_interval(old.ttft_ci, new.ttft_ci, share),
        tpot_ci=old.tpot_ci if no_tpot else _interval(old.tpot_ci, new.tpot_ci, share),
        origin=float(Origin.MEASURED),
    )


def _interval(old: float, new: float, share: float) -> float:
    """Half width of the weighted mean of two independent means. The old one's counts as 0 where it is not known (as in
    S), the new one's absence makes the whole unknown."""
    if new < 0:
        return UNKNOWN_CI
    return math.hypot((1 - share) * max(old, 0.0), share * new)
