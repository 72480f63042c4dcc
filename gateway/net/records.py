"""What is known of one request when it is over, and who wants to know.

Rule of this room: numbers, ids and reasons only. No message text, no header values.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gateway.core.decide import Plan
from gateway.core.policies import Choice
from gateway.core.reasons import ReasonClass
from gateway.core.residency import Source, Verdict
from gateway.net.tracing import Trace

GAP_BOUNDS_S: tuple[float, ...] = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.06)
GAP_BOUNDS_S += (0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 10.0)
"""Upper bounds of the buckets in which a stream's gaps are counted; one more bucket is above the last."""


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


class Arm(enum.StrEnum):
    """Which side of a canary a request is on. CANARY: routed by the policy. BASELINE: as the plain PD proxy would."""

    CANARY = "canary"
    BASELINE = "baseline"


@dataclass(slots=True)
class RequestRecord:
    """One request. Times in seconds, tokens as the pods counted them; None where it never came to that.

    holder, readback_tokens: route readback, the pod that P read from and how much. expected_tokens: resident on the
    pod that was to use them, when the request was planned. residency: how good that was, by source
    (`events`, `ledger`), on the answering pod; prefill_residency: on P. ids_s,
    recall_s: tokenising the prompt, and the holder's answer to the recall.
    estimated_tokens: of the prompt, when it was planned. shadow_route, shadow_reason: what the policy would have done,
    where it decides in shadow.

    model: as asked for, "other" where the answering pod does not name it. reason_class, score, decide_s: what decided,
    the policy's S if it has one, and how long that took. forecast_ttft_s, forecast_tpot_s: what the table expects of
    the route taken. gaps: how many waits between two reads of the pod's stream fell into which bucket of GAP_BOUNDS_S;
    gaps_s: their sum. choice: the policy's word, where the plan is what it chose.
    moved_tokens: whose KV D fetched from P; avoided_tokens: whose KV the answering pod computed
    itself, so that nothing had to be fetched.

    service: the request's class, None where classes mean nothing. queued_s: how long it waited to be let in. refused:
    why it was not. priority: as pods get it.
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
    arm: str = Arm.CANARY
    estimated_tokens: int | None = None
    shadow_route: str | None = None
    shadow_reason: str | None = None
    model: str | None = None
    reason_class: ReasonClass | None = None
    score: float | None = None
    decide_s: float | None = None
    forecast_ttft_s: float | None = None
    forecast_tpot_s: float | None = None
    gaps: list[int] | None = None
    gaps_s: float = 0.0
    moved_tokens: int | None = None
    avoided_tokens: int | None = None
    choice: Choice | None = None
    trace: Trace | None = None
    service: str | None = None
    queued_s: float = 0.0
    refused: str | None = None
    priority: int | None = None

    def note_decision(self, plan: Plan) -> None:
        """What decided, and what the table expects of it, unless the plan is another than the policy chose."""
        choice = plan.choice
        self.reason_class = plan.reason_class
        self.forecast_ttft_s = self.forecast_tpot_s = self.choice = None
        if choice is not None:
            self.score = self.score if choice.score is None else choice.score
            if plan.route is choice.route and plan.reason_class is choice.reason_class:
                self.choice = choice
                self.forecast_ttft_s, self.forecast_tpot_s = choice.ttft_s or None, choice.tpot_s or None


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

    def pod_models(self, pod: str, role: str, models: tuple[str, ...]) -> None:
        """A pod serves other models than before, LoRA adapters included."""

    def pair_probed(self, prefill: str, decode: str, works: bool, detail: str) -> None:
        """A hand-over between two pods was tried, of which one was restarted."""

    def pod_breaker(self, pod: str, role: str, state: str, detail: str) -> None:
        """A pod's breaker is now closed, open or half_open."""

    def pod_added(self, pod: str, role: str, source: str) -> None:
        """A pod joined the fleet while the gateway runs. source: who named it (see `net.roster`)."""

    def pod_removed(self, pod: str, role: str, detail: str) -> None:
        """A pod has left the fleet: nothing of it is to be kept. detail: how it went."""


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

    def pod_models(self, pod: str, role: str, models: tuple[str, ...]) -> None:
        return

    def pair_probed(self, prefill: str, decode: str, works: bool, detail: str) -> None:
        return

    def pod_breaker(self, pod: str, role: str, state: str, detail: str) -> None:
        return

    def pod_added(self, pod: str, role: str, source: str) -> None:
        return

    def pod_removed(self, pod: str, role: str, detail: str) -> None:
        return
