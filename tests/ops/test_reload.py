"""What a reload takes over, and what waits for the next start."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gateway.ops.config import Config, load
from gateway.ops.reload import AT_RUN_TIME, _mixed

PODS = {"prefill": ["http://p:1"], "decode": ["http://d:1"]}
NEW: dict[str, Any] = {
    "prefill": ["http://p:2"],
    "decode": ["http://d:1", "http://d:2"],
    "replica": ["http://r:1"],
    "weights": "throughput",
    "w_ttft": "3",
    "w_tpot": "3",
    "tenant_weights": ["bob:ttft=3"],
    "allow_request_weights": "true",
    "threshold_tokens": "7",
    "decode_max_in_flight": "7",
    "min_resident_share": "0.25",
    "expose_decisions": "true",
    "prefill_keep_fields": ["tool_choice"],
    "retry_timed_out_prefill": "true",
    "queue_s": "7",
    "max_body_bytes": "7",
    "conversations.max": "7",
    "conversations.ttl_s": "7",
    "log_level": "debug",
    "drain_timeout_s": "7",
    "canary.percent": "7",
    "canary.guard": "false",
    "canary.min_samples": "7",
    "canary.quantile": "0.7",
    "health.failures": "7",
    "breaker.failures": "7",
    "default_class": "batch",
    "admission.max_tokens": "7",
    "admission.prefill_tokens": "7",
    "admission.decode_tokens": "7",
    "admission.queue": "7",
    "admission.predict": "false",
    "slo.min_samples": "7",
    "slo.max_factor": "7",
    "drift.mode": "correct",
    "drift.tolerance": "0.7",
    "drift.explore": "0.07",
}
LATER = {
    "policy": "local",
    "port": "7",
    "host": "::1",
    "timeouts.connect_s": "7",
    "health.timeout_s": "7",
    "canary.shadow": "true",
    "canary.passthrough": "http://x:1",
    "state_file": "/x",
    "admin.port": "7",
    "readback": "true",
    "lease_s": "7",
    "log_format": "json",
    "load_aware": "true",
    "drift.measurements_file": "/x",
}


def configured(**flags: Any) -> Config:
    return load(None, {}, {**PODS, **flags})


@pytest.mark.parametrize("key", sorted(AT_RUN_TIME))
def test_what_changes_at_run_time_is_wholly_taken_over(key: str) -> None:
    value = NEW.get(key, "0.375")
    old, new = configured(), configured(**{key: value})
    assert new != old
    assert _mixed(old, new, [key]) == new


@pytest.mark.parametrize("key", sorted(LATER))
def test_what_does_not_stays_as_it_was(key: str) -> None:
    assert key not in AT_RUN_TIME
    old, new = configured(), configured(**{key: LATER[key]})
    assert new != old
    assert _mixed(old, new, []) == old


def test_of_two_changes_each_goes_its_way() -> None:
    old, new = configured(), configured(policy="local", drain_timeout_s="7")
    mixed = _mixed(old, new, ["drain_timeout_s"])
    assert (mixed.policy, mixed.drain_timeout_s) == (old.policy, 7.0)
    assert mixed.values == {**old.values, "drain_timeout_s": 7.0}
    assert dataclasses.replace(mixed, drain_timeout_s=old.drain_timeout_s, values=old.values) == old
