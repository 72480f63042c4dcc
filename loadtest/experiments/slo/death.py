"""A decode pod dies under load.

Rule of this room: the gateway is not told. A client whose stream broke, or who got an error, sends the turn again, as
people do; its first token counts from when the turn was first due.
"""

from __future__ import annotations

import math
from dataclasses import replace

from loadtest.experiments.outcomes import Fate, TurnRecord
from loadtest.experiments.run import Spec
from loadtest.experiments.scenario import Kill
from loadtest.experiments.slo import overload
from loadtest.experiments.slo.live import side_by_side
from loadtest.experiments.slo.overload import PATIENCE, SLO, SLOWNESS, TALK
from loadtest.experiments.slo.play import Case, Played, due, mean, p99_ttft_ms, played, shown
from loadtest.experiments.slo.section import Effort, Finding, Section, Told
from loadtest.experiments.sweep import run_many
from loadtest.experiments.traffic import Extent, Stream

ASSIGNMENT = "2P_3D"
RATE = 6.0
POD = "d0"
DIES_S, END_S = 60.0, 120.0
BIN_S = 5.0
WANTED_S = 30.0
LIVE_DIES_S = 40.0
LIVE_END_S = 90.0


def case(seed: int) -> Case:
    """With limits; clients repeat."""
    patience = replace(PATIENCE, repeats=5, repeat_s=0.5)
    spec = Spec(
        ASSIGNMENT,
        "local",
        (Stream(TALK, RATE),),
        Extent(until_s=END_S),
        f"death/{seed}",
        patience=patience,
        slo=SLO,
        events=(Kill(DIES_S, POD),),
    )
    return Case(f"{POD} dies", spec, overload.control())


def slowly(fast: Case) -> Case:
    slow = overload.slowly(fast)
    extent, events = Extent(until_s=LIVE_END_S), (Kill(LIVE_DIES_S, POD),)
    patience = replace(slow.spec.patience, repeats=fast.spec.patience.repeats)
    return replace(slow, spec=replace(slow.spec, extent=extent, events=events, patience=patience))


def lost(one: Played) -> int:
    """Conversations that did not go on."""
    return len({turn.conversation for turn in one.turns if turn.fate in (Fate.FAILED, Fate.TIMED_OUT)})


def refused(one: Played) -> int:
    """Conversations that were refused at some turn."""
    return len({turn.conversation for turn in one.turns if turn.fate is Fate.REJECTED})


def bins(one: Played, dies_s: float, end_s: float) -> list[tuple[float, float]]:
    """(seconds after the death, P99 TTFT in ms of the turns due in the BIN_S from then on)."""
    found = []
    at_s = dies_s
    while at_s < end_s:
        found.append((at_s - dies_s, p99_ttft_ms(due(one.turns, at_s, at_s + BIN_S))))
        at_s += BIN_S
    return found


def back_after_s(one: Played, dies_s: float, end_s: float) -> float:
    """From when on every bin is within the target again."""
    bad = [after_s + BIN_S for after_s, p99 in bins(one, dies_s, end_s) if p99 > one.case.spec.slo.ttft_s * 1000]
    return max(bad, default=0.0)


def before(one: Played, dies_s: float) -> list[TurnRecord]:
    """Turns that were over when the pod died."""
    return [turn for turn in due(one.turns, dies_s / 2, dies_s) if turn.at_s + turn.e2e_s < dies_s]


def _run(effort: Effort) -> Told:
    runs = run_many(played, [case(seed) for seed in range(1, 2 if effort.short else effort.seeds + 1)], effort.jobs)
    worst_s = max(back_after_s(one, DIES_S, END_S) for one in runs)
    gone = sum(map(lost, runs))
    text = [
        f"{ASSIGNMENT}, {RATE:g} conversations per second ({TALK.origin}); {POD} is killed at {DIES_S:g} s. Whose "
        f"stream broke sends the turn again after {runs[0].case.spec.patience.repeat_s:g} s. {len(runs)} seeds; "
        f"target: TTFT {SLO.ttft_s * 1000:g} ms.",
        "",
        "| seed | conversations | lost | refused | turns sent again | P99 TTFT before, ms | back within target |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for number, one in enumerate(runs, start=1):
        all_of_them = len({turn.conversation for turn in one.turns})
        p99 = p99_ttft_ms(before(one, DIES_S))
        text.append(
            f"| {number} | {all_of_them} | {lost(one)} | {refused(one)} | {one.repeated} | {shown(p99)} "
            f"| after {back_after_s(one, DIES_S, END_S):g} s |"
        )
    after = [bins(one, DIES_S, END_S) for one in runs]
    heads = [f"{after_s:g} s" for after_s, _ in after[0]]
    means = [mean(some[index][1] for some in after) for index in range(len(heads))]
    text += [
        "",
        f"P99 TTFT (ms) of turns due in the {BIN_S:g} s from so long after the death, mean of the seeds:",
        "",
        f"| {' | '.join(heads)} |",
        "|" + "---:|" * len(heads),
        f"| {' | '.join(map(shown, means))} |",
    ]
    findings = [
        Finding("pod death under load: no lost conversation", f"{gone} lost", gone == 0),
        Finding(
            f"pod death under load: P99 TTFT back within {WANTED_S:g} s",
            f"within its target after {worst_s:g} s in the slowest seed",
            worst_s <= WANTED_S and not math.isinf(worst_s),
        ),
    ]
    if effort.live:
        text += _live()
    return Told(findings, text)


def _live() -> list[str]:
    slow = slowly(case(1))
    ((virtual, real),) = side_by_side([slow], SLOWNESS)
    text = [
        "",
        f"Once on HTTP pod simulators with steps {SLOWNESS:g} times as long, beside virtual time ({POD} dies at "
        f"{LIVE_DIES_S:g} s; target {slow.spec.slo.ttft_s * 1000:g} ms):",
        "",
        "| | conversations lost | refused | turns sent again | P99 TTFT before, ms | back within target |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, one in (("virtual", virtual), ("HTTP", real)):
        p99 = p99_ttft_ms(before(one, LIVE_DIES_S))
        text.append(
            f"| {name} | {lost(one)} | {refused(one)} | {one.repeated} | {shown(p99)} "
            f"| after {back_after_s(one, LIVE_DIES_S, LIVE_END_S):g} s |"
        )
    return text


SECTION = Section("death", "A decode pod dies", _run)
