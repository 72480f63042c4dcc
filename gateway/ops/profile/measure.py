"""One cell being measured.

Rule of this room: told what happens and when, this knows when to stop and makes the numbers. No clock, no I/O, so
that live pods and the engine model are measured alike.

Turns come in three parts: the ramp, which brings the system to its load; the measured turns; and the tail, which keeps
the load up until the last measured turn has ended. Only measured turns count.

Stop rules, each of which means "overloaded" and ends the cell (turns that have not ended then did not succeed):
- more turns in flight than `Limits.max_in_flight`;
- more measured turns failed than 95 % success allows, of all that were planned;
- the last quarter of the first-token times is on average `GROWTH` times the first quarter and `GROWTH_S` more.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from lut.cell import HEALTHY_SUCCESS

SLOWEST_TPOT_S = 0.5
WARM_SHARE = 0.9
GROWTH = 4.0
GROWTH_S = 1.0
_GROWTH_TURNS = 24
_GROWTH_EVERY = 8


class Fate(enum.Enum):
    """What became of a turn. COLD: its context was no longer on D, so it is no turn of this cell."""

    GOOD = "good"
    FAILED = "failed"
    COLD = "cold"


@dataclass(frozen=True, slots=True)
class Limits:
    """When a cell is clearly overloaded.

    max_in_flight: turns at the gateway. patience_s: a turn without its first token by then has failed (paper: 30 s),
    and so has one that takes longer by `SLOWEST_TPOT_S` per token.
    """

    max_in_flight: int
    patience_s: float = 30.0

    def whole_turn_s(self, output_tokens: int) -> float:
        """The longest a turn may take."""
        return self.patience_s + SLOWEST_TPOT_S * output_tokens


@dataclass(slots=True)
class _Turn:
    sent_s: float
    first_s: float | None = None
    last_s: float | None = None
    tokens: int = 0
    fate: Fate | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """The numbers of one cell, seconds. Latencies are those of the turns that ended well."""

    samples: int
    good: int
    cold: int
    ttft_mean_s: float | None
    ttft_p99_s: float | None
    tpot_mean_s: float | None
    tpot_p99_s: float | None
    rate_achieved: float | None
    overloaded: str | None
    """Which rule stopped it, for people."""
    duration_s: float
    """From the first turn of the ramp to the end."""
    remark: str = ""
    """What else a person should know."""

    @property
    def success(self) -> float:
        return self.good / self.samples if self.samples else 0.0


@dataclass
class CellRun:
    """Turns are numbered from 0 in the order of sending; the measured ones begin at `ramp`."""

    ramp: int
    samples: int
    limits: Limits
    overloaded: str | None = None
    in_flight: int = 0
    _turns: list[_Turn] = field(default_factory=list)
    _first_token_s: list[float] = field(default_factory=list)
    _open: int = 0
    _failed: int = 0

    def __post_init__(self) -> None:
        self._open = self.samples

    @property
    def over(self) -> bool:
        """Nothing more need be sent, and what is in flight may be given up."""
        return self.overloaded is not None or self._open == 0

    def sent(self, now_s: float) -> int:
        """A turn goes out; returns its number."""
        self._turns.append(_Turn(now_s))
        self.in_flight += 1
        if self.in_flight > self.limits.max_in_flight:
            self._stop(f"{self.in_flight} turns in flight")
        return len(self._turns) - 1

    def first(self, number: int, now_s: float) -> None:
        """Its first token came."""
        turn = self._turns[number]
        turn.first_s = now_s
        self._first_token_s.append(now_s - turn.sent_s)
        if len(self._first_token_s) >= _GROWTH_TURNS and len(self._first_token_s) % _GROWTH_EVERY == 0:
            self._look_for_growth()

    def ended(self, number: int, now_s: float, fate: Fate, tokens: int = 0, last_s: float | None = None) -> None:
        """It is over. tokens: of its answer; last_s: when the last of them came (default: now)."""
        turn = self._turns[number]
        turn.fate, turn.tokens, turn.last_s = fate, tokens, now_s if last_s is None else last_s
        self.in_flight -= 1
        if not self._measured(number):
            return
        self._open -= 1
        if fate is Fate.FAILED:
            self._failed += 1
            if self._failed > (1 - HEALTHY_SUCCESS) * self.samples + 1e-9:
                self._stop(f"{self._failed} turns failed")

    def result(self, now_s: float, remark: str = "") -> Measured:
        """The numbers. Measured turns that have not ended did not succeed; overloaded on the ramp, that is measured."""
        turns = self._turns[self.ramp : self.ramp + self.samples] or (self._turns if self.overloaded else [])
        counted = [turn for turn in turns if turn.fate is not Fate.COLD]
        good = [turn for turn in counted if turn.fate is Fate.GOOD]
        ttft = [turn.first_s - turn.sent_s for turn in good if turn.first_s is not None]
        tpot = [
            (turn.last_s - turn.first_s) / (turn.tokens - 1)
            for turn in good
            if turn.tokens > 1 and turn.first_s is not None and turn.last_s is not None
        ]
        span_s = turns[-1].sent_s - turns[0].sent_s if len(turns) > 1 else 0.0
        return Measured(
            samples=len(counted),
            good=len(good),
            cold=len(turns) - len(counted),
            ttft_mean_s=_mean(ttft),
            ttft_p99_s=p99(ttft),
            tpot_mean_s=_mean(tpot),
            tpot_p99_s=p99(tpot),
            rate_achieved=(len(turns) - 1) / span_s if span_s > 0 else None,
            overloaded=self.overloaded,
            duration_s=now_s - self._turns[0].sent_s if self._turns else 0.0,
            remark=remark,
        )

    def _measured(self, number: int) -> bool:
        return self.ramp <= number < self.ramp + self.samples

    def _stop(self, why: str) -> None:
        if self.overloaded is None:
            self.overloaded = why

    def _look_for_growth(self) -> None:
        quarter = len(self._first_token_s) // 4
        before = math.fsum(self._first_token_s[:quarter]) / quarter
        now = math.fsum(self._first_token_s[-quarter:]) / quarter
        if now > GROWTH * before + GROWTH_S:
            self._stop(f"first token after {before:.2f} s, then {now:.2f} s")


def is_cold(cached_tokens: float, wanted_tokens: float, block_size: int) -> bool:
    """Whether D holds too little of what it should hold for the turn to be one of its cell."""
    return cached_tokens + block_size < WARM_SHARE * wanted_tokens


def p99(values: Sequence[float]) -> float | None:
    """The smallest value that at least 99 % of them do not exceed."""
    return sorted(values)[math.ceil(0.99 * len(values)) - 1] if values else None


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
