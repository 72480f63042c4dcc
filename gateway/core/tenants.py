"""Tenants: what each may use and how it is served, and the file that says so.

Rule of this room: a file is right as a whole or it is one complaint; no complaint quotes a value. A tenant that the
file does not name is served as `default` says.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gateway.core.admission.classes import ServiceClass
from gateway.core.keys import TENANT
from gateway.core.weights import Weights, parse_weights


class TenantFileError(Exception):
    """One line for the operator: which tenant, which key, what is wrong with it."""


class Tenant(msgspec.Struct, frozen=True):
    """How one tenant is served.

    service: its class. share: its part of what there is, against the others' of its class, when there is a queue.
    requests_per_s, tokens_per_min (prompt and output), max_in_flight: 0 is no quota; burst_s: so many seconds' worth
    may come at once. models: those it may use, None for all. isolate: its own prefix cache (`cache_salt`); None: as
    `isolate_tenants` says. weights: in place of the gateway's.
    """

    name: str
    service: ServiceClass = ServiceClass.STANDARD
    share: float = 1.0
    requests_per_s: float = 0.0
    tokens_per_min: float = 0.0
    burst_s: float = 10.0
    max_in_flight: int = 0
    models: frozenset[str] | None = None
    isolate: bool | None = None
    weights: Weights | None = None

    @property
    def limited(self) -> bool:
        """Whether it has any quota."""
        return bool(self.requests_per_s or self.tokens_per_min or self.max_in_flight)

    def may_use(self, model: str) -> bool:
        return self.models is None or model in self.models


@dataclass(frozen=True, slots=True)
class TenantBook:
    """All tenants that are named, and what the others get."""

    tenants: Mapping[str, Tenant] = field(default_factory=dict)
    default: Tenant = field(default_factory=lambda: Tenant(""))

    def of(self, name: str) -> Tenant:
        """That tenant; each that is not named has accounts of its own with the default's quotas."""
        found = self.tenants.get(name)
        return msgspec.structs.replace(self.default, name=name) if found is None else found

    def describe(self) -> str:
        """For people."""
        return f"{len(self.tenants)} tenants"


def read_tenants(text: str) -> TenantBook:
    """TOML: `[default]` and one `[tenants.NAME]` each. Raises TenantFileError."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TenantFileError(f"not valid TOML: {error}") from None
    for key in document:
        if key not in ("default", "tenants"):
            raise TenantFileError(f"{_plain(key)}: unknown; there are [default] and [tenants.NAME]")
    default = _tenant("", document.get("default", {}), "default", Tenant(""))
    named = document.get("tenants", {})
    if not isinstance(named, dict):
        raise TenantFileError("tenants: must be tables, [tenants.NAME]")
    found = {}
    for name, values in named.items():
        if not TENANT.fullmatch(name):
            raise TenantFileError("tenants: a name has letters, digits and _.@-, up to 64")
        found[name] = _tenant(name, values, f"tenants.{name}", default)
    return TenantBook(found, default)


def _tenant(name: str, values: Any, where: str, default: Tenant) -> Tenant:
    """What is not said is as in `default`."""
    if not isinstance(values, dict):
        raise TenantFileError(f"{where}: must be a table")
    found: dict[str, Any] = {}
    for key, value in values.items():
        if key not in _READERS:
            raise TenantFileError(f"{where}.{_plain(key)}: unknown; there are {', '.join(_READERS)}")
        field_name, read = _READERS[key]
        try:
            found[field_name] = read(value)
        except ValueError as error:
            raise TenantFileError(f"{where}.{key}: {error}") from None
    return msgspec.structs.replace(default, name=name, **found)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError("must be a number of 0 or more")
    return float(value)


def _positive(value: Any) -> float:
    found = _number(value)
    if not 1e-6 <= found <= 1e6:
        raise ValueError("must be a number above 0")
    return found


def _count(value: Any) -> int:
    found = _number(value)
    if found != int(found):
        raise ValueError("must be a whole number of 0 or more")
    return int(found)


def _service(value: Any) -> ServiceClass:
    try:
        return ServiceClass(value)
    except ValueError:
        raise ValueError(f"must be one of {', '.join(ServiceClass)}") from None


def _models(value: Any) -> frozenset[str]:
    if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
        raise ValueError("must be a list of models' names")
    return frozenset(value)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def _weights(value: Any) -> Weights:
    if not isinstance(value, str):
        raise ValueError("must be text like ttft=2,tpot=1")
    return parse_weights(value)


_READERS: dict[str, tuple[str, Any]] = {
    "class": ("service", _service),
    "share": ("share", _positive),
    "requests_per_s": ("requests_per_s", _number),
    "tokens_per_min": ("tokens_per_min", _number),
    "burst_s": ("burst_s", _positive),
    "max_in_flight": ("max_in_flight", _count),
    "models": ("models", _models),
    "isolate": ("isolate", _boolean),
    "weights": ("weights", _weights),
}
"""By the key in the file: the field, and what reads it."""


def _plain(key: str) -> str:
    return key if TENANT.fullmatch(key) else "a key"
