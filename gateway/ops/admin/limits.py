"""Admission, tenants and targets in the admin API.

Rule of this room: numbers and classes; of tenants only those that the tenants file names.
"""

from __future__ import annotations

import math
import time
from typing import Any

import msgspec

from gateway.core.admission.classes import ServiceClass
from gateway.net.parts import Parts


class TargetShown(msgspec.Struct):
    """measured and pressure (measured by target; above 1 it is violated) are null while too little was seen, or when
    more than 1 % failed."""

    service_class: str
    target: str
    wanted: float
    measured: float | None
    pressure: float | None
    violated: bool
    samples: int


class SloShown(msgspec.Struct):
    """step: of -steps … steps; factor: by how much w_ttft/w_tpot is more than configured."""

    enabled: bool
    step: int
    steps: int
    factor: float
    w_ttft: float
    w_tpot: float
    changes: int
    why: str
    targets: list[TargetShown]


class Waiting(msgspec.Struct):
    service_class: str
    tokens: int
    queued: int
    refused: dict[str, int]


class TenantShown(msgspec.Struct):
    tenant: str
    service_class: str
    share: float
    in_flight: int
    refused: int


class AdmissionShown(msgspec.Struct):
    """Tokens are of prompts and expected answers; limits of 0 are none. queued, refused: since the start."""

    enabled: bool
    waiting: int
    in_flight_tokens: int
    max_tokens: int
    prefill_tokens: int
    decode_tokens: int
    queue: int
    classes: list[Waiting]
    tenants: list[TenantShown]


def slo(parts: Parts) -> SloShown:
    """How the targets stand and what was done about it."""
    configured, found = parts.settings.weights.default, parts.slo
    if found is None or not found.settings.on:
        return SloShown(False, 0, 0, 1.0, configured.w_ttft, configured.w_tpot, 0, "no targets", [])
    targets = [
        TargetShown(
            each.service,
            each.metric,
            each.target,
            _finite(each.measured),
            _finite(each.pressure),
            each.violated,
            each.samples,
        )
        for each in found.standings(time.monotonic())
    ]
    used = found.shifted(configured)
    return SloShown(
        True,
        found.step,
        found.settings.steps,
        found.factor,
        used.w_ttft,
        used.w_tpot,
        found.changes,
        found.why,
        targets,
    )


def merged_slo(answers: list[SloShown], _: Any) -> SloShown:
    """Each worker has a controller of its own: that of the worker which moved most is shown, with the worst
    measured."""
    first = max(answers, key=lambda each: abs(each.step))
    for index, target in enumerate(first.targets):
        same = [answer.targets[index] for answer in answers if len(answer.targets) > index]
        first.targets[index] = max(same, key=lambda each: each.pressure or 0.0)
        first.targets[index].samples = sum(each.samples for each in same)
        first.targets[index].violated = any(each.violated for each in same) or target.violated
    return first


def admission(parts: Parts) -> AdmissionShown:
    """Who waits, who was refused, what tenants have in flight."""
    desk, tenancy = parts.admission.desk, parts.tenancy
    classes = []
    for service in ServiceClass:
        refused = {why: count for (of, why), count in desk.refused.items() if of == service}
        classes.append(Waiting(service, desk.queue.tokens(service), desk.queued[service], refused))
    tenants = []
    if tenancy is not None:
        for name, tenant in tenancy.book.tenants.items():
            account = tenancy.quotas.account(tenant)
            tenants.append(TenantShown(name, tenant.service, tenant.share, account.in_flight, account.refused))
    return AdmissionShown(
        parts.admission.on,
        len(parts.admission),
        desk.in_flight_tokens,
        desk.rules.max_tokens,
        desk.rules.prefill_tokens,
        desk.rules.decode_tokens,
        desk.rules.queue,
        classes,
        tenants,
    )


def merged_admission(answers: list[AdmissionShown], _: Any) -> AdmissionShown:
    """Sums over the workers."""
    first = answers[0]
    for other in answers[1:]:
        first.waiting += other.waiting
        first.in_flight_tokens += other.in_flight_tokens
        for ours, theirs in zip(first.classes, other.classes, strict=True):
            ours.tokens += theirs.tokens
            ours.queued += theirs.queued
            for why, count in theirs.refused.items():
                ours.refused[why] = ours.refused.get(why, 0) + count
        by_name = {tenant.tenant: tenant for tenant in other.tenants}
        for tenant in first.tenants:
            if (same := by_name.get(tenant.tenant)) is not None:
                tenant.in_flight += same.in_flight
                tenant.refused += same.refused
    return first


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
