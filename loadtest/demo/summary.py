"""Medians and changes.

Rule of this room: arithmetic on rows and counters; no I/O, and nothing is rounded before it is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

import msgspec

from loadtest.conversations import PlayedTurn
from loadtest.demo.counters import Counted
from loadtest.demo.record import Row


class Run(msgspec.Struct, frozen=True):
    """One policy's run: its rows and what comes of them. Medians are None where there is nothing to take them of.

    cached_share: of the prompt tokens of turn 2 and later, those that were found in a cache (0 to 1).
    timers_late_ms: 95th percentile of how late timers were on this machine meanwhile.
    """

    policy: str
    gateway: str
    pods: dict[str, str]
    turns: list[Row]
    first_turn_ttft_ms: float | None
    later_turns_ttft_ms: float | None
    later_turns_tpot_ms: float | None
    cached_share: float
    prefill_requests: int
    kv_bytes: int
    kv_reads: int
    timers_late_ms: float


class Change(msgspec.Struct, frozen=True):
    """From the run with every turn through P to the run with later turns straight to D, in percent."""

    first_turn_ttft: float | None
    later_turns_ttft: float | None
    later_turns_tpot: float | None
    prefill_requests: float | None
    kv_reads: float | None
    kv_bytes: float | None


class Summary(msgspec.Struct, frozen=True):
    """What `--json` writes. `same_traffic`: prompts and answers of both runs were the same, token for token."""

    simulated: bool
    profile: str
    note: str
    same_traffic: bool
    ppd: Run
    pd: Run
    change_percent: Change
    duration_s: float


def run_of(
    policy: str, gateway: str, pods: dict[str, str], rows: list[Row], counted: Counted, timers_late_ms: float
) -> Run:
    """A run's aggregates."""
    later = [row for row in rows if row.turn >= 2]
    prompt_tokens = sum(row.context_tokens + row.new_tokens for row in later)
    return Run(
        policy=policy,
        gateway=gateway,
        pods=pods,
        turns=rows,
        first_turn_ttft_ms=_median(row.ttft_ms for row in rows if row.turn == 1),
        later_turns_ttft_ms=_median(row.ttft_ms for row in later),
        later_turns_tpot_ms=_median(row.tpot_ms for row in later if row.tpot_ms is not None),
        cached_share=sum(row.cached_tokens or 0 for row in later) / prompt_tokens if prompt_tokens else 0.0,
        prefill_requests=counted.prefill_requests,
        kv_bytes=counted.kv_bytes,
        kv_reads=counted.kv_reads,
        timers_late_ms=timers_late_ms,
    )


def change(pd: Run, ppd: Run) -> Change:
    """What `ppd` changes against `pd`."""
    return Change(
        first_turn_ttft=percent(pd.first_turn_ttft_ms, ppd.first_turn_ttft_ms),
        later_turns_ttft=percent(pd.later_turns_ttft_ms, ppd.later_turns_ttft_ms),
        later_turns_tpot=percent(pd.later_turns_tpot_ms, ppd.later_turns_tpot_ms),
        prefill_requests=percent(pd.prefill_requests, ppd.prefill_requests),
        kv_reads=percent(pd.kv_reads, ppd.kv_reads),
        kv_bytes=percent(pd.kv_bytes, ppd.kv_bytes),
    )


def percent(before: float | None, after: float | None) -> float | None:
    """The change from `before` to `after`; None when there is nothing to compare with."""
    return (after - before) / before * 100 if before and after is not None else None


def same_traffic(one: Sequence[PlayedTurn], other: Sequence[PlayedTurn]) -> bool:
    """True when both plays had the same prompts and the same answers."""
    return sorted(map(_words, one)) == sorted(map(_words, other))


def _words(played: PlayedTurn) -> tuple[str, int, int, int, str]:
    return played.conversation, played.turn, played.prompt_tokens, played.output_tokens, played.text


def _median(values: Iterable[float]) -> float | None:
    known = list(values)
    return median(known) if known else None
