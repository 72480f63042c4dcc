"""From samples to figures, ratios and goals.

Rule of this room: arithmetic only. Medians over rounds; what is added to `direct` and what is divided by a peer comes
from the same run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from loadtest.bench.proxy.measure import Sample

ROUTER_CPU = {"W1": 0.5, "W3-200": 0.75, "W3-1000": 0.75, "W4": 0.75}
"""Our CPU may be so much of vllm-router's: per event where that is what a workload is about, else per request."""

PER_EVENT = ("W2", "W3-200", "W3-1000")
LATER_TURN = "W5"
"""Goes straight to D; everything else goes through P."""

ROUTER_RSS = 0.5
FLOOR_CPU = 1.8
GAP_MS = 15.0
"""What may be added to the P99 gap of W3-1000."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One proxy under one workload, medians over its rounds; None where there is nothing to say."""

    us_per_request: float | None
    us_per_event: float | None
    system_share: float | None
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    added_ttft_p50_ms: float | None
    added_ttft_p99_ms: float | None
    gap_p99_ms: float | None
    added_gap_p99_ms: float | None
    rss_mb: float | None
    requests_per_s: float
    events_per_read: float | None
    requests: int
    failed: int
    errors: dict[str, int]
    through_prefill: float

    def cpu(self, workload: str) -> float | None:
        """By what the workload is about."""
        return self.us_per_event if workload in PER_EVENT else self.us_per_request


Table = dict[str, dict[str, Figures]]
"""By workload, then by target."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What we want, what was measured, and whether that is enough; None where something was not measured."""

    words: str
    measured: float | None
    limit: float
    met: bool | None


def table_of(samples: Iterable[Sample]) -> Table:
    """Put the samples of a run together."""
    grouped: dict[str, dict[str, list[Sample]]] = {}
    for sample in samples:
        grouped.setdefault(sample.workload, {}).setdefault(sample.target, []).append(sample)
    return {
        workload: {target: _figures(rounds, targets.get("direct", [])) for target, rounds in targets.items()}
        for workload, targets in grouped.items()
    }


def _figures(rounds: Sequence[Sample], direct: Sequence[Sample]) -> Figures:
    is_proxy = rounds[0].target != "direct"
    beside = list(zip(rounds, direct, strict=True)) if is_proxy and direct else []
    first = rounds[0]
    return Figures(
        us_per_request=_median(each.cpu_us / each.done for each in rounds if each.done) if is_proxy else None,
        us_per_event=_median(each.cpu_us / each.events for each in rounds if each.events) if is_proxy else None,
        system_share=_median(each.system_us / each.cpu_us for each in rounds if each.cpu_us),
        ttft_p50_ms=_median(each.ttft_p50_ms for each in rounds),
        ttft_p99_ms=_median(each.ttft_p99_ms for each in rounds),
        added_ttft_p50_ms=_median(_less(each.ttft_p50_ms, base.ttft_p50_ms) for each, base in beside),
        added_ttft_p99_ms=_median(_less(each.ttft_p99_ms, base.ttft_p99_ms) for each, base in beside),
        gap_p99_ms=_median(each.gap_p99_ms for each in rounds),
        added_gap_p99_ms=_median(_less(each.gap_p99_ms, base.gap_p99_ms) for each, base in beside),
        rss_mb=_median(each.rss_mb for each in rounds) if is_proxy else None,
        requests_per_s=median(each.ok / each.seconds if each.seconds > 0 else 0.0 for each in rounds),
        events_per_read=_median(each.events / each.reads for each in rounds if each.events and each.reads),
        requests=sum(each.requests for each in rounds),
        failed=sum(each.failed for each in rounds),
        errors={kind: sum(each.errors[kind] for each in rounds) for kind in first.errors},
        through_prefill=median(each.prefills / each.requests if each.requests else 0.0 for each in rounds),
    )


def _less(value: float | None, base: float | None) -> float | None:
    return None if value is None or base is None else value - base


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def ratio(ours: float | None, theirs: float | None) -> float | None:
    """None where one is missing or nothing."""
    return ours / theirs if ours is not None and theirs else None


def goals(table: Table) -> list[Goal]:
    """The goals of the data path that this run can say something about."""
    found = []
    for workload, by_target in table.items():
        ours = by_target.get("ours")
        if ours is None:
            continue
        found.append(_at_most(f"{workload}: failed requests", float(ours.failed), 0.0))
        astray = ours.through_prefill if workload == LATER_TURN else 1.0 - ours.through_prefill
        found.append(_at_most(f"{workload}: share on the wrong path", astray, 0.0))
        router, floor = by_target.get("vllm-router"), by_target.get("floor")
        if router is not None:
            found += _beside_router(workload, ours, router)
        if floor is not None:
            measured = ratio(ours.cpu(workload), floor.cpu(workload))
            found.append(_at_most(f"{workload}: CPU, of the floor's", measured, FLOOR_CPU))
        if workload == "W3-1000" and "direct" in by_target:
            found.append(_at_most(f"{workload}: added to the P99 gap, ms", ours.added_gap_p99_ms, GAP_MS))
    return found


def _beside_router(workload: str, ours: Figures, router: Figures) -> list[Goal]:
    found = []
    if workload in ROUTER_CPU:
        measured = ratio(ours.cpu(workload), router.cpu(workload))
        found.append(_at_most(f"{workload}: CPU, of vllm-router's", measured, ROUTER_CPU[workload]))
    for words, our_ms, their_ms in (
        ("P50", ours.added_ttft_p50_ms, router.added_ttft_p50_ms),
        ("P99", ours.added_ttft_p99_ms, router.added_ttft_p99_ms),
    ):
        if their_ms is not None:
            found.append(_below(f"{workload}: added TTFT {words} below vllm-router's, ms", our_ms, their_ms))
    found.append(_at_most(f"{workload}: RSS, of vllm-router's", ratio(ours.rss_mb, router.rss_mb), ROUTER_RSS))
    return found


def _at_most(words: str, measured: float | None, limit: float) -> Goal:
    return Goal(words, measured, limit, None if measured is None else measured <= limit)


def _below(words: str, measured: float | None, limit: float) -> Goal:
    return Goal(words, measured, limit, None if measured is None else measured < limit)


def ratios(table: Table) -> dict[str, dict[str, dict[str, float | None]]]:
    """Of every proxy's CPU and memory to those of vllm-router and of the floor, by workload and target."""
    found: dict[str, dict[str, dict[str, float | None]]] = {}
    for workload, by_target in table.items():
        for target, figures in by_target.items():
            if target == "direct":
                continue
            found.setdefault(workload, {})[target] = {
                f"{what}_to_{peer}": ratio(value(figures, workload), value(by_target[peer], workload))
                for peer in ("vllm-router", "floor")
                if peer in by_target
                for what, value in (("cpu", Figures.cpu), ("rss", lambda figures, _: figures.rss_mb))
            }
    return found


def for_json(table: Table) -> dict[str, Any]:
    """The figures and what follows from them, as plain values."""
    found: dict[str, Any] = _rounded(
        {
            "results": {
                workload: {target: asdict(figures) for target, figures in by_target.items()}
                for workload, by_target in table.items()
            },
            "ratios": ratios(table),
            "goals": [asdict(goal) for goal in goals(table)],
        }
    )
    return found


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return value
