"""What goes in and out of the admin API.

Rule of this room: fields only, in the names that clients see. Tokens are counts, `_s` seconds, `_ms` milliseconds.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

RoleName = Literal["prefill", "decode", "replica"]
_PORT = r"[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]"
_GROUP = "[0-9A-Fa-f]{1,4}"
_LONG = rf"({_GROUP}:){{7}}{_GROUP}|({_GROUP}:){{5,6}}:{_GROUP}"
_IPV6 = rf"{_LONG}|(({_GROUP}:){{0,3}}{_GROUP})?::(({_GROUP}:){{0,2}}{_GROUP})?"
_NAME = r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*"
_HOST = rf"{_NAME}|\[({_IPV6})\]"
Url = Annotated[
    str,
    Meta(
        pattern=rf"^https?://({_HOST})(:({_PORT}))?/?$",
        max_length=300,
        description="base URL of a pod, as http://host:8000",
        examples=["http://127.0.0.1:8200"],
    ),
]
Percent = Annotated[float, Meta(ge=0, le=100)]
Weight = Annotated[float, Meta(ge=0, le=1e9)]


class ErrorDetail(msgspec.Struct):
    message: str
    type: str


class ErrorAnswer(msgspec.Struct):
    """Every error of this API."""

    error: ErrorDetail


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """A query or body without fields."""


class Health(msgspec.Struct):
    status: str
    version: str
    policy: str
    pods_up: dict[str, int]
    in_flight: int
    conversations: int
    workers: int


class PodFactsShown(msgspec.Struct):
    block_size: int | None
    num_blocks: int | None
    prefix_caching: bool | None
    running: int
    waiting: int
    kv_usage: float
    models: list[str]
    max_model_len: int | None
    age_s: float | None


class PodShown(msgspec.Struct):
    """A pod as the gateway sees it; `epoch` counts restarts, `direct` and `why` are null for a prefill pod. handover:
    how a prefill pod hands over, where that is known. pairs_held: the pods with which it is not to hand over, and why.
    """

    url: str
    role: str
    up: bool
    draining: bool
    sources: list[str]
    breaker: str
    weight: float
    epoch: int
    instance: str | None
    version: str | None
    in_flight: int
    load_tokens: int
    direct: bool | None
    why: str | None
    handover: str | None
    pairs_held: dict[str, str]
    facts: PodFactsShown


class Pods(msgspec.Struct):
    pods: list[PodShown]


class NewPod(msgspec.Struct, forbid_unknown_fields=True):
    url: Url
    role: RoleName


class PodUrl(msgspec.Struct, forbid_unknown_fields=True):
    url: Url


class RemovePod(msgspec.Struct, forbid_unknown_fields=True):
    """drain: let its requests end first."""

    url: Url
    drain: bool = True


class Done(msgspec.Struct):
    """What was done, in words."""

    result: str


class Residency(msgspec.Struct):
    pods: list[dict[str, Any]]


class TableShown(msgspec.Struct):
    directory: str
    model: str
    gpu: str | None
    network: str | None
    created: str
    tool: str
    simulated: bool
    assignments: list[str]
    axes: dict[str, list[float]]
    description: str


class HeatmapQuery(msgspec.Struct, forbid_unknown_fields=True):
    """What is left out is the gateway's own: its weights, the pods that are up, the middle of the current traffic."""

    w_ttft: Weight | None = None
    w_tpot: Weight | None = None
    assignment: Annotated[str, Meta(max_length=32)] | None = None
    output_tokens: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    rate: Annotated[float, Meta(ge=0, le=1e9)] | None = None


class Heatmap(msgspec.Struct):
    """s[i][j], routes[i][j] (null: a tie) and counts[i][j] belong to context_tokens[i] and new_tokens[j]."""

    assignment: str
    w_ttft: float
    w_tpot: float
    output_tokens: float
    rate: float
    context_tokens: list[float]
    new_tokens: list[float]
    s: list[list[float]]
    routes: list[list[str | None]]
    counts: list[list[int]]


class WeightsShown(msgspec.Struct):
    w_ttft: float
    w_tpot: float


class NewWeights(msgspec.Struct, forbid_unknown_fields=True):
    w_ttft: Weight
    w_tpot: Weight


class NewCanary(msgspec.Struct, forbid_unknown_fields=True):
    """What is left out stays; percent alone turns it on."""

    percent: Percent | None = None
    state: Literal["on", "off"] | None = None


class GuardTest(msgspec.Struct):
    """canary, baseline: conversations (failures) or samples (times). seen, expected: failures of the canary and of the
    baseline, or times above the threshold and how many were to be expected. An alarm needs p ≤ alpha."""

    name: str
    canary: int
    baseline: int
    seen: int
    expected: float
    p: float
    alpha: float


class CanaryShown(msgspec.Struct):
    state: str
    percent: float
    shadow: bool
    passthrough: str | None
    why: str
    since_s: float
    stops: int
    shadowed: dict[str, int]
    guard: bool
    tests: list[GuardTest]


class ConversationShown(msgspec.Struct):
    id: str
    turn: int
    pending: int
    prefill: str | None
    decode: str | None
    homes: list[str]
    context_tokens: int
    last_route: str | None
    idle_s: float
    arm: str
    resident_tokens: dict[str, int]


class DecisionsQuery(msgspec.Struct, forbid_unknown_fields=True):
    """follow: an event stream (text/event-stream) of the decisions to come, in place of the last ones."""

    limit: Annotated[int, Meta(ge=1, le=2000)] = 100
    follow: bool = False


class Decision(msgspec.Struct, omit_defaults=True):
    """A request that is over, in the fields of the access log. time: Unix seconds."""

    time: float
    id: str
    outcome: str
    method: str
    path: str
    stream: bool
    status: int | None = None
    route: str | None = None
    arm: str | None = None
    prefill: str | None = None
    holder: str | None = None
    answered_by: str | None = None
    conversation: str | None = None
    turn: int | None = None
    attempts: int | None = None
    prompt_tokens: int | None = None
    expected_tokens: int | None = None
    cached_tokens: int | None = None
    p_cached_tokens: int | None = None
    readback_tokens: int | None = None
    output_tokens: int | None = None
    prefill_ms: float | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    total_ms: float | None = None
    score: float | None = None
    shadow_route: str | None = None
    service: str | None = msgspec.field(default=None, name="class")
    queued_ms: float | None = None
    refused: str | None = None
    reason: str | None = None
    shadow_reason: str | None = None


class Decisions(msgspec.Struct):
    decisions: list[Decision]


class FlowPair(msgspec.Struct):
    prefill: str
    decode: str
    requests_per_s: float
    tokens_per_s: float


class FlowPod(msgspec.Struct):
    url: str
    role: str
    up: bool
    in_flight: int
    load_tokens: int
    kv_usage: float
    requests_per_s: float
    output_tokens_per_s: float
    stayed_tokens_per_s: float
    appended_tokens_per_s: float


class Flow(msgspec.Struct):
    """Over the last window_s seconds. tokens_per_s: whose KV went from P to D. Of turns that needed no P,
    stayed_tokens_per_s: whose KV the pod had; appended_tokens_per_s: whose KV it computed itself."""

    window_s: float
    pairs: list[FlowPair]
    pods: list[FlowPod]


class Alarm(msgspec.Struct, frozen=True):
    """Something that somebody should know now. subject: a pod's URL, or gateway, target, canary,
    table."""

    severity: Literal["critical", "warning", "info"]
    subject: str
    message: str


class Alarms(msgspec.Struct):
    alarms: list[Alarm]


class ConfigShown(msgspec.Struct):
    """By the settings' keys; passwords in URLs and key hashes are left out."""

    settings: dict[str, Any]
