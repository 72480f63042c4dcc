"""The table against what is seen, in the admin API.

Rule of this room: arms and latencies, never cells; each worker watches its own requests.
"""

from __future__ import annotations

import math
import time
from typing import Any

import msgspec

from gateway.core.policies import MeasuredTable
from gateway.net.parts import Parts


class SeriesShown(msgspec.Struct):
    """ratio: observed by predicted, of late; reference: in the first minutes with this table, null until it is known.
    correction: what the table's number is multiplied by for the arm as a whole while `drifting`, else 1."""

    arm: str
    latency: str
    drifting: bool
    ratio: float
    reference: float | None
    correction: float
    batches: int


class ChangeShown(msgspec.Struct):
    age_s: float
    drifting: bool
    text: str


class DriftShown(msgspec.Struct):
    """observed: turns that were held against the table. explored: those that took the other route to measure it."""

    enabled: bool
    correcting: bool
    drifting: bool
    observed: int
    explored: int
    series: list[SeriesShown]
    changes: list[ChangeShown]


def drift(parts: Parts) -> DriftShown:
    """How the table stands, the last alarms first."""
    policy = parts.policy
    found = policy.drift if isinstance(policy, MeasuredTable) else None
    if found is None:
        return DriftShown(False, False, False, 0, 0, [], [])
    series = [
        SeriesShown(
            arm,
            metric,
            each.drifting,
            math.exp(each.level),
            math.exp(each.reference) if each.settled else None,
            found.factor(arm, metric),
            each.batches,
        )
        for (arm, metric), each in found.series.items()
        if each.batches
    ]
    now_s = time.monotonic()
    changes = [ChangeShown(now_s - each.at_s, each.drifting, str(each)) for each in reversed(found.changes)]
    rules = found.rules
    return DriftShown(True, rules.correct, found.drifting, found.observed, found.explorer.explored, series, changes)


def merged_drift(answers: list[DriftShown], _: Any) -> DriftShown:
    """The worker that is furthest off, with everybody's counts and alarms."""
    first = max(answers, key=lambda each: (each.drifting, each.observed))
    first.observed = sum(each.observed for each in answers)
    first.explored = sum(each.explored for each in answers)
    first.changes = sorted((change for each in answers for change in each.changes), key=lambda change: change.age_s)
    return first
