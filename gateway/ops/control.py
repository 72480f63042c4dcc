"""The settings of the admin API and of the canary.

Rule of this room: built from values that were checked one by one; here is what they mean together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.core.guard import GuardSettings
from gateway.core.pods import Role
from gateway.net.keys import is_loopback
from gateway.ops.layers import ConfigError


@dataclass(frozen=True, slots=True)
class AdminSettings:
    """Where the admin API listens, and the file of the token that it wants (None: no token). view: only for changes."""

    host: str = "127.0.0.1"
    port: int = 0
    token_file: Path | None = None
    view: bool = False


@dataclass(frozen=True, slots=True)
class CanarySettings:
    """percent: 0 … 100. passthrough: URL of the operator's own proxy."""

    percent: float = 100.0
    shadow: bool = False
    passthrough: str | None = None
    state_file: Path | None = None
    guard: GuardSettings = field(default_factory=GuardSettings)


def admin_of(values: Mapping[str, Any], sources: Mapping[str, str], fallback: str) -> AdminSettings | None:
    """None where there is to be no admin API. Raises ConfigError."""
    if values["admin.port"] is None:
        if values["admin.token_file"] is not None:
            raise ConfigError(f"{sources.get('admin.token_file', fallback)}: admin.token_file: it needs admin.port too")
        return None
    host, file = values["admin.host"], values["admin.token_file"]
    if file is None and not is_loopback(host):
        where = sources.get("admin.host", fallback)
        raise ConfigError(f"{where}: admin.host: others reach {host}: give the admin API a token (admin.token_file)")
    view = values["admin.view_without_token"]
    if view and not is_loopback(host):
        where = sources.get("admin.view_without_token", fallback)
        raise ConfigError(f"{where}: admin.view_without_token: others reach {host}: they would see everything too")
    return AdminSettings(host, values["admin.port"], None if file is None else Path(file), view)


def canary_of(values: Mapping[str, Any], sources: Mapping[str, str], fallback: str) -> CanarySettings:
    """Raises ConfigError."""
    proxy, shadow = values["canary.passthrough"], values["canary.shadow"]
    where = sources.get("canary.passthrough", fallback)
    if proxy is not None and shadow:
        raise ConfigError(f"{where}: canary.passthrough: in shadow (canary.shadow) the gateway carries everything out")
    if proxy is not None and any(proxy in values[role.value] for role in Role):
        raise ConfigError(f"{where}: canary.passthrough: {proxy} is one of the pods, not a proxy before them")
    file = values["canary.state_file"]
    return CanarySettings(
        percent=values["canary.percent"],
        shadow=shadow,
        passthrough=proxy,
        state_file=None if file is None else Path(file),
        guard=GuardSettings(
            enabled=values["canary.guard"],
            window_s=values["canary.window_s"],
            look_s=values["canary.look_s"],
            min_samples=values["canary.min_samples"],
            quantile=values["canary.quantile"],
            latency_margin=values["canary.latency_margin"],
            error_margin=values["canary.error_margin"],
            false_alarms=values["canary.false_alarms"],
        ),
    )
