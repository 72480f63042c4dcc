"""Numbers of a run, from its records.

Rule of this room: a percentile is the smallest value that at least so large a share of *all* due turns stays within
(nearest rank), so a failed turn, which is infinite, takes its rank like any other.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from loadtest.live.book import Arm, Gaps, TurnRecord
from loadtest.live.slo import Slo

SHARES = (0.5, 0.9, 0.95, 0.99)
GROUPS = ("turn 1", "turns 2+", "all turns")


class Percentiles(msgspec.Struct, frozen=True):
    """Seconds; infinite where so many turns failed, None where there are none."""

    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None


class Group(msgspec.Struct, frozen=True):
    """Of some turns. Times count from when a turn was due; service_ times from when it was sent.

    itl: of the gaps between events of answers that ended well. *_per_s: over the measured window.
    """

    turns: int
    ok: int
    success: float | None
    ttft: Percentiles
    tpot: Percentiles
    itl: Percentiles
    e2e: Percentiles
    service_ttft: Percentiles
    service_e2e: Percentiles
    within_slo: float | None
    goodput_turns_per_s: float | None
    turns_per_s: float
    output_tokens_per_s: float
    prompt_tokens: int
    cached_tokens: int | None
    faults: dict[str, int]


def in_group(turn: TurnRecord, name: str) -> bool:
    """Whether a turn belongs to one of GROUPS."""
    return name == "all turns" or (turn.turn == 1) == (name == "turn 1")


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """Nearest rank, of values in rising order; None of none."""
    if not ordered:
        return None
    return ordered[max(1, math.ceil(share * len(ordered) - 1e-9)) - 1]


def percentiles(values: Iterable[float | None]) -> Percentiles:
    """Of the values that are one."""
    ordered = sorted(value for value in values if value is not None)
    return Percentiles(*(percentile(ordered, share) for share in SHARES))


def groups_of(turns: Sequence[TurnRecord], arm: Arm, slo: Slo | None, measured_s: float) -> dict[str, Group]:
    """The figures of one endpoint by GROUPS."""
    both = Gaps()
    both.counts = arm.gaps[0].counts + arm.gaps[1].counts
    gaps = (arm.gaps[0], arm.gaps[1], both)
    return {
        name: _group([turn for turn in turns if in_group(turn, name)], seen, slo, measured_s)
        for name, seen in zip(GROUPS, gaps, strict=True)
    }


def _group(turns: Sequence[TurnRecord], gaps: Gaps, slo: Slo | None, measured_s: float) -> Group:
    good = [turn for turn in turns if turn.ok]
    kept = None if slo is None else sum(slo.kept(turn) for turn in turns)
    cached = [turn.cached_tokens for turn in good if turn.cached_tokens is not None]
    seconds = measured_s or math.inf
    return Group(
        turns=len(turns),
        ok=len(good),
        success=len(good) / len(turns) if turns else None,
        ttft=percentiles(turn.ttft_s for turn in turns),
        tpot=percentiles(turn.tpot_s for turn in turns),
        itl=Percentiles(*(gaps.percentile_s(share) for share in SHARES)),
        e2e=percentiles(turn.e2e_s for turn in turns),
        service_ttft=percentiles(turn.service_ttft_s for turn in turns),
        service_e2e=percentiles(turn.service_e2e_s for turn in turns),
        within_slo=None if kept is None or not turns else kept / len(turns),
        goodput_turns_per_s=None if kept is None else kept / seconds,
        turns_per_s=len(good) / seconds,
        output_tokens_per_s=sum(turn.tokens for turn in good) / seconds,
        prompt_tokens=sum(turn.prompt_tokens or 0 for turn in good),
        cached_tokens=sum(cached) if cached else None,
        faults=dict(Counter(turn.fault for turn in turns if turn.fault is not None).most_common()),
    )
