"""Where traces go, as the configuration says it.

Rule of this room: words only; what is imported here is imported by every gateway.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from gateway.ops.layers import ConfigError


@dataclass(frozen=True, slots=True)
class TracingPlan:
    """endpoint: of an OTLP collector over HTTP. sample: share of the requests without a trace of their own that get
    one. follow: take up the traces that clients begin."""

    endpoint: str
    sample: float
    follow: bool


def tracing_of(values: Mapping[str, Any], sources: Mapping[str, str], fallback: str) -> TracingPlan | None:
    """None where there are to be no traces. Raises ConfigError."""
    endpoint = values["tracing.endpoint"]
    if endpoint is None:
        return None
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.exporter") is None:
        where = sources.get("tracing.endpoint", fallback)
        raise ConfigError(f"{where}: tracing.endpoint: needs OpenTelemetry: pip install 'ppd-gateway[otel]'")
    return TracingPlan(endpoint, values["tracing.sample"], values["tracing.follow_clients"])
