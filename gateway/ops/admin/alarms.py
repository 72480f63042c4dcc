"""What somebody should know now: the alarms of the live page.

Rule of this room: each is worked out anew, of what is the case now; nothing is remembered, so that none outlives its
cause. Rates over time are Prometheus' business (deploy/).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any, Literal

from gateway.core.canary import CanaryState, CanaryStatus
from gateway.core.pods import Pod, Role
from gateway.core.policies import MeasuredTable
from gateway.net.parts import Parts
from gateway.net.records import Outcome
from gateway.ops.admin.decisions import RecentDecisions
from gateway.ops.admin.limits import slo
from gateway.ops.admin.schemas import Alarm, Alarms

FAILURES_S = 60.0
_ORDER = ("critical", "warning", "info")
_FAILED = (Outcome.FAILED, Outcome.BROKEN)


def alarms(parts: Parts, canary: CanaryStatus, decisions: RecentDecisions, *, draining: bool) -> Alarms:
    """The worst first."""
    found = [*_gateway(parts, decisions, draining), *_targets(parts), *_canary(canary), *_table(parts)]
    for pod in parts.fleet:
        found += _pod(parts, pod)
    return _sorted(found)


def merged(parts: list[Alarms], _: Any) -> Alarms:
    """Each once, whichever worker said it."""
    return _sorted(list(dict.fromkeys(alarm for part in parts for alarm in part.alarms)))


def _sorted(found: list[Alarm]) -> Alarms:
    return Alarms(sorted(found, key=lambda alarm: _ORDER.index(alarm.severity)))


def _gateway(parts: Parts, decisions: RecentDecisions, draining: bool) -> Iterator[Alarm]:
    up = {role: sum(pod.up for pod in parts.fleet.of(role)) for role in Role}
    if up[Role.DECODE] + up[Role.REPLICA] == 0:
        yield Alarm("critical", "gateway", "No decode or replica pod is up: nothing can be answered.")
    elif up[Role.PREFILL] == 0 and parts.fleet.of(Role.PREFILL):
        yield Alarm("critical", "gateway", "No prefill pod is up: decode pods prefill everything themselves.")
    ended = list(decisions.since(time.time() - FAILURES_S))
    failed = sum(record.outcome in _FAILED for record in ended)
    if failed:
        severity: Literal["critical", "warning"] = "critical" if 2 * failed > len(ended) else "warning"
        yield Alarm(severity, "gateway", f"{failed} of {len(ended)} requests failed in the last minute.")
    if draining:
        yield Alarm("info", "gateway", "It is stopping: requests in flight end, new ones are not taken.")


def _targets(parts: Parts) -> Iterator[Alarm]:
    for target in slo(parts).targets:
        if target.violated:
            how = "more than 1 % failed" if target.measured is None else f"it is {target.measured:.4g}"
            name = f"{target.target} of class {target.service_class}"
            yield Alarm("warning", "target", f"{name} should be {target.wanted:g}, {how}.")


def _canary(status: CanaryStatus) -> Iterator[Alarm]:
    if status.state is CanaryState.STOPPED:
        yield Alarm("critical", "canary", f"The guard stopped it: {status.why}.")


def _table(parts: Parts) -> Iterator[Alarm]:
    if not isinstance(parts.policy, MeasuredTable):
        return
    tables, assignment = parts.policy.tables, parts.fleet.assignment
    _, used, exact = tables.nearest_assignment(assignment)
    if not exact:
        yield Alarm("warning", "table", f"Nothing was measured for {assignment}; {used} is used.")
    drift = parts.policy.drift
    if drift is not None and drift.drifting:
        off = [
            f"{arm} {metric} ×{math.exp(series.level - series.reference):.2f}"
            for (arm, metric), series in drift.series.items()
            if series.drifting
        ]
        done = "decisions are corrected" if drift.correcting else "measure again or learn from production"
        yield Alarm("warning", "table", f"It no longer describes this cluster ({', '.join(off)}): {done}.")
    if tables.manifest.simulated:
        yield Alarm("info", "table", "It was measured on simulated pods, not on yours.")


def _pod(parts: Parts, pod: Pod) -> Iterator[Alarm]:
    if not pod.up:
        yield Alarm("warning", pod.url, f"This {pod.role} pod is down.")
        return
    if pod.draining:
        yield Alarm("info", pod.url, "It is being drained: it gets nothing new.")
    if pod.breaker.state != "closed":
        yield Alarm("warning", pod.url, f"Its breaker is {pod.breaker.state.replace('_', ' ')}.")
    if pod.weight < 1.0:
        yield Alarm("warning", pod.url, f"Far from its peers: it gets {100 * pod.weight:.0f} % of its share.")
    if pod.role is not Role.PREFILL and pod.direct_off is not None:
        yield Alarm("warning", pod.url, f"No later turns go there straight: {pod.direct_off}.")
    if pod.role is Role.PREFILL and (held := parts.fleet.pairs.held_of(pod.url)):
        yield Alarm("warning", pod.url, f"Hands nothing over to {', '.join(sorted(held))}.")
