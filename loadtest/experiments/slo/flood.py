"""One tenant sends ten times its traffic; what does another notice?

Rule of this room: the quiet tenant's traffic is the same in every arm, conversation by conversation.
"""

from __future__ import annotations

from dataclasses import replace

from gateway.core.admission.desk import AdmissionRules
from gateway.core.tenants import Tenant
from loadtest.experiments.outcomes import Fate, TurnRecord
from loadtest.experiments.run import Spec
from loadtest.experiments.slo import overload
from loadtest.experiments.slo.gate import Control
from loadtest.experiments.slo.live import side_by_side
from loadtest.experiments.slo.overload import ASSIGNMENT, PATIENCE, SLO, SLOWNESS, TALK
from loadtest.experiments.slo.play import Case, Played, due, mean, p99_ttft_ms, played, shown
from loadtest.experiments.slo.section import Effort, Finding, Section, Told
from loadtest.experiments.sweep import run_many
from loadtest.experiments.traffic import Extent, Stream

QUIET, LOUD = "quiet", "loud"
QUIET_RATE, LOUD_RATE = 2.0, 4.0
"""Conversations per second on an ordinary, busy day."""
PREFILL_TOKENS = 2200
"""Hardly more than one prompt: what is at a pod already cannot be overtaken."""
FLOOD = 10.0
QUOTA = 1.2
"""Of requests, in a tenant's usual traffic."""
WARM_UP_S, END_S = 30.0, 90.0
WANTED = 0.15


def case(name: str, seed: int, flood: float, *, fair: bool, quotas: bool) -> Case:
    """flood: how much more than usual the loud one sends. quotas: of requests per second."""
    streams = (Stream(TALK, QUIET_RATE, QUIET), Stream(TALK, LOUD_RATE * flood, LOUD))
    extent = Extent(until_s=END_S)
    spec = Spec(ASSIGNMENT, "local", streams, extent, f"flood/{seed}", patience=PATIENCE, slo=SLO)
    usual = {QUIET: QUIET_RATE, LOUD: LOUD_RATE}
    per_s = {tenant: rate * TALK.num_turns * QUOTA if quotas else 0.0 for tenant, rate in usual.items()}
    tenants = {tenant: Tenant(tenant, requests_per_s=per_s[tenant]) for tenant in usual}
    rules = AdmissionRules(
        prefill_tokens=PREFILL_TOKENS, decode_tokens=overload.DECODE_TOKENS, queue_s=PATIENCE.first_token_s
    )
    return Case(name, spec, Control(rules, {}, tenants) if fair else Control(tenants=tenants))


ARMS = (
    ("no flood", 1.0, True, True),
    ("flood, neither limits nor quotas", FLOOD, False, False),
    ("flood, limits: fair turns", FLOOD, True, False),
    ("flood, limits and quotas", FLOOD, True, True),
)
"""(name, how much more the loud one sends, limits, quotas)."""


def slowly(fast: Case) -> Case:
    """As `overload.slowly`; quotas too."""
    slow = overload.slowly(fast)
    tenants = {
        name: replace_rate(tenant, tenant.requests_per_s / SLOWNESS) for name, tenant in fast.control.tenants.items()
    }
    return replace(slow, control=replace(fast.control, tenants=tenants))


def replace_rate(tenant: Tenant, per_s: float) -> Tenant:
    return Tenant(tenant.name, requests_per_s=per_s)


def quiet(one: Played, from_s: float, to_s: float) -> list[TurnRecord]:
    """What the quiet tenant met; refused turns and those behind them count, as endless."""
    return [turn for turn in due(one.turns, from_s, to_s) if turn.tenant == QUIET]


def _p99(one: Played, from_s: float = WARM_UP_S, to_s: float = END_S) -> float:
    turns = [
        turn._replace(fate=Fate.FAILED) if turn.fate is not Fate.GOOD else turn for turn in quiet(one, from_s, to_s)
    ]
    return p99_ttft_ms(turns)


def _run(effort: Effort) -> Told:
    seeds = range(1, 2 if effort.short else effort.seeds + 1)
    cases = [case(name, seed, flood, fair=fair, quotas=quotas) for name, flood, fair, quotas in ARMS for seed in seeds]
    by_arm: dict[str, list[Played]] = {}
    for one in run_many(played, cases, effort.jobs):
        by_arm.setdefault(one.case.name, []).append(one)
    before = mean(map(_p99, by_arm[ARMS[0][0]]))
    text = [
        f"Two tenants on {ASSIGNMENT}: the quiet one begins {QUIET_RATE:g} conversations per second, the loud one "
        f"{LOUD_RATE:g} ({TALK.origin}); then the loud one begins {FLOOD:g} times as many. Quotas: `requests_per_s` at "
        f"{QUOTA:g} times a tenant's usual turns. {len(seeds)} "
        f"seeds, turns due from {WARM_UP_S:g} to {END_S:g} s; a turn of the quiet tenant that was refused or failed "
        "counts as endless.",
        f"Limits: `admission.prefill_tokens = {PREFILL_TOKENS}`, `admission.decode_tokens = {overload.DECODE_TOKENS}`.",
        "",
        "| | quiet tenant: P99 TTFT, ms | against no flood | its turns answered | loud tenant: answered turns/s |",
        "|---|---:|---:|---:|---:|",
    ]
    change = {}
    for name, runs in by_arm.items():
        p99 = mean(map(_p99, runs))
        change[name] = p99 / before - 1
        mine = [turn for one in runs for turn in quiet(one, WARM_UP_S, END_S)]
        answered = sum(turn.fate is Fate.GOOD for turn in mine) / len(mine)
        loud = [turn for one in runs for turn in due(one.turns, WARM_UP_S, END_S) if turn.tenant == LOUD]
        per_s = sum(turn.fate is Fate.GOOD for turn in loud) / len(runs) / (END_S - WARM_UP_S)
        text.append(f"| {name} | {shown(p99)} | {shown_change(change[name])} | {answered:.1%} | {shown(per_s)} |")
    none, fair, both = (change[name] for name, *_ in ARMS[1:])
    finding = Finding(
        f"a tenant at {FLOOD:g} times its traffic moves another tenant's P99 TTFT by no more than {WANTED:.0%}",
        f"{shown_change(both)} with limits and quotas, {shown_change(fair)} with limits alone, {shown_change(none)} "
        "with neither",
        both <= WANTED < none,
    )
    if effort.live:
        text += _live()
    return Told([finding], text)


def shown_change(value: float) -> str:
    return f"{value:+.1%}" if value < 100 else "∞"


def _live() -> list[str]:
    from_s, to_s = overload.LIVE_WARM_UP_S, overload.LIVE_END_S
    slow = [slowly(case(name, 1, flood, fair=fair, quotas=quotas)) for name, flood, fair, quotas in ARMS]
    text = [
        "",
        f"Once on HTTP pod simulators with steps {SLOWNESS:g} times as long, beside virtual time (turns due from "
        f"{from_s:g} to {to_s:g} s):",
        "",
        "| | quiet tenant: P99 TTFT, ms: virtual | HTTP | its turns answered: virtual | HTTP |",
        "|---|---:|---:|---:|---:|",
    ]
    for each, pair in zip(slow, side_by_side(slow, SLOWNESS), strict=True):
        cells = [shown(_p99(one, from_s, to_s)) for one in pair]
        for one in pair:
            mine = quiet(one, from_s, to_s)
            cells.append(f"{sum(turn.fate is Fate.GOOD for turn in mine) / len(mine):.1%}")
        text.append(f"| {each.name} | {' | '.join(cells)} |")
    return text


SECTION = Section("flood", "A tenant floods", _run)
