"""Raw measurements → a table set.

Rule of this room: one set is one model, one block size, and either simulated or not; every cell says what it was made
of. A node assignment whose `pd` or `local` was not measured gets no table, and the manifest says so. A measured cell
without a latency (no turn succeeded) stays measured, with the success it had, and takes its latencies from its
neighbours as an unmeasured one would, only so that no NaN is left: its success alone keeps it from being chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from lut.axes import AXIS_NAMES, Axes
from lut.cell import ARMS, FIELDS, UNKNOWN_CI, Origin, Route
from lut.errors import TableError, refuse
from lut.fill import Flags, Floats, Marks, fill
from lut.publish import Draft, DraftTable
from lut.raw import Located, RawPoint
from lut.repeats import combine

Place = tuple[int, int, int, int]
Groups = dict[str, dict[Route, dict[Place, list[RawPoint]]]]

_AT = {name: index for index, name in enumerate(FIELDS)}


@dataclass(frozen=True, slots=True)
class _Common:
    """What all points of a set share."""

    model: str
    block_size: int | None
    simulated: bool


def build(
    points: Sequence[Located],
    *,
    axes: Axes | None = None,
    model: str | None = None,
    gpu: str = "",
    network: str = "",
    notes: Iterable[str] = (),
) -> Draft:
    """Make a set of all points that have samples; axes are the values found in them unless given.

    `model` is the name to write when it is not to be the one in the measurements. Raises TableError when points do not
    belong together, lie off the given axes, are counted twice, or leave no node assignment with a table.
    """
    common = _common(points)
    measured = [located for located in points if located.point.samples > 0]
    if not measured:
        raise TableError("nothing was measured: no raw line has samples")
    _refuse_doubles(measured)
    axes = axes or _axes_of(measured)
    tables: dict[str, DraftTable] = {}
    left_out: dict[str, str] = {}
    for assignment, arms in sorted(group(measured, axes).items()):
        try:
            tables[assignment] = _table(axes, arms)
        except _Incomplete as reason:
            left_out[assignment] = str(reason)
    if not tables:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise TableError(f"no node assignment was measured well enough for a table ({reasons})")
    return Draft(
        model=model or common.model,
        block_size=common.block_size,
        simulated=common.simulated,
        axes=axes,
        tables=tables,
        gpu=gpu,
        network=network,
        left_out=left_out,
        notes=(*notes, *_remarks(measured, len(points) - len(measured))),
    )


class _Incomplete(Exception):
    """Why an assignment gets no table."""


def _common(points: Sequence[Located]) -> _Common:
    if not points:
        raise TableError("nothing was measured: there are no raw lines")
    first = points[0]
    for located in points:
        for name in ("model", "block_size", "simulated"):
            ours, theirs = getattr(located.point, name), getattr(first.point, name)
            if ours != theirs:
                reason = f"{name} is {ours!r}, but {theirs!r} in {first.where}: a table set does not mix them"
                raise refuse(located.where, reason)
    return _Common(first.point.model, first.point.block_size, first.point.simulated)


def _refuse_doubles(points: Sequence[Located]) -> None:
    """The same measurement given twice would make the confidence intervals too small."""
    seen: dict[RawPoint, str] = {}
    for located in points:
        if located.point in seen:
            raise refuse(located.where, f"is the same measurement as {seen[located.point]}")
        seen[located.point] = located.where


def _axes_of(points: Sequence[Located]) -> Axes:
    try:
        return Axes(**{name: tuple(sorted({getattr(p.point, name) for p in points})) for name in AXIS_NAMES})
    except ValueError as error:
        raise TableError(str(error)) from error


def group(points: Sequence[Located], axes: Axes) -> Groups:
    places = [{value: index for index, value in enumerate(values)} for values in axes.values]
    groups: Groups = {}
    for located in points:
        point = located.point
        place = []
        for name, known in zip(AXIS_NAMES, places, strict=True):
            value = getattr(point, name)
            if value not in known:
                raise refuse(located.where, f"{name} {value:g} is not on the axis")
            place.append(known[value])
        cells = groups.setdefault(point.assignment, {}).setdefault(point.arm, {})
        cells.setdefault((place[0], place[1], place[2], place[3]), []).append(point)
    return groups


def _table(axes: Axes, groups: dict[Route, dict[Place, list[RawPoint]]]) -> DraftTable:
    missing = [arm for arm in ("pd", "local") if arm not in groups]
    if missing:
        raise _Incomplete(f"{' and '.join(missing)} not measured")
    arms = tuple(arm for arm in ARMS if arm in groups)
    data = np.stack([_arm(axes, arm, groups[arm]) for arm in arms], axis=-2)
    return DraftTable(arms, data.astype("<f4"))


def _arm(axes: Axes, name: Route, cells: dict[Place, list[RawPoint]]) -> Floats:
    """All cells of one arm, (C, I, O, Q, fields) without NaN."""
    values = np.full((*axes.shape, len(FIELDS)), np.nan)
    for place, points in cells.items():
        values[place] = combine(points)
    measured = ~np.isnan(values[..., _AT["success"]])
    with_ttft = ~np.isnan(values[..., _AT["ttft_mean"]])
    with_tpot = ~np.isnan(values[..., _AT["tpot_mean"]])
    if not with_ttft.any():
        raise _Incomplete(f"no turn of {name} succeeded anywhere")
    marks = [
        _fill(axes, values, ("success",), measured),
        _fill(axes, values, ("ttft_mean", "ttft_p99"), with_ttft),
        _fill(axes, values, ("tpot_mean", "tpot_p99"), with_tpot),
    ]
    one_token = np.asarray(axes.output_tokens) == 1
    for field in ("tpot_mean", "tpot_p99"):
        values[:, :, one_token, :, _AT[field]] = 0.0
    values[..., _AT["success"]] = values[..., _AT["success"]].clip(0.0, 1.0)
    for field in ("ttft_ci", "tpot_ci"):
        values[~measured, _AT[field]] = UNKNOWN_CI
    values[~measured, _AT["samples"]] = 0.0
    values[..., _AT["origin"]] = np.where(measured, Origin.MEASURED, np.maximum.reduce(marks))
    return values


def _fill(axes: Axes, values: Floats, fields: tuple[str, ...], known: Flags) -> Marks:
    """Fill these fields in place; nothing known at all (TPOT where every output is one token) becomes 0."""
    columns = [_AT[field] for field in fields]
    if not known.any():
        values[..., columns] = 0.0
        return np.zeros(known.shape, dtype=np.uint8)
    coordinates = [scale.coordinates for scale in axes.scales()]
    values[..., columns], marks = fill(values[..., columns], known, coordinates)
    return marks


def _remarks(measured: Sequence[Located], empty: int) -> list[str]:
    stopped = sum(located.point.stopped is not None for located in measured)
    remarks = [f"built from {len(measured)} measurements"]
    if stopped:
        remarks.append(f"{stopped} measurements were stopped as overloaded")
    if empty:
        remarks.append(f"{empty} measurements without samples left out")
    return remarks
