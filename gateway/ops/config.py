"""Flags, environment and file become one Config.

Rule of this room: flags win over PPD_… variables, they win over the file. Whatever is wrong is said in one line
that names the key and where it was set, and nothing is started.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lut
from gateway.core.breakers import BreakerRules
from gateway.core.keys import checked_key
from gateway.core.pods import Role
from gateway.core.slo import SloSettings
from gateway.core.weights import Weights, parse_weights
from gateway.net.connection import Limits
from gateway.net.keys import is_loopback
from gateway.net.settings import GatewaySettings, HealthSettings, PairSettings, Timeouts, WeightSettings
from gateway.ops.admission import classes_of, rules_of, slo_of, tenants_path
from gateway.ops.control import AdminSettings, CanarySettings, admin_of, canary_of
from gateway.ops.discovery.plan import DiscoveryPlan, discovers, discovery_of, is_name
from gateway.ops.drift import DriftPlan, drift_of
from gateway.ops.layers import ConfigError, checked, from_environment, from_file, from_flags
from gateway.ops.settings import SETTINGS
from gateway.ops.tracing_plan import TracingPlan, tracing_of
from gateway.ops.watch import read_by_others
from gateway.wire.handovers import Way

NIXL_LEASE_S = 30.0
MOONCAKE_LEASE_S = 480.0
"""How long vLLM's connectors keep blocks that nobody takes."""

SIMULATED_TABLE = Path(lut.__file__).parent / "simulated-h100-llama3.1-8b"
"""The table set that comes with the gateway, measured on simulated pods."""


@dataclass(frozen=True, slots=True)
class Config:
    """A checked configuration. values: what it was made of, by the settings' keys."""

    pods: tuple[tuple[Role, str], ...]
    policy: str
    table: Path
    interpolate: bool
    threshold_tokens: int
    host: str
    port: int
    log_level: str
    log_format: str
    drain_timeout_s: float
    pod_drain_s: float
    max_conversations: int
    conversation_ttl_s: float
    state: str | None = field(repr=False)
    state_namespace: str
    state_timeout_s: float
    state_file: Path | None
    state_interval_s: float
    workers: int
    api_keys: Path | None
    tenants: Path | None
    tls: tuple[Path, Path] | None
    upstream_ca_file: Path | None
    upstream_tls: tuple[Path, Path] | None
    upstream_api_key_file: Path | None
    upstream_api_key: str | None = field(repr=False)
    kv_events: bool
    kv_event_endpoints: tuple[tuple[str, str, str | None], ...]
    limits: Limits
    net: GatewaySettings
    admin: AdminSettings | None
    canary: CanarySettings
    slo: SloSettings
    discovery: DiscoveryPlan
    tracing: TracingPlan | None
    drift: DriftPlan
    load_aware: bool
    values: Mapping[str, Any] = field(repr=False)

    def count(self, role: Role) -> int:
        """How many pods of a role there are."""
        return sum(1 for pod_role, _ in self.pods if pod_role is role)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is allowed but hardly meant."""
        found = []
        if self.count(Role.PREFILL) == 0 and not self.discovery.any:
            found.append("no prefill pod: every turn runs whole on a decode or replica pod")
        if self.state_file is not None and not os.access(self.state_file.absolute().parent, os.W_OK | os.X_OK):
            found.append(f"state_file: nothing can be written in {self.state_file.absolute().parent}")
        secrets = {
            "api_keys": self.api_keys,
            "upstream_api_key_file": self.upstream_api_key_file,
            "tls_key": self.tls and self.tls[1],
            "upstream_cert_key": self.upstream_tls and self.upstream_tls[1],
            "admin.token_file": None if self.admin is None else self.admin.token_file,
        }
        for key, path in secrets.items():
            if path is not None and read_by_others(path):
                found.append(f"{key}: every user of this machine can read {path}")
        if self.api_keys is None and not is_loopback(self.host):
            found.append(f"insecure: whoever reaches {self.host} may use the pods")
        return tuple(found)


def load(path: Path | None, environment: Mapping[str, str], flags: Mapping[str, Any]) -> Config:
    """Build the configuration. `flags` maps keys to values; None means not given. Raises ConfigError."""
    values: dict[str, Any] = {setting.key: setting.default for setting in SETTINGS}
    sources: dict[str, str] = {}
    layers = [*from_file(path), *from_environment(environment), *from_flags(flags)]
    for key, value, source in layers:
        values[key], sources[key] = checked(key, value, source), source
    return build(values, sources, "the command line" if path is None else str(path), environment)


def build(
    values: Mapping[str, Any], sources: Mapping[str, str], fallback: str, environment: Mapping[str, str]
) -> Config:
    """From values that were checked each by itself. sources: where each was set, else `fallback`.

    Raises ConfigError.
    """
    return Config(
        pods=_pods(values, sources, fallback),
        policy=values["policy"],
        table=SIMULATED_TABLE if values["table"] is None else Path(values["table"]),
        interpolate=values["table_lookup"] == "interpolated",
        threshold_tokens=values["threshold_tokens"],
        host=values["host"],
        port=values["port"],
        log_level=values["log_level"],
        log_format=values["log_format"],
        drain_timeout_s=values["drain_timeout_s"],
        pod_drain_s=values["pod_drain_s"],
        max_conversations=values["conversations.max"],
        conversation_ttl_s=values["conversations.ttl_s"],
        state=values["state"],
        state_namespace=values["state_namespace"],
        state_timeout_s=values["state_timeout_s"],
        state_file=None if values["state_file"] is None else Path(values["state_file"]),
        state_interval_s=values["state_interval_s"],
        workers=_workers(values, sources, fallback),
        api_keys=_api_keys(values, sources, fallback),
        tenants=tenants_path(values, sources, fallback),
        tls=_pair(values, sources, fallback, "tls_cert", "tls_key"),
        upstream_ca_file=None if values["upstream_ca_file"] is None else Path(values["upstream_ca_file"]),
        upstream_tls=_pair(values, sources, fallback, "upstream_cert", "upstream_cert_key"),
        upstream_api_key_file=None
        if values["upstream_api_key_file"] is None
        else Path(values["upstream_api_key_file"]),
        upstream_api_key=_upstream_key(values, sources, fallback, environment),
        kv_events=values["kv_events"] == "auto",
        kv_event_endpoints=_endpoints(values, sources, fallback),
        limits=Limits(max_body_bytes=values["max_body_bytes"], **_table(values, "limits")),
        net=GatewaySettings(
            max_body_bytes=values["max_body_bytes"],
            prefill_keep_fields=values["prefill_keep_fields"],
            decode_max_in_flight=values["decode_max_in_flight"],
            expose_decisions=values["expose_decisions"],
            min_resident_share=values["min_resident_share"],
            readback=values["readback"],
            isolate_tenants=values["isolate_tenants"],
            allow_client_priority=values["allow_client_priority"],
            selftest=values["selftest"],
            direct_without_proof=values["direct_without_proof"],
            weights=WeightSettings(
                default=_weights(values, sources, fallback),
                tenants={key: parse_weights(wanted) for key, wanted in values["tenant_weights"]},
                allow_request=values["allow_request_weights"],
            ),
            timeouts=Timeouts(**_table(values, "timeouts")),
            health=HealthSettings(**_table(values, "health")),
            breaker=BreakerRules(**_table(values, "breaker")),
            pairs=PairSettings(**_table(values, "pairs")),
            retry_timed_out_prefill=values["retry_timed_out_prefill"],
            lease_s=values["lease_s"] or (MOONCAKE_LEASE_S if values["handover"] == Way.MOONCAKE else NIXL_LEASE_S),
            handover=_way(values, sources, fallback),
            mooncake_bootstraps=_bootstraps(values, sources, fallback),
            admission=rules_of(values, sources, fallback),
            classes=classes_of(values),
        ),
        admin=admin_of(values, sources, fallback),
        canary=canary_of(values, sources, fallback),
        slo=slo_of(values),
        discovery=discovery_of(values, sources, fallback, environment),
        tracing=tracing_of(values, sources, fallback),
        drift=drift_of(values),
        load_aware=values["load_aware"],
        values=values,
    )


def _pods(values: Mapping[str, Any], sources: Mapping[str, str], fallback: str) -> tuple[tuple[Role, str], ...]:
    pods = [(role, url) for role in Role for url in values[role.value] if not is_name(url)]
    seen: dict[str, Role] = {}
    for role, url in pods:
        if url in seen:
            where = sources.get(role.value, fallback)
            raise ConfigError(f"{where}: {role}: {url} is already a {seen[url]} pod")
        seen[url] = role
    if not values["decode"] and not discovers(values):
        raise ConfigError(f"{sources.get('decode', fallback)}: decode: at least one decode pod is needed")
    return tuple(pods)


def _endpoints(
    values: Mapping[str, Any], sources: Mapping[str, str], fallback: str
) -> tuple[tuple[str, str, str | None], ...]:
    known = {url for role in Role for url in values[role.value]}
    for pod, _, _ in values["kv_event_endpoints"]:
        if pod not in known and not discovers(values):
            where = sources.get("kv_event_endpoints", fallback)
            raise ConfigError(f"{where}: kv_event_endpoints: {pod} is none of the pods")
    return tuple(values["kv_event_endpoints"])


def _way(values: Mapping[str, Any], sources: Mapping[str, str], fallback: str) -> Way:
    way = Way(values["handover"])
    if values["readback"] and way in (Way.NIXL_PUSH, Way.MOONCAKE):
        raise ConfigError(f"{sources.get('readback', fallback)}: readback: pods with handover {way} cannot read back")
    if values["mooncake_bootstraps"] and way is not Way.MOONCAKE:
        where = sources.get("mooncake_bootstraps", fallback)
        raise ConfigError(f"{where}: mooncake_bootstraps: only for handover = mooncake, not {way}")
    return way


def _bootstraps(values: Mapping[str, Any], sources: Mapping[str, str], fallback: str) -> dict[str, str]:
    for pod, _ in values["mooncake_bootstraps"]:
        if values[Role.PREFILL.value] and pod not in values[Role.PREFILL.value] and not discovers(values):
            where = sources.get("mooncake_bootstraps", fallback)
            raise ConfigError(f"{where}: mooncake_bootstraps: {pod} is none of the prefill pods")
    return dict(values["mooncake_bootstraps"])


def _workers(values: Mapping[str, Any], sources: Mapping[str, str], fallback: str) -> int:
    if values["workers"] > 1 and values["state"] is None:
        where = sources.get("workers", fallback)
        raise ConfigError(f'{where}: workers: more than one needs state = "redis://…", which they share')
    return int(values["workers"])


def _api_keys(values: Mapping[str, Any], sources: Mapping[str, str], fallback: str) -> Path | None:
    if values["api_keys"] is not None:
        return Path(values["api_keys"])
    host = values["host"]
    if not values["insecure"] and not is_loopback(host):
        where = sources.get("host", fallback)
        raise ConfigError(
            f"{where}: host: others reach {host}: give clients keys (api_keys, `ppd-gateway keys add NAME`), "
            "or say insecure = true where something in front checks them"
        )
    return None


def _pair(
    values: Mapping[str, Any], sources: Mapping[str, str], fallback: str, cert: str, key: str
) -> tuple[Path, Path] | None:
    for given, other in ((cert, key), (key, cert)):
        if values[given] is not None and values[other] is None:
            raise ConfigError(f"{sources.get(given, fallback)}: {given}: it needs {other} too")
    return None if values[cert] is None else (Path(values[cert]), Path(values[key]))


def _upstream_key(
    values: Mapping[str, Any], sources: Mapping[str, str], fallback: str, environment: Mapping[str, str]
) -> str | None:
    name = values["upstream_api_key_env"]
    if name is None:
        return None
    where = sources.get("upstream_api_key_env", fallback)
    if values["upstream_api_key_file"] is not None:
        raise ConfigError(f"{where}: upstream_api_key_env: there is an upstream_api_key_file already")
    try:
        return checked_key(environment.get(name, ""))
    except ValueError as error:
        raise ConfigError(
            f"{where}: upstream_api_key_env: the variable it names does not hold a key: {error}"
        ) from None


def _weights(values: Mapping[str, Any], sources: Mapping[str, str], fallback: str) -> Weights:
    chosen = parse_weights(values["weights"])
    w_ttft = chosen.w_ttft if values["w_ttft"] is None else values["w_ttft"]
    w_tpot = chosen.w_tpot if values["w_tpot"] is None else values["w_tpot"]
    try:
        return Weights(w_ttft, w_tpot)
    except ValueError as error:
        key = "w_tpot" if "tpot" in str(error) or "w_ttft" not in sources else "w_ttft"
        raise ConfigError(f"{sources.get(key, fallback)}: {key}: {error}") from None


def _table(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key.partition(".")[2]: value for key, value in values.items() if key.startswith(f"{name}.")}
