"""What was seen, turn by turn.

Rule of this room: a turn that was due is in the book, whatever became of it. Gaps between tokens are too many to keep;
they are counted in classes of 1 % width.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from loadtest.live import answer
from loadtest.live.answer import Answer
from loadtest.live.schedule import Planned, Window

RECENT = 500
"""Turns that the live display looks back on."""

_GAP_FROM_S, _GAP_GROWTH, _GAP_CLASSES = 1e-5, 1.01, 1700
"""From 10 µs (and less) to 220 s."""


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One turn of one conversation; moments are seconds from the start of the run.

    due_s: when it was to be sent. sent_s: when it was. held_back: the limit of requests in flight made it wait.
    tokens: of the answer. spoken: events with text.
    """

    arm: int
    conversation: int
    pair: int
    turn: int
    model: str
    due_s: float
    sent_s: float | None
    first_s: float | None
    last_s: float | None
    end_s: float
    fault: str | None
    held_back: bool = False
    prompt_tokens: int | None = None
    tokens: int = 0
    spoken: int = 0
    cached_tokens: int | None = None

    @property
    def ok(self) -> bool:
        return self.fault is None

    @property
    def ttft_s(self) -> float:
        """From when it was due; infinite after a failure, as are the others."""
        return self.first_s - self.due_s if self.ok and self.first_s is not None else np.inf

    @property
    def e2e_s(self) -> float:
        """From when it was due to the end of the answer."""
        return self.end_s - self.due_s if self.ok else np.inf

    @property
    def tpot_s(self) -> float | None:
        """Mean gap between tokens after the first; None for an answer of one token."""
        if not self.ok:
            return np.inf
        if self.tokens < 2 or self.first_s is None or self.last_s is None:
            return None
        return (self.last_s - self.first_s) / (self.tokens - 1)

    @property
    def service_ttft_s(self) -> float:
        """From when it was sent."""
        return (
            self.first_s - self.sent_s if self.ok and self.first_s is not None and self.sent_s is not None else np.inf
        )

    @property
    def service_e2e_s(self) -> float:
        """From when it was sent to the end of the answer."""
        return self.end_s - self.sent_s if self.ok and self.sent_s is not None else np.inf


class Gaps:
    """Counts gaps between events, in classes of 1 % width."""

    def __init__(self) -> None:
        self.counts: npt.NDArray[np.int64] = np.zeros(_GAP_CLASSES, dtype=np.int64)

    def add(self, times: array[float]) -> None:
        if len(times) < 2:
            return
        gaps = np.diff(np.frombuffer(times, dtype=np.float64))
        classes = np.log(np.maximum(gaps, _GAP_FROM_S) / _GAP_FROM_S) / np.log(_GAP_GROWTH)
        np.add.at(self.counts, np.minimum(classes.astype(np.int64), _GAP_CLASSES - 1), 1)

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    def percentile_s(self, share: float) -> float | None:
        """The middle of the class that holds the nearest-rank percentile; None without gaps."""
        total = self.total
        if not total:
            return None
        rank = max(1, int(np.ceil(share * total)))
        found = int(np.searchsorted(np.cumsum(self.counts), rank))
        return float(_GAP_FROM_S * _GAP_GROWTH ** (found + 0.5))


@dataclass(slots=True)
class Arm:
    """Of one endpoint: gaps by (turn 1, later turns), and counts of the whole run, warm-up included."""

    gaps: tuple[Gaps, Gaps] = field(default_factory=lambda: (Gaps(), Gaps()))
    ended: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    details: dict[str, str] = field(default_factory=dict)
    recent_ttft_s: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    recent_tpot_s: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    ended_tokens: Counter[int] = field(default_factory=Counter)
    """Tokens of answers by the second in which they ended: what can be said while others are under way."""
    resent: int = 0
    without_usage: int = 0


class Book:
    """records: the turns that count. started_s: of the caller's clock, when the run began."""

    def __init__(self, arms: int, window: Window, started_s: float = 0.0) -> None:
        self.window = window
        self.started_s = started_s
        self.arms = [Arm() for _ in range(arms)]
        self.records: list[TurnRecord] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self.sent = 0
        self.token_events = 0
        self.too_long = 0
        self.behind = 0
        self.late_s: array[float] = array("d")
        self.tokens_per_s: Counter[tuple[int, int]] = Counter()
        """Token events by (arm, second of the run)."""

    def sends(self) -> None:
        self.sent += 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)

    def ended(
        self, planned: Planned, turn: int, due_s: float, came: Answer, *, held_back: bool = False, behind: bool = False
    ) -> TurnRecord:
        """A turn is over. due_s: from the start of the run. behind: the answer before it ended after it was due."""
        self.in_flight -= 1
        arm = self.arms[planned.arm]
        start_s = self.started_s
        made = TurnRecord(
            arm=planned.arm,
            conversation=planned.number,
            pair=planned.pair,
            turn=turn,
            model=planned.model,
            due_s=due_s,
            sent_s=came.sent_s - start_s,
            first_s=None if came.first_s is None else came.first_s - start_s,
            last_s=None if came.last_s is None else came.last_s - start_s,
            end_s=came.end_s - start_s,
            fault=came.fault,
            held_back=held_back,
            prompt_tokens=came.prompt_tokens,
            tokens=came.output_tokens,
            spoken=len(came.times),
            cached_tokens=came.cached_tokens,
        )
        self.behind += behind
        if not held_back and not behind:
            self.late_s.append(came.sent_s - start_s - due_s)
        arm.resent += came.resent
        self._count(arm, made, came)
        return made

    def not_sent(self, planned: Planned, turn: int, due_s: float) -> None:
        """A turn that an earlier failure of its conversation left unsaid."""
        record = TurnRecord(
            arm=planned.arm,
            conversation=planned.number,
            pair=planned.pair,
            turn=turn,
            model=planned.model,
            due_s=due_s,
            sent_s=None,
            first_s=None,
            last_s=None,
            end_s=due_s,
            fault=answer.NOT_SENT,
        )
        self.arms[planned.arm].failed[answer.NOT_SENT] += 1
        if self.window.warmup_s <= due_s < self.window.end_s:
            self.records.append(record)

    def _count(self, arm: Arm, made: TurnRecord, came: Answer) -> None:
        self.token_events += made.spoken
        if made.fault is not None:
            arm.failed[made.fault] += 1
            if came.detail:
                arm.details.setdefault(made.fault, came.detail)
        else:
            arm.ended += 1
            arm.ended_tokens[int(made.end_s)] += made.tokens
            arm.without_usage += not came.has_usage
            arm.recent_ttft_s.append(made.ttft_s)
            if made.tpot_s is not None:
                arm.recent_tpot_s.append(made.tpot_s)
        if came.times:
            seconds = np.floor(np.frombuffer(came.times, dtype=np.float64) - self.started_s).astype(int)
            for second, count in zip(*np.unique(seconds, return_counts=True), strict=True):
                self.tokens_per_s[made.arm, int(second)] += int(count)
        if self.window.warmup_s <= made.due_s < self.window.end_s:
            self.records.append(made)
            if made.ok:
                arm.gaps[made.turn > 1].add(came.times)
