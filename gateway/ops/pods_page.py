"""`/admin/pods`: every pod as the gateway sees it.

Rule of this room: what is shown here has been learned already; nobody is asked.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec

from gateway.core.pods import Fleet, Pod, Role
from gateway.net.exchange import Page


def pods_page(fleet: Fleet) -> Page:
    """The page, as JSON."""
    return Page("application/json", msgspec.json.encode({"pods": [_shown(pod) for pod in fleet]}))


def _shown(pod: Pod) -> dict[str, Any]:
    """`epoch` counts restarts. `direct` and `why` are null for a prefill pod."""
    facts = pod.facts
    serves = pod.role is not Role.PREFILL
    return {
        "url": pod.url,
        "role": pod.role,
        "up": pod.up,
        "breaker": pod.breaker.state,
        "weight": pod.weight,
        "epoch": pod.epoch,
        "instance": facts.instance or None,
        "version": facts.version or None,
        "in_flight": pod.in_flight,
        "load_tokens": pod.load_tokens,
        "direct": pod.direct if serves else None,
        "why": (pod.direct_off or pod.proof) if serves else None,
        "facts": {
            "block_size": facts.block_size or None,
            "num_blocks": facts.num_blocks or None,
            "prefix_caching": facts.prefix_caching,
            "running": facts.running,
            "waiting": facts.waiting,
            "kv_usage": facts.kv_usage,
            "models": facts.models,
            "max_model_len": facts.max_model_len or None,
            "age_s": round(time.monotonic() - facts.seen_at, 3) if facts.seen_at else None,
        },
    }
