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
from gateway.core.weights import Weights, parse_weights
from gateway.net.keys import is_loopback
from gateway.net.settings import GatewaySettings, HealthSettings, Timeouts, WeightSettings
from gateway.ops.layers import ConfigError, checked, from_environment, from_file, from_flags
from gateway.ops.settings import SETTINGS
from gateway.ops.watch import read_by_others

SIMULATED_TABLE = Path(lut.__file__).parent / "simulated-h100-llama3.1-8b"
"""The table set that comes with the gateway, measured on simulated pods."""


@dataclass(frozen=True, slots=True)
class Config:
    """A checked configuration."""

    pods: tuple[tuple[Role, str], ...]
    policy: str
    table: Path
    interpolate: bool
    threshold_tokens: int
    host: str
    port: int
    log_level: str
    shutdown_grace_s: float
    max_conversations: int
    conversation_ttl_s: float
    state: str | None = field(repr=False)
    state_namespace: str
    state_timeout_s: float
    state_file: Path | None
    state_interval_s: float
    workers: int
    api_keys: Path | None
    tls: tuple[Path, Path] | None
    upstream_ca_file: Path | None
    upstream_tls: tuple[Path, Path] | None
    upstream_api_key_file: Path | None
    upstream_api_key: str | None = field(repr=False)
    kv_events: bool
    kv_event_endpoints: tuple[tuple[str, str, str | None], ...]
    net: GatewaySettings

    def count(self, role: Role) -> int:
        """How many pods of a role there are."""
        return sum(1 for pod_role, _ in self.pods if pod_role is role)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is allowed but hardly meant."""
        found = []
        if self.count(Role.PREFILL) == 0:
            found.append("no prefill pod: every turn runs whole on a decode or replica pod")
        if self.state_file is not None and not os.access(self.state_file.absolute().parent, os.W_OK | os.X_OK):
            found.append(f"state_file: nothing can be written in {self.state_file.absolute().parent}")
        secrets = {
            "api_keys": self.api_keys,
            "upstream_api_key_file": self.upstream_api_key_file,
            "tls_key": self.tls and self.tls[1],
            "upstream_cert_key": self.upstream_tls and self.upstream_tls[1],
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
    fallback = "the command line" if path is None else str(path)
    return Config(
        pods=_pods(values, sources, fallback),
        policy=values["policy"],
        table=SIMULATED_TABLE if values["table"] is None else Path(values["table"]),
        interpolate=values["table_lookup"] == "interpolated",
        threshold_tokens=values["threshold_tokens"],
        host=values["host"],
        port=values["port"],
        log_level=values["log_level"],
        shutdown_grace_s=values["shutdown_grace_s"],
        max_conversations=values["conversations.max"],
        conversation_ttl_s=values["conversations.ttl_s"],
        state=values["state"],
        state_namespace=values["state_namespace"],
        state_timeout_s=values["state_timeout_s"],
        state_file=None if values["state_file"] is None else Path(values["state_file"]),
        state_interval_s=values["state_interval_s"],
        workers=_workers(values, sources, fallback),
        api_keys=_api_keys(values, sources, fallback),
        tls=_pair(values, sources, fallback, "tls_cert", "tls_key"),
        upstream_ca_file=None if values["upstream_ca_file"] is None else Path(values["upstream_ca_file"]),
        upstream_tls=_pair(values, sources, fallback, "upstream_cert", "upstream_cert_key"),
        upstream_api_key_file=None
        if values["upstream_api_key_file"] is None
        else Path(values["upstream_api_key_file"]),
        upstream_api_key=_upstream_key(values, sources, fallback, environment),
        kv_events=values["kv_events"] == "auto",
        kv_event_endpoints=_endpoints(values, sources, fallback),
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
            retry_timed_out_prefill=values["retry_timed_out_prefill"],
            lease_s=values["lease_s"],
            queue_s=values["queue_s"] or 0.0,
        ),
    )


def _pods(values: Mapping[str, Any], sources: Mapping[str, str], fallback: str) -> tuple[tuple[Role, str], ...]:
    pods = [(role, url) for role in Role for url in values[role.value]]
    seen: dict[str, Role] = {}
    for role, url in pods:
        if url in seen:
            where = sources.get(role.value, fallback)
            raise ConfigError(f"{where}: {role}: {url} is already a {seen[url]} pod")
        seen[url] = role
    if not values["decode"]:
        raise ConfigError(f"{sources.get('decode', fallback)}: decode: at least one decode pod is needed")
    return tuple(pods)


def _endpoints(
    values: Mapping[str, Any], sources: Mapping[str, str], fallback: str
) -> tuple[tuple[str, str, str | None], ...]:
    known = {url for role in Role for url in values[role.value]}
    for pod, _, _ in values["kv_event_endpoints"]:
        if pod not in known:
            where = sources.get("kv_event_endpoints", fallback)
            raise ConfigError(f"{where}: kv_event_endpoints: {pod} is none of the pods")
    return tuple(values["kv_event_endpoints"])


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
