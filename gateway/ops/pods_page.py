"""`/admin/pods`: every pod as the gateway sees it.

Rule of this room: what is shown here has been learned already; nobody is asked.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec

from gateway.core.pods import Pod, Role
from gateway.net.exchange import Page
from gateway.net.parts import Parts


def pods_page(parts: Parts) -> Page:
    """The page, as JSON."""
    return Page("application/json", msgspec.json.encode({"pods": [_shown(pod, parts) for pod in parts.fleet]}))


def _shown(pod: Pod, parts: Parts) -> dict[str, Any]:
    """`epoch` counts restarts. `direct` and `why` are null for a prefill pod, `handover` for the others and where it is
    not known yet. `pairs_held`: the pods with which it is not to hand over, and why.
    """
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
        "handover": parts.origins.shown(pod),
        "pairs_held": parts.fleet.pairs.held_of(pod.url),
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
