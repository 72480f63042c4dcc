"""Where to look for pods, as the configuration says it.

Rule of this room: words only; what is imported here is imported by every gateway.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gateway.core.pods import Role
from gateway.core.settling import SettlingRules
from gateway.ops.layers import ConfigError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Kubernetes puts a pod's token, the API's CA and the namespace."""


@dataclass(frozen=True, slots=True)
class DnsName:
    """Pods behind a name. url: `dns+http://name:port` (A and AAAA) or `srv+http://_port._tcp.name` (SRV)."""

    role: Role
    url: str

    @property
    def kind(self) -> str:
        return self.url.partition("+")[0]

    @property
    def scheme(self) -> str:
        return self.url.partition("+")[2].partition(":")[0]

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or {"http": 80, "https": 443}[self.scheme]


@dataclass(frozen=True, slots=True)
class KubernetesPlan:
    """Which pods to watch.

    role_labels: the first of them that a pod has says its role. port: number or name; None for what the pod shows.
    """

    selector: str
    namespace: str
    api: str
    role_labels: tuple[str, ...] = ("ppd.role", "llm-d.ai/role")
    port: str | None = None
    token_file: Path = SERVICE_ACCOUNT / "token"
    ca_file: Path = SERVICE_ACCOUNT / "ca.crt"
    resync_s: float = 600.0


@dataclass(frozen=True, slots=True)
class DiscoveryPlan:
    """All sources. interval_s: longest time between two questions to DNS."""

    names: tuple[DnsName, ...] = ()
    nameserver: str | None = None
    file: Path | None = None
    kubernetes: KubernetesPlan | None = None
    interval_s: float = 10.0
    rules: SettlingRules = field(default_factory=SettlingRules)

    @property
    def any(self) -> bool:
        """Whether there is any source at all."""
        return bool(self.names) or self.file is not None or self.kubernetes is not None

    @property
    def described(self) -> list[str]:
        """Where it looks, in words."""
        found = [name.url for name in self.names]
        if self.file is not None:
            found.append(str(self.file))
        if self.kubernetes is not None:
            found.append(f"Kubernetes pods {self.kubernetes.selector} in {self.kubernetes.namespace}")
        return found


def is_name(url: str) -> bool:
    """True for a name behind which pods are, rather than a pod."""
    return url.startswith(("dns+", "srv+"))


def discovers(values: Mapping[str, Any]) -> bool:
    """True when pods may come that the settings do not name."""
    named = any(is_name(url) for role in Role for url in values[role.value])
    return named or values["discovery.file"] is not None or values["kubernetes.selector"] is not None


def discovery_of(
    values: Mapping[str, Any], sources: Mapping[str, str], fallback: str, environment: Mapping[str, str]
) -> DiscoveryPlan:
    """From checked settings. Raises ConfigError."""
    names = tuple(DnsName(role, url) for role in Role for url in values[role.value] if is_name(url))
    needing = [name.role for name in names if name.kind == "srv"]
    if (needing or (names and values["discovery.nameserver"])) and find_spec("dns") is None:
        key = needing[0].value if needing else "discovery.nameserver"
        raise ConfigError(f"{sources.get(key, fallback)}: {key}: needs dnspython: pip install 'ppd-gateway[dns]'")
    seen: dict[str, Role] = {}
    for name in names:
        if name.url in seen:
            where = sources.get(name.role.value, fallback)
            raise ConfigError(f"{where}: {name.role}: {name.url} is already named as {seen[name.url]}")
        seen[name.url] = name.role
    return DiscoveryPlan(
        names=names,
        nameserver=values["discovery.nameserver"],
        file=_path(values["discovery.file"]),
        kubernetes=_kubernetes(values, sources, fallback, environment),
        interval_s=values["discovery.interval_s"],
        rules=SettlingRules(values["discovery.hold_s"], values["discovery.max_loss"]),
    )


def _kubernetes(
    values: Mapping[str, Any], sources: Mapping[str, str], fallback: str, environment: Mapping[str, str]
) -> KubernetesPlan | None:
    if values["kubernetes.selector"] is None:
        return None
    where = f"{sources.get('kubernetes.selector', fallback)}: kubernetes.selector"
    api = values["kubernetes.api"] or _api(environment)
    if api is None:
        raise ConfigError(f"{where}: this is no pod of a cluster (no KUBERNETES_SERVICE_HOST); set kubernetes.api")
    namespace = values["kubernetes.namespace"] or _own_namespace()
    if namespace is None:
        raise ConfigError(f"{where}: set kubernetes.namespace too, as there is no {SERVICE_ACCOUNT / 'namespace'}")
    return KubernetesPlan(
        selector=values["kubernetes.selector"],
        namespace=namespace,
        role_labels=values["kubernetes.role_labels"],
        port=values["kubernetes.port"],
        api=api,
        token_file=_path(values["kubernetes.token_file"]) or SERVICE_ACCOUNT / "token",
        ca_file=_path(values["kubernetes.ca_file"]) or SERVICE_ACCOUNT / "ca.crt",
        resync_s=values["kubernetes.resync_s"],
    )


def _api(environment: Mapping[str, str]) -> str | None:
    """Where Kubernetes tells its pods that the API is."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        return None
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def _own_namespace() -> str | None:
    try:
        return (SERVICE_ACCOUNT / "namespace").read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def _path(value: str | None) -> Path | None:
    return None if value is None else Path(value)
