"""What is shown of the table's word against what is seen, and of the pods' paces.

Rule of this room: by arm and latency, and by pod; never by cell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

from gateway.core.drift.detect import Series
from gateway.core.drift.monitor import Drift
from gateway.core.policies import MeasuredTable
from gateway.net.parts import Parts
from gateway.ops.metrics.families import Book, Shown, Values


class DriftMetrics:
    """All of them."""

    def __init__(self, book: Book) -> None:
        Shown(
            book,
            "ppd_table_drift",
            "1 while the table no longer describes this cluster, by arm (pd, local, readback) and latency.",
            ["arm", "latency"],
            read=lambda parts: _series(parts, lambda series: series.drifting),
        )
        Shown(
            book,
            "ppd_table_drift_ratio",
            "Observed by predicted, of late.",
            ["arm", "latency"],
            read=lambda parts: _series(parts, lambda series: math.exp(series.level)),
        )
        Shown(
            book,
            "ppd_table_drift_reference",
            "Observed by predicted in the first minutes with this table, which later ones are held against.",
            ["arm", "latency"],
            read=lambda parts: _series(parts, lambda series: math.exp(series.reference)),
        )
        Shown(
            book,
            "ppd_explored_turns_total",
            "Turns that took the other route so that it stays measured.",
            read=lambda parts: [((), drift.explorer.explored) for drift in _drift(parts)],
        )
        Shown(
            book,
            "ppd_pod_pending_tokens",
            "Prompt tokens that the pod has still to compute for this gateway.",
            ["pod", "role"],
            read=lambda parts: [((pod.url, pod.role), pod.pending_tokens) for pod in parts.fleet],
        )
        Shown(
            book,
            "ppd_pod_expected_wait_seconds",
            "What a prompt of no length would wait for its first token at the pod, where load is looked at.",
            ["pod", "role"],
            read=_waits,
        )


def _drift(parts: Parts) -> Iterator[Drift]:
    policy = parts.policy
    if isinstance(policy, MeasuredTable) and policy.drift is not None:
        yield policy.drift


def _series(parts: Parts, read: Callable[[Series], float]) -> Iterator[tuple[Values, float]]:
    for drift in _drift(parts):
        for (arm, metric), series in drift.series.items():
            if series.batches:
                yield (arm, metric), read(series)


def _waits(parts: Parts) -> Iterable[tuple[Values, float]]:
    loads = parts.fleet.loads
    return [] if loads is None else [((pod.url, pod.role), loads.first_s(pod, 0)) for pod in parts.fleet]
