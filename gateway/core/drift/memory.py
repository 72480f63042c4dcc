"""What is known of drift as plain data that outlives the process.

Rule of this room: it is of use only with the table it was measured against; anything that does not fit is refused as a
whole.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.core.drift.monitor import Drift
from gateway.core.drift.regions import Metric


class SeriesRecord(msgspec.Struct, frozen=True, array_like=True):
    """A `Series`, without the batch that has begun."""

    arm: str
    metric: Metric
    drifting: bool
    level: float
    reference: float
    batches: int
    noise_state: tuple[float, float, float]
    sums: tuple[float, float]


class DriftRecord(msgspec.Struct, frozen=True):
    """Everything. table: which one it is about. regions: as `Corrections.dump` gives them."""

    table: str
    series: list[SeriesRecord]
    regions: list[tuple[list[Any], float, float, float]]


def dump(drift: Drift, table: str) -> bytes:
    """Everything that a later process may go on from."""
    series = [
        SeriesRecord(arm, metric, each.drifting, each.level, each.reference, each.batches, *each.state())
        for (arm, metric), each in drift.series.items()
    ]
    return msgspec.json.encode({"table": table, "series": series, "regions": drift.corrections.dump()})


def restore(drift: Drift, table: str, content: bytes, now_s: float) -> bool:
    """Take in what `dump` gave; False when it is about another table. Raises ValueError for anything else."""
    try:
        record = msgspec.json.decode(content, type=DriftRecord)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"what was known of drift is not readable ({error})") from None
    if record.table != table:
        return False
    drift.corrections.load(record.regions, now_s)
    for each in record.series:
        series = drift.series.get((each.arm, each.metric))
        if series is None:
            raise ValueError(f"there is no arm {each.arm}")
        series.drifting, series.level, series.reference = each.drifting, each.level, each.reference
        series.batches = each.batches
        series.take_state(each.noise_state, each.sums)
    drift.drifting = any(series.drifting for series in drift.series.values())
    return True
