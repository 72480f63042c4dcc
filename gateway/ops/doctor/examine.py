"""The examination as a whole.

Rule of this room: whatever cannot be asked is a finding, never an error; the order is pods, pairs, table, machine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.core.conversations import ConversationStore
from gateway.core.pods import Fleet, Pod, Role
from gateway.core.policies import AlwaysPrefill
from gateway.net.health import Health
from gateway.net.parts import Parts
from gateway.net.records import IdleObserver
from gateway.net.roster import Roster
from gateway.net.upstream import PodClient, PodFault
from gateway.ops import tls
from gateway.ops.config import Config
from gateway.ops.discovery.keeper import Discovery
from gateway.ops.doctor import here, judge_fleet, judge_pods
from gateway.ops.doctor.findings import Finding, fail, ok
from gateway.ops.doctor.look import Asker, PodReport
from gateway.ops.doctor.options import Options
from gateway.ops.doctor.try_out import ReadBack, Trials, Tried, pairs_to_try
from gateway.ops.keys import load_upstream_key
from gateway.ops.layers import ConfigError
from gateway.ops.tables import open_checked
from gateway.wire.kv_events import EventSource
from lut.table import TableError

POLICIES_WITH_TABLE = ("ppd",)


async def examine(config: Config, options: Options) -> list[Finding]:
    """All findings."""
    async with _parts(config) as (parts, findings):
        pods = list(parts.fleet)
        if not pods:
            change = "name pods (prefill, decode), or see docs/discovery.md"
            findings.append(fail("pods", judge_fleet.FLEET, "none found", change))
        reports = await _look(parts, pods, config, options)
        tried: list[Tried] = []
        readbacks: list[ReadBack] = []
        if options.compute:
            tried, readbacks = await _try(parts, reports, config, options)
        for report in reports:
            findings += judge_pods.judge(report, config)
        findings += judge_fleet.judge(reports)
        shown = {pod.url: parts.origins.shown(pod) for pod in pods if pod.role is Role.PREFILL}
        findings += judge_fleet.judge_pairs(tried, shown, config)
        possible = len(pairs_to_try([report.pod for report in reports if report.usable], 1 << 40))
        if options.compute and possible > len(tried):
            findings.append(
                ok("hand-over", judge_fleet.FLEET, f"{len(tried)} of {possible} pairs were tried (--pairs)")
            )
        findings += judge_fleet.judge_readbacks(readbacks)
    findings += _table(config, reports)
    findings += await here.judge_state(config)
    findings += here.judge_files(config)
    findings.append(here.judge_open_files(options.streams))
    return findings


@asynccontextmanager
async def _parts(config: Config) -> AsyncIterator[tuple[Parts, list[Finding]]]:
    """What a gateway has, without listening; pods that are to be found are found first."""
    findings: list[Finding] = []
    try:
        key, context = load_upstream_key(config), tls.client_context(config)
    except ConfigError:
        key, context = None, None  # `here` says so
    async with PodClient(config.net.timeouts.connect_s, context, key) as client:
        parts = Parts(
            fleet=Fleet(Pod(url, role) for role, url in config.pods),
            store=ConversationStore(1, 1.0),
            policy=AlwaysPrefill(),
            client=client,
            observer=IdleObserver(),
            settings=config.net,
        )
        health = Health(parts)
        roster = Roster(parts, health, 0.0)
        discovery = Discovery(config.discovery, roster)
        await discovery.start()
        try:
            for state in discovery.states:
                about = f"discovery {state.name}"
                if state.trouble is None:
                    findings.append(ok("discovery", about, f"{state.pods} pods"))
                else:
                    change = "see docs/discovery.md: the name, the file, or the rights of the service account"
                    findings.append(fail("discovery", about, state.trouble, change))
            yield parts, findings
        finally:
            await discovery.stop()
            await roster.stop()
            await health.stop()
            await parts.finish_background()


async def _look(parts: Parts, pods: list[Pod], config: Config, options: Options) -> list[PodReport]:
    asker = Asker(parts.client, options.limit_s)
    given = {url: EventSource(True, "zmq", live, replay) for url, live, replay in config.kv_event_endpoints}
    reports = await asyncio.gather(*(asker.look(pod, given.get(pod.url)) for pod in pods))
    for report in reports:
        if parts.origins.asks and report.pod.role is Role.PREFILL and report.usable:
            try:
                parts.origins.met(report.pod, await parts.origins.ask(parts.client, report.pod, options.limit_s))
            except PodFault as fault:
                report.bootstrap_fault = f"{parts.origins.address(report.pod.url)} does not answer: {fault}"
    return list(reports)


async def _try(
    parts: Parts, reports: list[PodReport], config: Config, options: Options
) -> tuple[list[Tried], list[ReadBack]]:
    trials = Trials(parts, options.limit_s)
    able = [report for report in reports if report.usable and report.pod.facts.models]
    await asyncio.gather(*(trials.pod(report, listen=config.kv_events) for report in able))
    pairs = pairs_to_try([report.pod for report in able if report.bootstrap_fault is None], options.pairs)
    tried = await trials.pairs(pairs)
    readbacks = []
    if config.net.readback:
        works = {(one.prefill, one.decode) for one in tried if one.fault is None and one.fetched is not False}
        holders: dict[str, tuple[Pod, Pod]] = {}
        for prefill, decode in pairs:
            if (prefill.url, decode.url) in works:
                holders.setdefault(prefill.url, (prefill, decode))
        readbacks = [await trials.readback(prefill, holder) for prefill, holder in holders.values()]
    return tried, readbacks


def _table(config: Config, reports: list[PodReport]) -> list[Finding]:
    if config.policy not in POLICIES_WITH_TABLE:
        return []
    try:
        tables = open_checked(config.table)
    except TableError as error:
        change = "ppd-gateway profile (docs/table.md), then table = DIR"
        return [fail("table", f"table {config.table}", str(error), change)]
    return list(judge_fleet.judge_table(tables, reports, config, time.time()))
