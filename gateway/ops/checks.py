"""Checks of a setting's value, as TOML gives it or as text.

Rule of this room: a check returns the value as the gateway uses it, or raises ValueError with the reason in words that
fit behind the key's name.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from gateway.core.keys import TENANT
from gateway.core.weights import parse_weights

Check = Callable[[Any], Any]
"""Takes a value as TOML gives it or as text, returns it checked; raises ValueError with the reason."""


def text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("must be a non-empty string")
    return value


def integer(low: int, high: int) -> Check:
    def check(value: Any) -> int:
        number = _number(value, int, "a whole number")
        if not low <= number <= high:
            raise ValueError(f"must be between {low} and {high}")
        return int(number)

    return check


def seconds(value: Any) -> float:
    number = _float(value, "a number of seconds")
    if not 0 < number < 1e9:
        raise ValueError("must be a number of seconds above 0")
    return number


def one_of(*names: str) -> Check:
    def check(value: Any) -> str:
        if value not in names:
            raise ValueError(f"must be one of {', '.join(names)}")
        return str(value)

    return check


def boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ValueError("must be true or false")


def number(value: Any) -> float:
    return _float(value, "a number")


def _float(value: Any, what: str) -> float:
    try:
        return float(_number(value, float, what))
    except OverflowError:
        raise ValueError(f"must be {what} that is not beyond all bounds") from None


def share(value: Any) -> float:
    found = _float(value, "a number")
    if not 0 <= found <= 1:
        raise ValueError("must be between 0 and 1")
    return found


def between(low: float, high: float) -> Check:
    def check(value: Any) -> float:
        found = _float(value, "a number")
        if not low <= found <= high:
            raise ValueError(f"must be between {low:g} and {high:g}")
        return found

    return check


def event_endpoint(value: Any) -> tuple[str, str, str | None]:
    """`http://pod:8000=tcp://host:5557|tcp://host:5558` as (pod, endpoint, replay endpoint or None)."""
    pod, equals, rest = text(value).partition("=")
    endpoint, bar, replay = rest.partition("|")
    addresses = [endpoint, replay] if bar else [endpoint]
    if not equals or not all(re.fullmatch(r"(tcp://[^*\s]+:\d+|ipc://\S+)", address) for address in addresses):
        raise ValueError(
            "is written http://pod:8000=tcp://host:5557 or http://pod:8000=tcp://host:5557|tcp://host:5558"
        )
    return url(pod), endpoint, replay or None


def bootstrap_endpoint(value: Any) -> tuple[str, str]:
    """`http://pod:8000=http://host:8998` as (pod, endpoint)."""
    pod, equals, endpoint = text(value).partition("=")
    if not equals:
        raise ValueError("is written http://pod:8000=http://host:8998")
    return url(pod), url(endpoint)


def weights(value: Any) -> str:
    parse_weights(text(value))
    return str(value)


def tenant_weights(value: Any) -> tuple[str, str]:
    """`WHO:ttft=2,tpot=1` as (a tenant's name or the hash of its key, weights)."""
    key, colon, wanted = text(value).partition(":")
    named = re.fullmatch(r"[0-9a-f]{64}", key) or (TENANT.fullmatch(key) and len(key) < 64)
    if not colon or not named:
        raise ValueError(
            "is written WHO:ttft=2,tpot=1; WHO is the tenant's name in api_keys or its key's SHA-256 in lower-case hex"
        )
    return key, weights(wanted)


def url(value: Any) -> str:
    """A pod's base URL, normalised: scheme, host and port in lower case, nothing behind."""
    if not isinstance(value, str):
        raise ValueError("must be a URL like http://host:8000")
    if "@" in value:
        raise ValueError("a URL must not hold a user name or password")
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{value!r} is not a URL: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or any(c.isspace() for c in value):
        raise ValueError(f"{value!r} is not a URL like http://host:8000")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError(f"{value!r} must end after host and port")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    shown = "" if port is None or port == {"http": 80, "https": 443}[parts.scheme] else f":{port}"
    return f"{parts.scheme}://{host}{shown}"


def state(value: Any) -> str:
    """A Redis URL. It may hold a password, so no complaint quotes it."""
    if not isinstance(value, str):
        raise ValueError("must be a URL like redis://host:6379/0")
    try:
        parts = urlsplit(value)
        fit = parts.scheme in ("redis", "rediss") and bool(parts.hostname) and parts.port != 0
        fit = fit and re.fullmatch(r"/?\d*", parts.path) is not None
    except ValueError:
        fit = False
    if not fit or any(c.isspace() for c in value):
        raise ValueError("must be a URL like redis://host:6379/0 or rediss://user:password@host:6379/0")
    return value


def namespace(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", value):
        raise ValueError("must be up to 64 letters, digits and _.-")
    return value


def several(check: Check, separator: str = ",") -> Check:
    def check_all(value: Any) -> tuple[Any, ...]:
        if isinstance(value, str):
            value = [item.strip() for item in value.split(separator) if item.strip()]
        if not isinstance(value, list):
            raise ValueError("must be a list")
        return tuple(check(item) for item in value)

    return check_all


def _number(value: Any, kind: type[int] | type[float], what: str) -> int | float:
    if isinstance(value, bool):
        raise ValueError(f"must be {what}")
    if isinstance(value, str):
        try:
            return kind(value)
        except ValueError:
            raise ValueError(f"must be {what}, not {value!r}") from None
    if isinstance(value, int) or (kind is float and isinstance(value, float)):
        return value
    raise ValueError(f"must be {what}")


def pod(value: Any) -> str:
    """A pod's URL, or a name behind which pods are: `dns+http://name:port`, `srv+http://_port._tcp.name`."""
    kind, plus, rest = value.partition("+") if isinstance(value, str) else ("", "", "")
    if not plus or kind not in ("dns", "srv"):
        return url(value)
    found = url(rest)
    if kind == "srv" and urlsplit(rest).port is not None:
        raise ValueError(f"{value!r} must have no port: SRV records say it")
    if "[" in found or re.fullmatch(r"[\d.]+", urlsplit(found).hostname or ""):
        raise ValueError(f"{value!r} must hold a name, not an address")
    return f"{kind}+{found}"


def nameserver(value: Any) -> str:
    """`10.0.0.10` or `10.0.0.10:53`."""
    server_of(text(value))
    return str(value)


def server_of(value: str) -> tuple[str, int]:
    """An address and a port (53 where none is given). Raises ValueError."""
    host, colon, port = value.rpartition(":")
    if not colon or (":" in host and not host.startswith("[")):
        host, port = value, "53"
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError("must be an address, with or without a port")
    return str(ipaddress.ip_address(host.strip("[]"))), int(port)


def kube_namespace(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", value):
        raise ValueError("must be up to 63 lower-case letters, digits and -")
    return value


def label_name(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"([a-z0-9.-]+/)?[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?", value):
        raise ValueError(f"{value!r} is not a label's name")
    return value


def port_or_name(value: Any) -> str:
    """A port's number, or the name that a container gives it."""
    shown = str(value) if isinstance(value, int) and not isinstance(value, bool) else text(value)
    if not re.fullmatch(r"[a-z0-9-]{1,63}", shown) or (shown.isdecimal() and not 0 < int(shown) < 65536):
        raise ValueError("must be a port's number or name")
    return shown
