"""One experiment behind a desk, and the numbers that the sections need of it.

Rule of this room: the seed, the traffic and the pods are those of `loadtest.experiments.run`; only the gate differs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from gateway.core.policies import MeasuredTable, Policy
from loadtest.experiments import assignments, fleet, scenario
from loadtest.experiments.client import Client
from loadtest.experiments.fleet import Watch
from loadtest.experiments.outcomes import Fate, Slo, TurnRecord, percentile
from loadtest.experiments.run import Result, Spec, Stage, policy_of
from loadtest.experiments.run import play as play_stage
from loadtest.experiments.slo.gate import AdmittingGate, Control
from loadtest.experiments.traffic import traffic


@dataclass(frozen=True, slots=True)
class Case:
    """What is run. name: for the report."""

    name: str
    spec: Spec
    control: Control = field(default_factory=Control)


class Played(NamedTuple):
    """turns: of all conversations. refused: by (class, why). repeated: turns that a client sent again.

    alarms: when those of drift went on.
    """

    case: Case
    turns: list[TurnRecord]
    ended_s: float
    refused: dict[str, int]
    queued: int
    repeated: int
    steps: list[tuple[float, int]]
    alarms: tuple[float, ...] = ()


def stage_of(case: Case, policy: Policy | None = None) -> tuple[Stage, AdmittingGate]:
    """Set up, not played."""
    spec = case.spec
    pods = assignments.parse(spec.assignment).pods()
    names = [pod.url for pod in pods]
    scenario.check(spec.events, names)
    cluster, view = fleet.make(pods, spec.hardware.load(), readback=spec.knobs.readback)
    watch = Watch(cluster, view, random.Random(f"luck/{spec.seed}"))
    gate = AdmittingGate(cluster, view, policy or policy_of(spec), watch, spec.knobs, case.control, spec.seed)
    client = Client(cluster, gate, traffic(spec.streams, spec.events, spec.extent, spec.seed), spec.patience)
    scenario.schedule(spec.events, cluster)
    return Stage(spec, gate, client, watch, names), gate


def played(case: Case) -> Played:
    """Play it to its end."""
    stage, gate = stage_of(case)
    result: Result = play_stage(stage)
    refused: dict[str, int] = {}
    for (_, why), count in gate.desk.refused.items():
        refused[why] = refused.get(why, 0) + count
    refused["quota"] = sum(account.refused for _, account in gate.quotas)
    return Played(
        case,
        result.turns,
        result.ended_s,
        refused,
        sum(gate.desk.queued.values()),
        stage.client.repeated,
        gate.steps,
        alarms_of(gate.policy),
    )


def alarms_of(policy: Policy) -> tuple[float, ...]:
    """When alarms of drift went on, by the policy's clock."""
    drift = policy.drift if isinstance(policy, MeasuredTable) else None
    return () if drift is None else tuple(change.at_s for change in drift.changes if change.drifting)


def due(turns: Iterable[TurnRecord], from_s: float, to_s: float) -> list[TurnRecord]:
    """Turns that were due in that time."""
    return [turn for turn in turns if from_s <= turn.at_s < to_s]


def within(turn: TurnRecord, slo: Slo) -> bool:
    """Whether it was answered as promised."""
    if turn.fate is not Fate.GOOD or turn.ttft_s > slo.ttft_s:
        return False
    return math.isnan(turn.tpot_s) or turn.tpot_s <= slo.tpot_s


def goodput(turns: Sequence[TurnRecord], slo: Slo, from_s: float, to_s: float) -> float:
    """Turns per second that were answered as promised, of those due in that time."""
    return sum(within(turn, slo) for turn in due(turns, from_s, to_s)) / (to_s - from_s)


def p99_ttft_ms(turns: Sequence[TurnRecord]) -> float:
    """Of turns that were let in; one that failed or timed out counts as endless. NaN of none."""
    let_in = [turn for turn in turns if turn.fate in (Fate.GOOD, Fate.TIMED_OUT, Fate.FAILED)]
    good = np.array([turn.ttft_s for turn in let_in if turn.fate is Fate.GOOD])
    if not let_in:
        return math.nan
    found = percentile(good, len(let_in) - len(good), 0.99)
    return math.inf if found is None else found


def mean(values: Iterable[float]) -> float:
    found = list(values)
    return math.fsum(found) / len(found)


Tell = Callable[[str], None]


def shown(value: float, digits: int = 3) -> str:
    """For a table."""
    if math.isinf(value):
        return "∞"
    if math.isnan(value):
        return ""
    return f"{value:.{digits}g}" if abs(value) < 1000 else f"{value:,.0f}"
