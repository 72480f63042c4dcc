"""What is known of one request when it is over, and who wants to know.

Rule of this room: numbers, ids and reasons only. No message text, no header values.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol


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


@dataclass
class RequestRecord:
    """One request. Times in seconds, tokens as the pods counted them; None where it never came to that."""

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
