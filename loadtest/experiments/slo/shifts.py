"""What changes under a table that was measured before: hardware, traffic, both.

Rule of this room: data, and the experiment that it means. How many come along is chosen by what they take of the
prefill pod's time, which no axis of a table shows: half of it, as if the pod had become half as fast.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from gateway.core.drift.monitor import DriftRules
from gateway.core.weights import Weights
from loadtest.experiments.gate import Knobs
from loadtest.experiments.outcomes import Fate
from loadtest.experiments.run import Hardware, Spec, run
from loadtest.experiments.scenario import ChangeRate, Event, Slow
from loadtest.experiments.slo import oracle
from loadtest.experiments.slo.oracle import Regime
from loadtest.experiments.tables import Plan
from loadtest.experiments.traffic import Extent, Stream
from loadtest.experiments.workloads import LongTurns

ASSIGNMENT = "2P_2D"
REPORTS = LongTurns("reports", 4, 1000, 1200, 200, think_s=3.0, spread=0.3)
DOCUMENTS = LongTurns("documents", 5, 1024, 768, 128, think_s=3.0, spread=0.4)
PATIENT = replace(REPORTS, name="patient", think_s=60.0)
BRIEFS = LongTurns("briefs", 1, 6000, 1, 64, spread=0.2)
ESSAYS = LongTurns("essays", 1, 128, 1, 800, spread=0.4)
PASTES = LongTurns("pastes", 3, 2000, 2000, 64, think_s=3.0, spread=0.3)
WEIGHTS = Weights(1.0, 3.0)
PLAN = Plan(
    contexts=(1024, 2048, 4096),
    news=(1200,),
    outputs=(200,),
    rates=(1.5, 6.0, 24.0),
    repeats=5,
    samples=90,
    window_s=15.0,
)
"""Of the tables. Windows are long, so that what is decided is more than the noise of the measuring."""

SLOWNESS = 2.0
BUSY = 0.5
"""The share of the prefill pods' time that others take."""

TALKS, WAITERS, BESIDE = "talks", "waiters", "beside"
COUNTED = (TALKS, WAITERS)
"""Whose later turns are measured."""

_RATE = 1.5
_PREFILL_PODS = ("p0", "p1")
_BURST_S = 10.0
_BURSTS = 60
_AT_ONCE = 30


@dataclass(frozen=True, slots=True)
class Change:
    """streams: with their rates before it. events: so many seconds after it. after: what profiling again meets.

    plan: of the tables.
    """

    name: str
    what: str
    streams: tuple[Stream, ...]
    events: tuple[Event, ...]
    after: Regime = field(default_factory=Regime)
    weights: Weights = WEIGHTS
    assignment: str = ASSIGNMENT
    plan: Plan = PLAN
    hardware: Hardware = field(default_factory=Hardware)

    def spec(
        self,
        seed: str,
        until_s: float,
        *,
        at_s: float | None,
        policy: str = "ppd",
        tables: Path | None = None,
        drift: DriftRules | None = None,
    ) -> Spec:
        """The experiment. at_s: when it changes, None for never."""
        events = () if at_s is None else tuple(replace(event, at_s=event.at_s + at_s) for event in self.events)
        return Spec(
            assignment=self.assignment,
            policy=policy,
            streams=self.streams,
            extent=Extent(until_s=until_s),
            seed=seed,
            hardware=self.hardware,
            knobs=Knobs(weights=self.weights),
            events=events,
            tables=tables,
            drift=drift,
        )

    @property
    def talks(self) -> Stream:
        """The conversations that count, before it."""
        return self.streams[0]


@lru_cache(maxsize=16)
def seconds_on_p(workload: LongTurns, hardware: Hardware) -> float:
    """What one conversation's first turn takes of a prefill pod's time: many at once, one after the other."""
    spec = Spec("1P_3D", "pd", (Stream(workload, 1e6, arrivals="even"),), Extent(conversations=_AT_ONCE), "at once")
    turns = run(replace(spec, hardware=hardware)).turns
    first_s = sorted(turn.at_s + turn.ttft_s for turn in turns if turn.turn == 1 and turn.fate is Fate.GOOD)
    return (first_s[-1] - first_s[0]) / (len(first_s) - 1)


def rate_of(workload: LongTurns, share: float, hardware: Hardware, slowness: float = 1.0) -> float:
    """The rate at which those take a share of the prefill pods' time."""
    return round(len(_PREFILL_PODS) * share / (slowness * seconds_on_p(workload, hardware)), 2)


def changes(hardware: Hardware | None = None) -> tuple[Change, ...]:
    """Those that the report is about."""
    hardware = hardware or Hardware()
    briefs, fewer = (rate_of(BRIEFS, BUSY, hardware, slowness) for slowness in (1.0, SLOWNESS))
    slow = tuple(Slow(0.0, pod, SLOWNESS) for pod in _PREFILL_PODS)
    regime, streams = Regime(slow=tuple((pod, SLOWNESS) for pod in _PREFILL_PODS)), (_talks(), _stream(BRIEFS))
    come = f"one-turn conversations of {BRIEFS.first_tokens:,} tokens come as well"
    return (
        Change("hardware", "the prefill pods become twice as slow", streams, slow, regime, hardware=hardware),
        Change(
            "traffic",
            f"{come}, {briefs:g} a second, which is {BUSY:.0%} of the prefill pods' time",
            streams,
            (ChangeRate(0.0, briefs, BESIDE),),
            Regime(beside=BRIEFS, rate=briefs),
            hardware=hardware,
        ),
        Change(
            "both",
            f"the prefill pods become twice as slow, and {come}, {fewer:g} a second: again {BUSY:.0%} of their time",
            streams,
            (*slow, ChangeRate(0.0, fewer, BESIDE)),
            replace(regime, beside=BRIEFS, rate=fewer),
            hardware=hardware,
        ),
    )


def others(hardware: Hardware | None = None) -> tuple[Change, ...]:
    """Other traffic that was tried."""
    hardware = hardware or Hardware()
    few = rate_of(BRIEFS, BUSY / 2, hardware)
    return (
        _beside(
            "fewer briefs",
            f"one-turn conversations of {BRIEFS.first_tokens:,} tokens, {few:g} a second: {BUSY / 2:.0%} of their time",
            BRIEFS,
            few,
        ),
        _beside("pastes", "conversations of 3 turns of 2,000 tokens, one a second", PASTES, 1.0),
        _beside("essays", "one-turn conversations with answers of 800 tokens, two a second", ESSAYS, 2.0),
        Change(
            "bursts",
            f"the same conversations begin in bursts: {2 * _RATE:g} a second every other {_BURST_S:g} s",
            (_talks(),),
            tuple(ChangeRate(n * _BURST_S, 0.0 if n % 2 else 2 * _RATE, TALKS) for n in range(_BURSTS)),
        ),
        Change(
            "patience",
            f"people think for {PATIENT.think_s:g} s in place of {REPORTS.think_s:g}: more than caches hold",
            (_talks(), replace(_stream(PATIENT), tenant=WAITERS)),
            (ChangeRate(0.0, 0.0, TALKS), ChangeRate(0.0, _RATE, WAITERS)),
        ),
        *_documents(),
    )


def _documents() -> tuple[Change, ...]:
    """A world where S says D everywhere from the start, but tables are measured so briefly that most cells tie, and a
    tie keeps the route of turn 1."""
    streams = (Stream(DOCUMENTS, 2.0, tenant=TALKS), _stream(BRIEFS))
    told = "one prefill and three decode pods, 5 turns, tables of two repeats"
    slow, beside = Regime(slow=(("p0", SLOWNESS),)), Regime(beside=BRIEFS, rate=2.0)
    changed = (
        ("documents, slower", f"{told}: the prefill pod becomes twice as slow", (Slow(0.0, "p0", SLOWNESS),), slow),
        ("documents, briefs", f"{told}: briefs come as well, 2 a second", (ChangeRate(0.0, 2.0, BESIDE),), beside),
    )
    return tuple(
        Change(name, what, streams, events, after, Weights(1.0, 2.0), "1P_3D", oracle.PLAN)
        for name, what, events, after in changed
    )


def _talks() -> Stream:
    return Stream(REPORTS, _RATE, tenant=TALKS)


def _stream(workload: LongTurns) -> Stream:
    """Of which there is nothing yet."""
    return Stream(workload, 0.0, tenant=BESIDE)


def _beside(name: str, what: str, workload: LongTurns, rate: float) -> Change:
    regime = Regime(beside=workload, rate=rate)
    return Change(name, what, (_talks(), _stream(workload)), (ChangeRate(0.0, rate, BESIDE),), regime)
