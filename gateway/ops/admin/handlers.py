"""What each call of the admin API does, on the parts of one process.

Rule of this room: a handler gets what was checked already and returns a struct, or raises ApiError. It knows neither
HTTP nor other workers.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from gateway.core.pods import Pod, Role
from gateway.core.policies import MeasuredTable
from gateway.core.weights import Weights
from gateway.net.gateway import Gateway
from gateway.net.parts import Parts
from gateway.net.records import Arm
from gateway.net.roster import ADMIN, CONFIG, Roster, UnknownPod
from gateway.ops import checks
from gateway.ops.admin import alarms, drift, flow, heatmap, limits
from gateway.ops.admin.decisions import RecentDecisions
from gateway.ops.admin.schemas import (
    Alarms,
    CanaryShown,
    ConfigShown,
    ConversationShown,
    Decisions,
    DecisionsQuery,
    Done,
    Flow,
    GuardTest,
    Health,
    Heatmap,
    HeatmapQuery,
    NewCanary,
    NewPod,
    NewWeights,
    Pods,
    PodShown,
    PodUrl,
    RemovePod,
    Residency,
    TableShown,
    WeightsShown,
)
from gateway.ops.canary import CanaryKeeper
from gateway.ops.config import Config
from gateway.ops.pods_page import pods_page
from gateway.ops.residency_page import residency_page
from gateway.ops.state import shown as without_password
from gateway.ops.tables import TableKeeper
from gateway.version import VERSION
from lut.table import TableError

_KEY = re.compile(r"[0-9a-fA-F]{32}")
_DIGEST = re.compile(r"\b[0-9a-f]{64}\b")


class ApiError(Exception):
    """An answer that is not what was asked for. type: one word for programs."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message


@dataclass
class Control:
    """What the admin API works on. config: gives the configuration in use."""

    config: Callable[[], Config]
    gateway: Gateway
    roster: Roster
    keeper: TableKeeper | None
    canary: CanaryKeeper
    decisions: RecentDecisions
    workers: int = 1

    @property
    def parts(self) -> Parts:
        return self.gateway.parts


@dataclass(frozen=True, slots=True)
class Call:
    """A checked call. path: the variable parts of the path."""

    path: dict[str, str]
    query: Any
    body: Any


async def health(control: Control, _: Call) -> Health:
    parts = control.parts
    return Health(
        status="draining" if control.gateway.draining else "ok",
        version=VERSION,
        policy=parts.policy.name,
        pods_up={role: sum(pod.up for pod in parts.fleet.of(role)) for role in Role},
        in_flight=control.gateway.in_flight,
        conversations=len(parts.store),
        workers=control.workers,
    )


async def pods(control: Control, _: Call) -> Pods:
    return Pods(_pods(control))


def _pods(control: Control) -> list[PodShown]:
    page = msgspec.json.decode(pods_page(control.parts).body)["pods"]
    fleet, roster = control.parts.fleet, control.roster
    known = {url: pod for url in (each["url"] for each in page) if (pod := fleet.get(url)) is not None}
    more = {url: {"draining": pod.draining, "sources": list(roster.sources(url))} for url, pod in known.items()}
    return msgspec.convert([{**each, **more[each["url"]]} for each in page], list[PodShown])


async def add_pod(control: Control, call: Call) -> Done:
    new: NewPod = call.body
    url = _url(new.url)
    known = control.roster.sources(url)
    pod = control.parts.fleet.get(url)
    if known and pod is not None and pod.role != new.role:
        raise ApiError(409, "conflict", f"{url} is a {pod.role} pod, named by {', '.join(known)}.")
    control.roster.add(url, Role(new.role), source=ADMIN)
    return Done(f"{url} is a {new.role} pod; it gets traffic once it is healthy.")


async def remove_pod(control: Control, call: Call) -> Done:
    query: RemovePod = call.query
    url = _known(control, query.url).url
    discovered = [source for source in control.roster.sources(url) if source not in (ADMIN, CONFIG)]
    if discovered:
        raise ApiError(
            409, "conflict", f"{url} is named by {', '.join(discovered)}, which would bring it back; drain it."
        )
    for source in (ADMIN, CONFIG):
        control.roster.remove(url, source=source, drain=query.drain)
    return Done(f"{url} leaves once its requests have ended." if query.drain else f"{url} leaves now.")


async def drain_pod(control: Control, call: Call) -> Done:
    url = _drained(control, call.body, True)
    return Done(f"{url} gets nothing new; conversations leave it at their next turn.")


async def undrain_pod(control: Control, call: Call) -> Done:
    return Done(f"{_drained(control, call.body, False)} gets traffic again, unless another source drains it.")


def _drained(control: Control, body: PodUrl, draining: bool) -> str:
    pod = _known(control, body.url)
    try:
        control.roster.set_draining(pod.url, draining, source=ADMIN)
    except UnknownPod:
        raise ApiError(404, "not_found", f"{pod.url} is leaving.") from None
    return pod.url


async def residency(control: Control, _: Call) -> Residency:
    return Residency(msgspec.json.decode(residency_page(control.parts).body)["pods"])


async def table(control: Control, _: Call) -> TableShown:
    tables = _policy(control).tables
    manifest = tables.manifest
    return TableShown(
        directory=str(tables.directory),
        model=manifest.model,
        gpu=manifest.gpu,
        network=manifest.network,
        created=manifest.created,
        tool=manifest.tool,
        simulated=manifest.simulated,
        assignments=list(manifest.tables),
        axes=msgspec.to_builtins(manifest.axes),
        description=tables.describe(),
    )


async def reload_table(control: Control, _: Call) -> Done:
    policy, keeper = _policy(control), control.keeper
    assert keeper is not None
    try:
        await keeper.take()
    except TableError as error:
        raise ApiError(422, "refused", f"Refused, the old table stays in use: {error}") from None
    return Done(policy.tables.describe())


async def table_heatmap(control: Control, call: Call) -> Heatmap:
    query: HeatmapQuery = call.query
    weights, assignment = control.parts.settings.weights.default, control.parts.fleet.assignment
    try:
        return heatmap.heatmap(_policy(control), query, weights, assignment)
    except ValueError as error:
        raise ApiError(400, "invalid_request", f"{error}.") from None


async def weights(control: Control, _: Call) -> WeightsShown:
    found = control.parts.settings.weights.default
    return WeightsShown(found.w_ttft, found.w_tpot)


async def set_weights(control: Control, call: Call) -> WeightsShown:
    new: NewWeights = call.body
    try:
        wanted = Weights(new.w_ttft, new.w_tpot)
    except ValueError as error:
        raise ApiError(400, "invalid_request", f"{error}.") from None
    settings = control.parts.settings
    control.parts.settings = replace(settings, weights=replace(settings.weights, default=wanted))
    return WeightsShown(wanted.w_ttft, wanted.w_tpot)


async def canary(control: Control, _: Call) -> CanaryShown:
    keeper = control.canary
    status, findings = keeper.canary.status, keeper.guard.findings
    tests: list[GuardTest] = []
    if findings is not None:
        failed = findings.failures
        tests.append(
            GuardTest(
                "failures",
                failed.canary,
                failed.baseline,
                failed.canary_failed,
                failed.baseline_failed,
                failed.p,
                findings.alpha,
            )
        )
        for name, times in (("ttft", findings.ttft), ("tpot", findings.tpot)):
            expected = round(times.expected, 2)
            tests.append(GuardTest(name, times.canary, times.baseline, times.above, expected, times.p, findings.alpha))
    return CanaryShown(
        state=status.state,
        percent=status.percent,
        shadow=keeper.canary.shadow,
        passthrough=keeper.settings.passthrough,
        why=status.why,
        since_s=status.since_s,
        stops=keeper.canary.stops,
        shadowed=dict(keeper.canary.shadowed),
        guard=keeper.settings.guard.enabled,
        tests=tests,
    )


async def set_canary(control: Control, call: Call) -> CanaryShown:
    new: NewCanary = call.body
    if new.percent is not None:
        control.canary.set_percent(new.percent)
    if new.state == "off" or (new.state == "on" and new.percent is None):
        control.canary.turn(new.state == "on")
    return await canary(control, call)


async def conversation(control: Control, call: Call) -> ConversationShown:
    name, parts = call.path["id"], control.parts
    found = parts.store.get(bytes.fromhex(name)) if _KEY.fullmatch(name) else None
    if found is None:
        raise ApiError(404, "not_found", "No conversation has that id (32 hex digits, as the access log has it).")
    held = {pod.url: parts.residency.of(pod, found.key).tokens for pod in parts.fleet}
    return ConversationShown(
        id=found.key.hex(),
        turn=found.turn,
        pending=found.pending,
        prefill=found.prefill,
        decode=found.decode,
        homes=list(found.homes),
        context_tokens=found.context_tokens,
        last_route=found.last_route,
        idle_s=round(max(0.0, time.monotonic() - found.last_seen_s), 3),
        arm=Arm.CANARY if parts.canary.takes(found.key) and not parts.canary.shadow else Arm.BASELINE,
        resident_tokens={url: tokens for url, tokens in held.items() if tokens},
    )


async def decisions(control: Control, call: Call) -> Decisions:
    query: DecisionsQuery = call.query
    return Decisions(control.decisions.last(query.limit))


async def decisions_of(control: Control, call: Call) -> Decisions:
    found = control.decisions.of(call.path["request_id"])
    if not found:
        raise ApiError(404, "not_found", "No request of that id is remembered.")
    return Decisions(found)


async def show_flow(control: Control, _: Call) -> Flow:
    return flow.flow(control.parts.fleet, control.decisions)


async def show_alarms(control: Control, _: Call) -> Alarms:
    draining = control.gateway.draining
    return alarms.alarms(control.parts, control.canary.canary.status, control.decisions, draining=draining)


async def show_slo(control: Control, _: Call) -> limits.SloShown:
    return limits.slo(control.parts)


async def show_admission(control: Control, _: Call) -> limits.AdmissionShown:
    return limits.admission(control.parts)


async def show_drift(control: Control, _: Call) -> drift.DriftShown:
    return drift.drift(control.parts)


async def config(control: Control, _: Call) -> ConfigShown:
    found: dict[str, Any] = {}
    for key, value in sorted(control.config().values.items()):
        shown = msgspec.to_builtins(value, enc_hook=str)
        found[key] = without_password(shown) if key == "state" and shown else _without_digests(shown)
    return ConfigShown(found)


def _without_digests(value: Any) -> Any:
    """Hashes of keys are no secrets, but people's keys can be guessed from them."""
    if isinstance(value, str):
        return _DIGEST.sub(lambda found: found[0][:8] + "…", value)
    return [_without_digests(each) for each in value] if isinstance(value, list | tuple) else value


def _policy(control: Control) -> MeasuredTable:
    policy = control.parts.policy
    if not isinstance(policy, MeasuredTable):
        raise ApiError(409, "no_table", f"Policy {policy.name} uses no table.")
    return policy


def _url(text: str) -> str:
    try:
        found: str = checks.url(text)
    except ValueError as error:
        raise ApiError(400, "invalid_request", f"url: {error}.") from None
    return found


def _known(control: Control, text: str) -> Pod:
    pod = control.parts.fleet.get(_url(text))
    if pod is None:
        raise ApiError(404, "not_found", "No pod has that URL.")
    return pod
