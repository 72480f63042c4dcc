"""What is known of one request when it is over, and who wants to know.

Rule of this room: numbers, ids and reasons only. No message text, no header values.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gateway.core.residency import Source, Verdict


class Outcome(enum.StrEnum):
    """How a request ended.

    OK: answered. REJECTED: a 4xx, from the gateway or a pod. FAILED: no pod could answer. BROKEN: the stream ended
    with an error after its first byte. CANCELLED: the client went away.
    """

    OK = "ok"
    REJECTED = "rejected"
    FAILED = "failed"
    BROKEN = "broken"
    CANCELLED = "cancelled"


@dataclass(slots=True)
class RequestRecord:
    """One request. Times in seconds, tokens as the pods counted them; None where it never came to that.

    holder, readback_tokens: route readback, the pod that P read from and how much. expected_tokens: resident on the
    pod that was to use them, when the request was planned. residency: how good that was, by source
    (`events`, `ledger`), on the answering pod; prefill_residency: on P. ids_s,
    recall_s: tokenising the prompt, and the holder's answer to the recall.
    """

    request_id: str
    method: str
    path: str
    status: int = 0
    outcome: Outcome = Outcome.FAILED
    stream: bool = False
    route: str | None = None
    prefill: str | None = None
    answering: str | None = None
    reason: str | None = None
    conversation: str | None = None
    turn: int | None = None
    kind: str | None = None
    attempts: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    prefill_cached_tokens: int | None = None
    output_tokens: int | None = None
    holder: str | None = None
    readback_tokens: int | None = None
    expected_tokens: int | None = None
    residency: Mapping[Source, Verdict] = field(default_factory=dict)
    prefill_residency: Mapping[Source, Verdict] = field(default_factory=dict)
    ids_s: float | None = None
    recall_s: float | None = None
    prefill_s: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    total_s: float = 0.0


class Observer(Protocol):
    """Who is told. Called on the event loop; must not block."""

    def started(self, record: RequestRecord) -> None:
        """A request came in."""

    def finished(self, record: RequestRecord) -> None:
        """A request is over."""

    def fault(self, kind: str, pod: str | None, request_id: str, detail: str) -> None:
        """Something went wrong that the client may never see.

        kind: one word of a small fixed set (see docs/operating.md); pod: its URL.
        """

    def pod_changed(self, pod: str, role: str, up: bool, detail: str) -> None:
        """A pod went up or down."""

    def pod_restarted(self, pod: str, role: str, detail: str) -> None:
        """A pod's process was found to be another one than before; detail: how that showed."""

    def pod_tested(self, pod: str, role: str, outcome: str, direct: bool, detail: str) -> None:
        """A pod's self-test ended otherwise than the one before.

        outcome: one word of `selftest.Proof`; direct: whether later turns may go straight to the pod.
        """

    def pod_breaker(self, pod: str, role: str, state: str, detail: str) -> None:
        """A pod's breaker is now closed, open or half_open."""


class IdleObserver:
    """An observer that nothing interests; override what does."""

    def started(self, record: RequestRecord) -> None:
        return

    def finished(self, record: RequestRecord) -> None:
        return

    def fault(self, kind: str, pod: str | None, request_id: str, detail: str) -> None:
        return

    def pod_changed(self, pod: str, role: str, up: bool, detail: str) -> None:
        return

    def pod_restarted(self, pod: str, role: str, detail: str) -> None:
        return

    def pod_tested(self, pod: str, role: str, outcome: str, direct: bool, detail: str) -> None:
        return

    def pod_breaker(self, pod: str, role: str, state: str, detail: str) -> None:
        return
