"""Twice the traffic that the pods can take: with limits, and without.

Rule of this room: capacity is what a search over rates finds without limits, on the same pods and targets.
"""

from __future__ import annotations

from dataclasses import replace

from gateway.core.admission.classes import ServiceClass
from gateway.core.admission.desk import AdmissionRules
from loadtest.experiments.client import Patience
from loadtest.experiments.outcomes import Slo
from loadtest.experiments.run import Spec
from loadtest.experiments.slo.gate import Control
from loadtest.experiments.slo.live import side_by_side
from loadtest.experiments.slo.play import Case, Played, due, goodput, mean, p99_ttft_ms, played, shown
from loadtest.experiments.slo.section import Effort, Finding, Section, Told
from loadtest.experiments.sweep import run_many
from loadtest.experiments.traffic import Extent, Stream
from loadtest.experiments.workloads import LongTurns

ASSIGNMENT = "1P_2D"
TALK = LongTurns("talk", 6, 1500, 150, 120, think_s=3.0, spread=0.3)
SLO = Slo(ttft_s=0.5, tpot_s=0.03)
RATES = (4.0, 5.0, 6.0, 7.0, 8.0, 9.0)
WARM_UP_S, END_S = 30.0, 90.0
PREFILL_TOKENS, DECODE_TOKENS = 6000, 120_000
PATIENCE = Patience(first_token_s=30.0)
SLOWNESS = 4.0
LIVE_WARM_UP_S, LIVE_END_S = 15.0, 60.0
WANTED = 0.9


def control(slowness: float = 1.0) -> Control:
    """Limits, and the target for a first token as deadline."""
    rules = AdmissionRules(prefill_tokens=PREFILL_TOKENS, decode_tokens=DECODE_TOKENS, queue_s=30.0)
    return Control(rules, {ServiceClass.STANDARD: SLO.ttft_s * slowness})


def case(name: str, rate: float, seed: int, limits: bool) -> Case:
    streams, extent = (Stream(TALK, rate),), Extent(until_s=END_S)
    spec = Spec(ASSIGNMENT, "local", streams, extent, f"overload/{seed}", patience=PATIENCE, slo=SLO)
    return Case(name, spec, control() if limits else Control())


def slowly(fast: Case) -> Case:
    """The same on pods that are slower by SLOWNESS: rates, targets and thinking stretched alike."""
    talk = replace(TALK, think_s=TALK.think_s * SLOWNESS)
    streams = tuple(replace(each, workload=talk, rate=(each.rate or 0.0) / SLOWNESS) for each in fast.spec.streams)
    slo = Slo(SLO.ttft_s * SLOWNESS, SLO.tpot_s * SLOWNESS)
    patience = replace(PATIENCE, first_token_s=60.0, repeats=2)
    spec = replace(fast.spec, streams=streams, extent=Extent(until_s=LIVE_END_S), slo=slo, patience=patience)
    return replace(fast, spec=spec, control=control(SLOWNESS) if fast.control.rules.limits else fast.control)


def _goodput(one: Played) -> float:
    return goodput(one.turns, one.case.spec.slo, WARM_UP_S, END_S)


def _run(effort: Effort) -> Told:
    seeds = range(1, 2 if effort.short else effort.seeds + 1)
    search = [case(f"{rate:g}/s", rate, seed, limits=False) for rate in RATES for seed in seeds]
    by_rate: dict[float, list[Played]] = {}
    for found in run_many(played, search, effort.jobs):
        by_rate.setdefault(found.case.spec.streams[0].rate or 0.0, []).append(found)
    capacity = max(by_rate, key=lambda rate: mean(map(_goodput, by_rate[rate])))
    twice = [case(f"2 × capacity, {word}", 2 * capacity, seed, limits) for word, limits in _ARMS for seed in seeds]
    both = run_many(played, twice, effort.jobs)
    rows = [("at capacity, without limits", capacity, by_rate[capacity])]
    rows += [(word, 2 * capacity, [each for each in both if each.case.name.endswith(word)]) for word, _ in _ARMS]
    at_capacity = mean(map(_goodput, by_rate[capacity]))
    share = {name: mean(map(_goodput, runs)) / at_capacity for name, _, runs in rows}
    text = [
        f"{ASSIGNMENT}, conversations of {TALK.num_turns} turns ({TALK.origin}). Targets: TTFT {SLO.ttft_s * 1000:g} "
        f"ms, TPOT {SLO.tpot_s * 1000:g} ms. Limits: `admission.prefill_tokens = {PREFILL_TOKENS}`, "
        f"`admission.decode_tokens = {DECODE_TOKENS}`, `slo.standard.ttft_p99_ms = {SLO.ttft_s * 1000:g}`. Capacity is "
        f"the rate of new conversations (of {', '.join(f'{rate:g}' for rate in RATES)} per second) with most turns per "
        f"second within both targets; {len(seeds)} seeds, turns due from {WARM_UP_S:g} to {END_S:g} s.",
        "",
        "| | conversations/s | goodput, turns/s | of that at capacity | P99 TTFT of those let in, ms | refused turns |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, rate, runs in rows:
        p99 = mean(p99_ttft_ms(due(each.turns, WARM_UP_S, END_S)) for each in runs)
        refused = mean(sum(each.refused.values()) for each in runs)
        good = mean(map(_goodput, runs))
        text.append(f"| {name} | {rate:g} | {shown(good)} | {share[name]:.0%} | {shown(p99)} | {refused:.0f} |")
    with_limits, without = share[_ARMS[1][0]], share[_ARMS[0][0]]
    finding = Finding(
        f"overload at 2 × capacity: goodput with admission at least {WANTED:.0%} of that at capacity, collapse without",
        f"{with_limits:.0%} with, {without:.0%} without",
        with_limits >= WANTED > without,
    )
    if effort.live:
        text += _live(capacity)
    return Told([finding], text)


_ARMS = (("2 × capacity, without limits", False), ("2 × capacity, with limits", True))


def _live(capacity: float) -> list[str]:
    text = [
        "",
        f"The same once on HTTP pod simulators whose steps take {SLOWNESS:g} times as long, in real time, beside "
        f"virtual time (rates divided, targets and thinking multiplied by {SLOWNESS:g}; turns due from "
        f"{LIVE_WARM_UP_S:g} to {LIVE_END_S:g} s):",
        "",
        "| | goodput, turns/s: virtual | HTTP | P99 TTFT let in, ms: virtual | HTTP | refused: virtual | HTTP |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    cases = [case("at capacity, without limits", capacity, 1, limits=False)]
    cases += [case(word, 2 * capacity, 1, limits) for word, limits in _ARMS]
    slow = [slowly(each) for each in cases]
    for each, pair in zip(slow, side_by_side(slow, SLOWNESS), strict=True):
        cells = [f"{goodput(one.turns, each.spec.slo, LIVE_WARM_UP_S, LIVE_END_S):.3g}" for one in pair]
        cells += [shown(p99_ttft_ms(due(one.turns, LIVE_WARM_UP_S, LIVE_END_S))) for one in pair]
        cells += [str(sum(one.refused.values())) for one in pair]
        text.append(f"| {each.name} | {' | '.join(cells)} |")
    return text


SECTION = Section("overload", "Overload", _run)
