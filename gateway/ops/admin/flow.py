"""Who sends what to whom: tokens per second from P to D, and what each pod does.

Rule of this room: worked out when it is asked for, of the decisions that are remembered.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from gateway.core.pods import Fleet
from gateway.ops.admin.decisions import RecentDecisions
from gateway.ops.admin.schemas import Flow, FlowPair, FlowPod

WINDOW_S = 10.0


def flow(fleet: Fleet, decisions: RecentDecisions) -> Flow:
    """The last WINDOW_S seconds, or as far back as decisions are remembered."""
    now = time.time()
    since = now - WINDOW_S
    records = decisions.records
    if len(records) == records.maxlen:
        since = max(since, records[0][0])
    window_s = max(0.001, now - since)
    requests: Counter[str] = Counter()
    outputs: Counter[str] = Counter()
    stayed: Counter[str] = Counter()
    appended: Counter[str] = Counter()
    pairs: Counter[tuple[str, str]] = Counter()
    moved: Counter[tuple[str, str]] = Counter()
    for record in decisions.since(since):
        answering = record.answering or ""
        requests[answering] += 1
        outputs[answering] += record.output_tokens or 0
        if record.avoided_tokens is not None:
            stayed[answering] += record.cached_tokens or 0
            appended[answering] += record.avoided_tokens
        if record.prefill is not None:
            requests[record.prefill] += 1
            pairs[record.prefill, answering] += 1
            moved[record.prefill, answering] += record.moved_tokens or 0
    return Flow(
        window_s=round(window_s, 3),
        pairs=[
            FlowPair(prefill, decode, round(count / window_s, 3), round(moved[prefill, decode] / window_s, 1))
            for (prefill, decode), count in sorted(pairs.items())
        ],
        pods=[
            FlowPod(
                pod.url,
                pod.role,
                pod.up,
                pod.in_flight,
                pod.load_tokens,
                pod.facts.kv_usage,
                round(requests[pod.url] / window_s, 3),
                round(outputs[pod.url] / window_s, 1),
                round(stayed[pod.url] / window_s, 1),
                round(appended[pod.url] / window_s, 1),
            )
            for pod in fleet
        ],
    )


def merged(parts: list[Flow], _: Any) -> Flow:
    """The sums over all workers; each sees its own requests only."""
    pairs: dict[tuple[str, str], FlowPair] = {}
    pods: dict[str, FlowPod] = {}
    for part in parts:
        for pair in part.pairs:
            known = pairs.setdefault((pair.prefill, pair.decode), FlowPair(pair.prefill, pair.decode, 0.0, 0.0))
            known.requests_per_s = round(known.requests_per_s + pair.requests_per_s, 3)
            known.tokens_per_s = round(known.tokens_per_s + pair.tokens_per_s, 1)
        for pod in part.pods:
            seen = pods.get(pod.url)
            if seen is None:
                pods[pod.url] = pod
                continue
            seen.up = seen.up or pod.up
            seen.in_flight += pod.in_flight
            seen.load_tokens += pod.load_tokens
            seen.requests_per_s = round(seen.requests_per_s + pod.requests_per_s, 3)
            for name in ("output_tokens_per_s", "stayed_tokens_per_s", "appended_tokens_per_s"):
                setattr(seen, name, round(getattr(seen, name) + getattr(pod, name), 1))
    return Flow(max(part.window_s for part in parts), [pairs[key] for key in sorted(pairs)], list(pods.values()))
