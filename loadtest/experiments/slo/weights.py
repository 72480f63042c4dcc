"""Weights that miss a target, and the controller that moves them.

Rule of this room: both arms meet the same traffic and begin with the same weights.
"""

from __future__ import annotations

from gateway.core.admission.classes import ServiceClass
from gateway.core.slo import SloSettings, Targets
from gateway.core.weights import Weights
from gateway.ops.config import SIMULATED_TABLE
from loadtest.experiments.client import Patience
from loadtest.experiments.gate import Knobs
from loadtest.experiments.outcomes import Slo
from loadtest.experiments.run import Spec
from loadtest.experiments.slo.gate import Control
from loadtest.experiments.slo.play import Case, Played, due, mean, p99_ttft_ms, played, shown
from loadtest.experiments.slo.section import Effort, Finding, Section, Told
from loadtest.experiments.sweep import run_many
from loadtest.experiments.traffic import Extent, Stream
from loadtest.experiments.workloads import LongTurns

ASSIGNMENT = "1P_2D"
TALK = LongTurns("pasting talk", 6, 1500, 600, 120, think_s=3.0, spread=0.3)
RATE = 2.2
CONFIGURED = Weights(0.25, 4.0)
TARGETS = Targets(ttft_p99_ms=1500.0, tpot_p99_ms=30.0)
WINDOW_S = 20.0
END_S, LAST_S = 480.0, 120.0


def case(name: str, seed: int, targets: bool) -> Case:
    spec = Spec(
        ASSIGNMENT,
        "ppd",
        (Stream(TALK, RATE),),
        Extent(until_s=END_S),
        f"weights/{seed}",
        knobs=Knobs(weights=CONFIGURED),
        patience=Patience(first_token_s=60.0),
        tables=SIMULATED_TABLE,
        slo=Slo((TARGETS.ttft_p99_ms or 0.0) / 1000, (TARGETS.tpot_p99_ms or 0.0) / 1000),
    )
    slo = SloSettings({ServiceClass.STANDARD: TARGETS}, window_s=WINDOW_S) if targets else SloSettings()
    return Case(name, spec, Control(slo=slo))


def swing(one: Played) -> int:
    """How far the step went back once it had been where it went furthest."""
    steps = [0, *(step for _, step in one.steps)]
    furthest = max(steps, key=abs)
    return max(abs(furthest - step) for step in steps[steps.index(furthest) :])


def _last(one: Played) -> float:
    return p99_ttft_ms(due(one.turns, END_S - LAST_S, END_S))


def _run(effort: Effort) -> Told:
    seeds = range(1, 2 if effort.short else effort.seeds + 1)
    cases = [case(name, seed, targets) for name, targets in _ARMS for seed in seeds]
    runs = run_many(played, cases, effort.jobs)
    without, targeted = runs[: len(seeds)], runs[len(seeds) :]
    text = [
        f"{ASSIGNMENT}, {RATE:g} conversations per second ({TALK.origin}), policy `ppd` with the table that comes "
        f"along and weights ttft={CONFIGURED.w_ttft:g},tpot={CONFIGURED.w_tpot:g}. Targets: "
        f"`ttft_p99_ms = {TARGETS.ttft_p99_ms:g}`, `tpot_p99_ms = {TARGETS.tpot_p99_ms:g}`, "
        f"`slo.window_s = {WINDOW_S:g}`. P99 TTFT of turns due in the last {LAST_S:g} of {END_S:g} s.",
        "",
        "| seed | without targets, ms | with targets, ms | steps (seconds: step) |",
        "|---|---:|---:|---|",
    ]
    for seed, one, other in zip(seeds, without, targeted, strict=True):
        steps = ", ".join(f"{at_s:.0f}: {step:+d}" for at_s, step in other.steps)
        text.append(f"| {seed} | {shown(_last(one))} | {shown(_last(other))} | {steps} |")
    missed, met = mean(map(_last, without)), mean(map(_last, targeted))
    most = max(map(swing, targeted))
    target = TARGETS.ttft_p99_ms or 0.0
    return Told(
        [
            Finding(
                f"targets: a P99 TTFT that the weights miss is brought within {target:g} ms",
                f"{shown(met)} ms with targets, {shown(missed)} ms without",
                met <= target < missed,
            ),
            Finding("targets: once found, the step moves by one at most", f"by {most} in {END_S:g} s", most <= 1),
        ],
        text,
    )


_ARMS = (("without targets", False), ("with targets", True))
SECTION = Section("weights", "Targets move the weights", _run)
