"""`/admin/residency`: what is known of each pod's cache, and how good that knowledge was.

Rule of this room: numbers by pod; no conversation is named.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec

from gateway.core.pods import Pod
from gateway.core.residency import Accuracy, PodCache
from gateway.core.views import RankView
from gateway.net.exchange import Page
from gateway.net.parts import Parts


def residency_page(parts: Parts) -> Page:
    """The page, as JSON: predicted against actual cached tokens per pod and source."""
    pods = [_pod(pod, parts.residency.cache(pod)) for pod in parts.fleet]
    return Page("application/json", msgspec.json.format(msgspec.json.encode({"pods": pods}), indent=1))


def _pod(pod: Pod, cache: PodCache) -> dict[str, Any]:
    return {
        "pod": pod.url,
        "role": pod.role,
        "up": pod.up,
        "epoch": pod.epoch,
        "block_size": cache.block_size,
        "predictions": {source: _accuracy(found) for source, found in cache.accuracy.items() if found.turns},
        "ledger": {
            "conversations": len(cache.ghost),
            "tokens": cache.ghost.total_tokens,
            "room_tokens": None if cache.ghost.room_tokens is None else round(cache.ghost.room_tokens),
            "capacity_tokens": cache.ghost.capacity_tokens,
        },
        "events": [{"rank": rank, **_view(view)} for rank, view in sorted(cache.views.items())],
    }


def _accuracy(found: Accuracy) -> dict[str, Any]:
    return {**msgspec.structs.asdict(found), "mean_error_tokens": round(found.error_tokens / found.turns, 1)}


def _view(view: RankView) -> dict[str, Any]:
    return {
        "heard": view.heard,
        "complete": view.complete,
        "resident_blocks": view.resident_blocks,
        "batches": view.batches,
        "blocks": view.blocks,
        "gaps": view.gaps,
        "gaps_lost": view.lost,
        "age_s": round(time.time() - view.last_event_s, 3) if view.heard else None,
    }
