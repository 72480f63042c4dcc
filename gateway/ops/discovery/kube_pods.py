"""What of a Kubernetes pod object says that, where and as what it serves.

Rule of this room: read from the object alone, as the API sends it (core/v1 Pod); a field that is not there is no error.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gateway.core.pods import Role
from gateway.core.settling import Found, Standing

PORT_ANNOTATION = "ppd.port"
DEFAULT_PORT = 8000
PORT_NAME = "http"

ROLES = {
    "prefill": Role.PREFILL,
    "decode": Role.DECODE,
    "replica": Role.REPLICA,
    "both": Role.REPLICA,
    "prefill-decode": Role.REPLICA,
}
"""Values of a role label; the last two are llm-d's words for a pod that does both."""


class Port(msgspec.Struct, rename="camel"):
    container_port: int
    name: str = ""


class Container(msgspec.Struct):
    ports: list[Port] | None = None


class PodSpec(msgspec.Struct, rename="camel"):
    containers: list[Container] | None = None


class Condition(msgspec.Struct):
    type: str = ""
    status: str = ""


class PodStatus(msgspec.Struct):
    phase: str = ""
    podIP: str = ""  # noqa: N815 - Kubernetes' own name, whose capitals no rule makes
    conditions: list[Condition] | None = None


class Metadata(msgspec.Struct, rename="camel"):
    name: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    resource_version: str = ""
    deletion_timestamp: str | None = None


class KubePod(msgspec.Struct):
    """A pod object, as far as it matters."""

    metadata: Metadata
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)


class Unfit(Exception):
    """A pod that matches the selector and cannot be used; why, in words."""


def found_of(pod: KubePod, role_labels: tuple[str, ...], port: str | None) -> Found | None:
    """The pod for the fleet; None while it has no address, or has ended. Raises Unfit."""
    if not pod.status.podIP or pod.status.phase in ("Succeeded", "Failed"):
        return None
    host = f"[{pod.status.podIP}]" if ":" in pod.status.podIP else pod.status.podIP
    number = _port(pod, port)
    url = f"http://{host}" if number == 80 else f"http://{host}:{number}"
    return Found(url, _role(pod.metadata.labels or {}, role_labels), _standing(pod))


def _standing(pod: KubePod) -> Standing:
    if pod.metadata.deletion_timestamp is not None:
        return Standing.LEAVING
    ready = any(each.type == "Ready" and each.status == "True" for each in pod.status.conditions or ())
    return Standing.READY if ready else Standing.UNREADY


def _role(labels: Mapping[str, str], role_labels: tuple[str, ...]) -> Role:
    for label in role_labels:
        if label in labels:
            role = ROLES.get(labels[label])
            if role is None:
                raise Unfit(f"label {label}={labels[label]} is no role")
            return role
    raise Unfit(f"it has no label {' or '.join(role_labels)}")


def _port(pod: KubePod, wanted: str | None) -> int:
    """By number or by name: the annotation, then what is configured; else the port called http, else the only one."""
    ports = [port for container in pod.spec.containers or () for port in container.ports or ()]
    named = {port.name: port.container_port for port in reversed(ports) if port.name}
    asked = (pod.metadata.annotations or {}).get(PORT_ANNOTATION, wanted)
    if asked is not None:
        number = int(asked) if asked.isascii() and asked.isdecimal() else named.get(asked)
        if number is None or not 0 < number < 65536:
            raise Unfit(f"it has no port {asked!r}")
        return number
    if PORT_NAME in named:
        return named[PORT_NAME]
    return ports[0].container_port if len(ports) == 1 else DEFAULT_PORT
