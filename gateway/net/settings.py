"""What the operator can set about moving bytes. Seconds are floats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.core.admission.classes import ServiceClass
from gateway.core.admission.desk import AdmissionRules
from gateway.core.breakers import BreakerRules
from gateway.core.weights import BALANCED, Weights
from gateway.wire.handovers import Way


@dataclass(frozen=True, slots=True)
class Timeouts:
    """One limit per phase; there is no limit on a whole stream, which would cut long answers.

    connect_s: TCP connection to a pod.
    prefill_s: the whole prefill leg. Keep it well above the slowest prefill: a prefill that is cut is lost work.
    first_byte_s: from sending the answering leg to the first event of a stream.
    unstreamed_s: an unstreamed answer as a whole; its first byte comes only when the last token is made.
    token_gap_s: between two reads of a stream.
    handover_grace_s: how long an abandoned hand-over may take to reach D's scheduler before it is aborted there.
    recall_s: each question before a readback; when it is over the turn goes without.
    """

    connect_s: float = 5.0
    prefill_s: float = 300.0
    first_byte_s: float = 120.0
    unstreamed_s: float = 3600.0
    token_gap_s: float = 60.0
    handover_grace_s: float = 2.0
    recall_s: float = 5.0


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """interval_s between probes of one pod, timeout_s of one probe, failures in a row that mean down,
    facts_interval_s between two readings of a pod's `/metrics` and `/v1/models`.

    A busy engine answers its probe late, so one slow answer must not move its conversations elsewhere.
    """

    interval_s: float = 2.0
    timeout_s: float = 5.0
    failures: int = 3
    facts_interval_s: float = 5.0


@dataclass(frozen=True, slots=True)
class PairSettings:
    """probe: prove a prefill and a decode pod with each other after either was restarted. enough: proofs of one
    restarted pod that do for its other pairs. at_once: probes that may run together. timeout_s: of one probe.
    """

    probe: bool = True
    enough: int = 8
    at_once: int = 2
    timeout_s: float = 15.0


@dataclass(frozen=True, slots=True)
class ClassSettings:
    """default: the class of a request whose tenant has none. deadlines_s: per class, for a first token."""

    default: ServiceClass = ServiceClass.STANDARD
    deadlines_s: Mapping[ServiceClass, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WeightSettings:
    """Whose weights count.

    default: everyone's. tenants: by tenant, or the hex SHA-256 of a tenant's API key. allow_request: whether a client
    may say `X-PPD-Weights` itself.
    """

    default: Weights = BALANCED
    tenants: Mapping[str, Weights] = field(default_factory=dict)
    allow_request: bool = False


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Everything net needs besides the pods and the policy.

    selftest: prove that decode and replica pods keep KV before relying on it. direct_without_proof: rely on a pod
    that does not tell how much it kept. handover: how KV gets from P to D; mooncake_bootstraps: per prefill pod the
    address of its bootstrap server.
    """

    max_body_bytes: int = 32 * 1024 * 1024
    prefill_keep_fields: tuple[str, ...] = ()
    decode_max_in_flight: int = 0
    min_resident_share: float = 0.5
    readback: bool = False
    isolate_tenants: bool = False
    allow_client_priority: bool = False
    expose_decisions: bool = False
    selftest: bool = True
    direct_without_proof: bool = False
    weights: WeightSettings = field(default_factory=WeightSettings)
    timeouts: Timeouts = field(default_factory=Timeouts)
    health: HealthSettings = field(default_factory=HealthSettings)
    breaker: BreakerRules = field(default_factory=BreakerRules)
    pairs: PairSettings = field(default_factory=PairSettings)
    retry_timed_out_prefill: bool = False
    lease_s: float = 30.0
    admission: AdmissionRules = field(default_factory=AdmissionRules)
    classes: ClassSettings = field(default_factory=ClassSettings)
    handover: Way = Way.AUTO
    mooncake_bootstraps: Mapping[str, str] = field(default_factory=dict)
