"""What became of every turn, and the numbers of a whole experiment.

Rule of this room: a turn that failed, timed out or was never sent because one before it failed is a turn. In
percentiles it counts as endless, in means of latency (which are lower bounds then) with the time the client gave it.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class Fate(enum.IntEnum):
    """LOST: never sent, an earlier turn of its conversation failed."""

    GOOD = 0
    TIMED_OUT = 1
    FAILED = 2
    LOST = 3
    REJECTED = 4


class TurnRecord(NamedTuple):
    """One turn as the client saw it. Seconds; NaN where there is none.

    at_s: when the client wanted to send it. sent_s: when it did. ttft_s, e2e_s: from at_s, so waiting for a slot of
    the client counts. tpot_s: mean gap between tokens. cached_tokens: in the answering pod, of its own and read.
    moved: whether KV went over the wire for it.
    """

    conversation: int
    turn: int
    tenant: str
    at_s: float
    sent_s: float
    ttft_s: float
    tpot_s: float
    e2e_s: float
    prompt_tokens: int
    new_tokens: int
    output_tokens: int
    cached_tokens: int
    route: str
    fate: Fate


class Slo(NamedTuple):
    """Seconds."""

    ttft_s: float = 0.5
    tpot_s: float = 0.03


class Summary(msgspec.Struct, frozen=True):
    """Of a set of turns. Milliseconds; null where there is none (JSON has no infinity: a percentile that is endless
    is null too, and `success` says why).

    success: share of turns. goodput: share that met the SLO. *_mean_ms: failed turns at what the client gave them;
    *_ok_ms: the mean of those that went well, as the paper has it.
    """

    turns: int
    success: float
    goodput: float
    ttft_mean_ms: float | None
    ttft_ok_ms: float | None
    ttft_p50_ms: float | None
    ttft_p90_ms: float | None
    ttft_p99_ms: float | None
    tpot_ok_ms: float | None
    tpot_p50_ms: float | None
    tpot_p99_ms: float | None
    e2e_mean_ms: float | None
    e2e_ok_ms: float | None
    e2e_p50_ms: float | None
    e2e_p99_ms: float | None
    local_share: float
    """Of the turns that were routed, those that stayed where their KV was."""


def summarise(turns: Sequence[TurnRecord], slo: Slo, patience_s: float, turn_s: float) -> Summary:
    """patience_s, turn_s: what the client gave a first token and a whole turn."""
    count = len(turns)
    good = [turn for turn in turns if turn.fate is Fate.GOOD]
    ttft = np.array([turn.ttft_s for turn in good])
    tpot = np.array([turn.tpot_s for turn in good if not math.isnan(turn.tpot_s)])
    e2e = np.array([turn.e2e_s for turn in good])
    failed = count - len(good)
    met = sum(turn.ttft_s <= slo.ttft_s and (math.isnan(turn.tpot_s) or turn.tpot_s <= slo.tpot_s) for turn in good)
    routed = [turn for turn in turns if turn.route]
    stayed = sum(turn.route in ("local", "replica") for turn in routed)
    # Failed turns have no gap between tokens; they count as endless ones all the same.
    return Summary(
        turns=count,
        success=len(good) / count if count else math.nan,
        goodput=met / count if count else math.nan,
        ttft_mean_ms=_mean(ttft, failed, patience_s),
        ttft_ok_ms=_mean(ttft),
        ttft_p50_ms=percentile(ttft, failed, 0.50),
        ttft_p90_ms=percentile(ttft, failed, 0.90),
        ttft_p99_ms=percentile(ttft, failed, 0.99),
        tpot_ok_ms=_mean(tpot),
        tpot_p50_ms=percentile(tpot, failed, 0.50),
        tpot_p99_ms=percentile(tpot, failed, 0.99),
        e2e_mean_ms=_mean(e2e, failed, turn_s),
        e2e_ok_ms=_mean(e2e),
        e2e_p50_ms=percentile(e2e, failed, 0.50),
        e2e_p99_ms=percentile(e2e, failed, 0.99),
        local_share=stayed / len(routed) if routed else 0.0,
    )


def percentile(good_s: Floats, failed: int, share: float) -> float | None:
    """Milliseconds: the least value that at least `share` of all do not exceed; None when that is a failed one."""
    rank = math.ceil(share * (len(good_s) + failed) - 1e-9)
    if rank < 1 or rank > len(good_s):
        return None
    return float(np.partition(good_s, rank - 1)[rank - 1]) * 1000


def _mean(good_s: Floats, failed: int = 0, each_s: float = 0.0) -> float | None:
    count = len(good_s) + failed
    return float(good_s.sum() + failed * each_s) / count * 1000 if count else None


def first_turns(turns: Iterable[TurnRecord]) -> list[TurnRecord]:
    return [turn for turn in turns if turn.turn == 1]


def later_turns(turns: Iterable[TurnRecord]) -> list[TurnRecord]:
    return [turn for turn in turns if turn.turn > 1]
