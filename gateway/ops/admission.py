"""What the settings of tenants, admission and targets mean together, and the file of tenants in use.

Rule of this room: a tenants file that is not wholly good changes nothing. Who sets none of this pays for none of it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gateway.core.admission.classes import ServiceClass
from gateway.core.admission.desk import AdmissionRules
from gateway.core.slo import METRICS, SloController, SloSettings, Targets
from gateway.core.tenants import TenantBook, TenantFileError, read_tenants
from gateway.net.parts import Parts
from gateway.net.records import IdleObserver, Outcome, RequestRecord
from gateway.net.settings import ClassSettings
from gateway.net.tenancy import Tenancy
from gateway.ops.documents import Shared, text_of, watched
from gateway.ops.layers import ConfigError
from gateway.ops.logs import MAIN
from gateway.ops.observers import Observers
from gateway.ops.watch import WatchedFiles, reason_of

MAX_FILE_BYTES = 16 << 20
MAX_QUEUE_S = 30.0
"""How long a request without a deadline waits where there are limits and no `queue_s`."""


def rules_of(values: Mapping[str, Any], sources: Mapping[str, str], fallback: str) -> AdmissionRules:
    """Raises ConfigError."""
    priority = values["admission.vllm_priority"]
    if priority and values["allow_client_priority"]:
        where = sources.get("admission.vllm_priority", fallback)
        raise ConfigError(f"{where}: admission.vllm_priority: not with allow_client_priority: one of them says it")
    rules = AdmissionRules(
        max_tokens=values["admission.max_tokens"],
        prefill_tokens=values["admission.prefill_tokens"],
        decode_tokens=values["admission.decode_tokens"],
        queue=values["admission.queue"],
        predict=values["admission.predict"],
        priority=priority,
    )
    queue_s = values["queue_s"] or (MAX_QUEUE_S if rules.limits else 0.0)
    return replace(rules, queue_s=queue_s)


def classes_of(values: Mapping[str, Any]) -> ClassSettings:
    """The classes; each one's target for a first token is its deadline."""
    deadlines = {service: targets.deadline_s for service, targets in slo_of(values).targets.items()}
    return ClassSettings(ServiceClass(values["default_class"]), deadlines)


def slo_of(values: Mapping[str, Any]) -> SloSettings:
    """The targets; classes without any are left out."""
    targets = {
        service: found
        for service in ServiceClass
        if (found := Targets(*(values[f"slo.{service}.{metric}"] for metric in METRICS))).any
    }
    return SloSettings(
        targets,
        window_s=values["slo.window_s"],
        min_samples=values["slo.min_samples"],
        max_factor=values["slo.max_factor"],
    )


def tenants_path(values: Mapping[str, Any], sources: Mapping[str, str], fallback: str) -> Path | None:
    """Raises ConfigError."""
    if values["tenants_file"] is None:
        return None
    if values["api_keys"] is None:
        where = sources.get("tenants_file", fallback)
        raise ConfigError(f"{where}: tenants_file: it needs api_keys, which say who is who")
    return Path(values["tenants_file"])


def load_tenants(path: Path, shared: Shared | None = None) -> TenantBook:
    """Read the file, or the document in the shared state. Raises ConfigError."""
    try:
        return book_of(text_of(path, shared, MAX_FILE_BYTES))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: tenants_file: {reason_of(error)}") from None


def watch_tenants(path: Path, tenancy: Tenancy, shared: Shared | None = None) -> WatchedFiles:
    """Keeps the tenants those of the file, or of the document."""

    def take() -> str:
        tenancy.book = book_of(text_of(path, shared, MAX_FILE_BYTES))
        return tenancy.book.describe()

    return watched(f"tenants ({path})", path, take, shared)


def book_of(text: str) -> TenantBook:
    """Raises ValueError."""
    try:
        return read_tenants(text)
    except TenantFileError as error:
        raise ValueError(str(error)) from None


def take_targets(parts: Parts, settings: SloSettings) -> None:
    """Watch these targets from now on. A controller that is there stays, with nothing to do where none is left."""
    if parts.slo is not None:
        parts.slo.reconfigure(settings)
    elif settings.on:
        parts.slo = SloController(settings)
        parts.observer = Observers(parts.observer, SloWatch(parts.slo))


class SloWatch(IdleObserver):
    """Tells the controller of every request, and the log of every step."""

    def __init__(self, controller: SloController) -> None:
        self._controller = controller

    def finished(self, record: RequestRecord) -> None:
        service, now_s = record.service, time.monotonic()
        if service is not None and record.route is not None and record.outcome not in _NOT_COUNTED:
            failed = record.outcome is not Outcome.OK
            self._controller.seen(
                ServiceClass(service),
                now_s,
                ttft_s=float("inf") if failed else record.ttft_s if record.stream else None,
                tpot_s=float("inf") if failed else record.tpot_s,
                total_s=float("inf") if failed else record.total_s,
            )
        before = self._controller.step
        if self._controller.tick(now_s):
            now = self._controller
            MAIN.info("targets: step %+d after %+d, w_ttft/w_tpot x %.2f: %s", now.step, before, now.factor, now.why)


_NOT_COUNTED = (Outcome.CANCELLED, Outcome.REJECTED)
