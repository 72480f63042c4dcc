"""What is shown of admission, tenants and targets.

Rule of this room: tenants are those that the tenants file names; all others are one. Classes, reasons and targets are
small fixed sets.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence

from gateway.core.admission.classes import ServiceClass
from gateway.core.admission.desk import Why
from gateway.core.slo import Standing
from gateway.net.parts import Parts
from gateway.net.records import RequestRecord
from gateway.ops.metrics.families import Book, Counter, Histogram, Shown, Values

QUEUED_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
OTHERS = "others"
"""Tenants that the file does not name."""


class AdmissionMetrics:
    """All of them; `finished` for each request."""

    def __init__(self, book: Book) -> None:
        self._refused = Counter(
            book,
            "ppd_admission_refused",
            f"Requests that were not let in, by class and reason: {', '.join(Why)}.",
            ["service_class", "reason"],
        )
        self._queued = Histogram(
            book,
            "ppd_admission_queued_seconds",
            "How long requests that had to wait waited to be let in, by class.",
            ["service_class"],
            bounds=QUEUED_S,
        )
        Shown(
            book,
            "ppd_admission_waiting_tokens",
            "Tokens of prompts and expected answers that wait to be let in, by class.",
            ["service_class"],
            read=_waiting,
        )
        Shown(
            book,
            "ppd_admission_waiting_requests",
            "Requests that wait to be let in.",
            read=lambda parts: [((), len(parts.admission))] if parts.admission.on else [],
        )
        Shown(
            book,
            "ppd_admission_in_flight_tokens",
            "Tokens of prompts and expected answers in flight, where there are limits.",
            read=lambda parts: [((), parts.admission.desk.in_flight_tokens)] if parts.admission.on else [],
        )
        _of_tenants(book)
        _of_targets(book)

    def finished(self, record: RequestRecord) -> None:
        if record.refused is not None:
            self._refused.child(record.service or "none", record.refused).value += 1
        elif record.queued_s > _WAITED_S:
            self._queued.child(record.service or "none").observe(record.queued_s)


_WAITED_S = 0.0005
"""Less is what it takes to be let in at once."""


def _waiting(parts: Parts) -> Iterable[tuple[Values, float]]:
    if not parts.admission.on:
        return []
    return [((service.value,), parts.admission.desk.queue.tokens(service)) for service in ServiceClass]


def _of_tenants(book: Book) -> None:
    Shown(
        book,
        "ppd_tenant_in_flight",
        f"Requests in flight of tenants with quotas; those that the file does not name are {OTHERS}.",
        ["tenant"],
        read=lambda parts: _summed(parts, "in_flight"),
    )
    Shown(
        book,
        "ppd_tenant_refused_total",
        "Requests refused because a tenant's quota was used up.",
        ["tenant"],
        read=lambda parts: _summed(parts, "refused"),
    )


def _summed(parts: Parts, field: str) -> Iterable[tuple[Values, float]]:
    if parts.tenancy is None:
        return []
    sums: dict[str, float] = {}
    for name, account in parts.tenancy.quotas:
        shown = name if name in parts.tenancy.book.tenants else OTHERS
        sums[shown] = sums.get(shown, 0.0) + getattr(account, field)
    return [((name,), value) for name, value in sums.items()]


def _of_targets(book: Book) -> None:
    Shown(
        book,
        "ppd_slo_target",
        "The targets, in the unit of their name.",
        ["service_class", "target"],
        read=lambda parts: [((s.service.value, s.metric), s.target) for s in _standings(parts)],
    )
    Shown(
        book,
        "ppd_slo_pressure",
        "What was measured over the window, by its target: above 1 it is violated; absent while too little was seen.",
        ["service_class", "target"],
        read=lambda parts: [
            ((s.service.value, s.metric), s.pressure) for s in _standings(parts) if not math.isnan(s.measured)
        ],
    )
    Shown(
        book,
        "ppd_slo_step",
        "The controller's step: above 0 the weights favour the first token, below it the time per token.",
        read=lambda parts: [] if parts.slo is None else [((), parts.slo.step)],
    )
    Shown(
        book,
        "ppd_slo_weight_factor",
        "By how much w_ttft/w_tpot is more than configured.",
        read=lambda parts: [] if parts.slo is None else [((), parts.slo.factor)],
    )
    Shown(
        book,
        "ppd_slo_changes_total",
        "Steps of the controller.",
        read=lambda parts: [] if parts.slo is None else [((), parts.slo.changes)],
    )


def _standings(parts: Parts) -> Sequence[Standing]:
    return () if parts.slo is None else parts.slo.standings(time.monotonic())
