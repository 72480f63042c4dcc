"""Prometheus metrics.

Rule of this room: bounded labels only (routes, outcomes, pods of the configuration); no conversation, user or
request ids.
"""

from __future__ import annotations

import time
from collections import Counter as Counts
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics import MetricWrapperBase

from gateway.core.breakers import BreakerState
from gateway.core.pods import Pod
from gateway.core.residency import Source, Verdict
from gateway.net.exchange import Page
from gateway.net.parts import Parts
from gateway.net.records import RequestRecord
from lut.table import TableSet

_SECONDS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.2, 2.5, 5, 10, 20, 40, 80, 160, 320)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 1, 2.5)


class Metrics:
    """An observer that counts."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self._requests = Counter(
            "ppd_requests",
            "Requests that ended.",
            ["path", "route", "turn", "outcome", "status"],
            registry=registry,
        )
        self._in_flight = Gauge("ppd_requests_in_flight", "Requests being served.", registry=registry)
        self._ttft = Histogram(
            "ppd_time_to_first_token_seconds",
            "From the request's arrival to the pod's first event (unstreamed: to the whole answer).",
            ["route", "turn", "stream"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._tpot = Histogram(
            "ppd_time_per_output_token_seconds",
            "Mean gap between the tokens of one stream after the first.",
            ["route", "turn"],
            buckets=_TOKEN_SECONDS,
            registry=registry,
        )
        self._prefill = Histogram(
            "ppd_prefill_leg_seconds",
            "The prefill leg, from sending to P's answer.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._tokens = Counter(
            "ppd_tokens",
            "Tokens as the pods counted them: prompt, cached (on the answering pod), prefill_cached (on P), output, "
            "readback (read by P from a decode pod).",
            ["route", "turn", "kind"],
            registry=registry,
        )
        self._faults = Counter("ppd_faults", "Faults, seen by the client or not.", ["kind", "pod"], registry=registry)
        self._pod_up = Gauge("ppd_pod_up", "1 when the pod may get traffic.", ["pod", "role"], registry=registry)
        self._pod_in_flight = Gauge("ppd_pod_in_flight", "Requests at the pod.", ["pod", "role"], registry=registry)
        self._pod_load = Gauge(
            "ppd_pod_load_tokens", "Tokens in flight at the pod.", ["pod", "role"], registry=registry
        )
        self._pod_direct = Gauge(
            "ppd_pod_direct",
            "1 when later turns may go straight to the pod, 0 when its self-test speaks against it (see /admin/pods).",
            ["pod"],
            registry=registry,
        )
        self._pod_weight = Gauge(
            "ppd_pod_weight",
            "Below 1 while the pod gets less traffic, being far from its peers.",
            ["pod"],
            registry=registry,
        )
        self._pod_breaker = Gauge(
            "ppd_pod_breaker",
            "1 for the state of the pod's breaker (closed, open, half_open), 0 for the others.",
            ["pod", "state"],
            registry=registry,
        )
        self._handovers = Gauge(
            "ppd_handovers_waiting",
            "Prompts whose KV waits on the prefill pod for a taker.",
            ["pod"],
            registry=registry,
        )
        self._handover_age = Gauge(
            "ppd_handover_oldest_seconds", "For how long the oldest of them has waited.", ["pod"], registry=registry
        )
        self._stranded = Counter(
            "ppd_handovers_stranded",
            "Prompts whose KV nobody took before the prefill pod's lease ended (lease_s).",
            ["pod"],
            registry=registry,
        )
        self._stranded_told: Counts[str] = Counts()
        self._retries = Counter(
            "ppd_retries",
            "Further attempts at a request, by result: made, or denied by the retry budget.",
            ["result"],
            registry=registry,
        )
        self._retries_told = {"made": 0, "denied": 0}
        self._pod_restarts = Counter(
            "ppd_pod_restarts", "Times the pod's process was found to be another one.", ["pod"], registry=registry
        )
        self._decisions = Counter(
            "ppd_decisions", "Requests of turn 2 and later by the route the policy chose.", ["route"], registry=registry
        )
        self._table_time = Gauge(
            "ppd_table_created_timestamp_seconds", "When the table set in use was made.", registry=registry
        )
        self._table_simulated = Gauge(
            "ppd_table_simulated", "1 when the table set in use was measured on simulated pods.", registry=registry
        )
        self._table_changes = Counter(
            "ppd_table_changes", "Table sets taken into use or refused.", ["result"], registry=registry
        )
        self._residency_turns = Counter(
            "ppd_residency_predictions",
            "Predictions of cached tokens by verdict: exact (within a block), over, under; source: events, ledger.",
            ["pod", "source", "verdict"],
            registry=registry,
        )
        self._residency_error = Counter(
            "ppd_residency_error_tokens",
            "Sum of |predicted - actual| cached tokens.",
            ["pod", "source"],
            registry=registry,
        )
        self._kv_blocks = Gauge(
            "ppd_kv_resident_blocks", "Blocks that the pod's KV events say are cached.", ["pod"], registry=registry
        )
        self._kv_complete = Gauge(
            "ppd_kv_view_complete",
            "1 when every KV event since the pod's start was heard (0: the ledger answers for what is unknown).",
            ["pod"],
            registry=registry,
        )
        self._kv_lag = Gauge(
            "ppd_kv_event_age_seconds",
            "Time since the pod published its last KV events, by both clocks.",
            ["pod"],
            registry=registry,
        )
        self._kv_batches = Gauge("ppd_kv_event_batches", "Batches of KV events applied.", ["pod"], registry=registry)
        self._kv_lost = Gauge(
            "ppd_kv_event_gaps_lost", "Gaps in the KV events that no replay filled.", ["pod"], registry=registry
        )
        self._ledger_room = Gauge(
            "ppd_ledger_room_tokens", "Cache room the ledger has learned for the pod.", ["pod"], registry=registry
        )
        self._shared_state = Counter(
            "ppd_shared_state",
            "What was asked of and told to the shared state, by op (ask, write, rate) and result.",
            ["op", "result"],
            registry=registry,
        )
        self._state_file = Counter(
            "ppd_state_file_writes",
            "Times the conversations were written to state_file.",
            ["result"],
            registry=registry,
        )
        self._conversations = Gauge("ppd_conversations", "Conversations remembered.", registry=registry)
        # Looking a child up by its labels costs more than counting; these few are kept.
        self._requests_of = lru_cache(4096)(lambda *labels: self._requests.labels(*map(str, labels)))
        self._ttft_of = lru_cache(256)(lambda route, turn, stream: self._ttft.labels(route, turn, str(int(stream))))
        self._tpot_of = lru_cache(256)(lambda route, turn: self._tpot.labels(route, turn))
        self._tokens_of = lru_cache(256)(lambda route, turn, kind: self._tokens.labels(route, turn, kind))

    def described(self) -> list[tuple[str, str, tuple[str, ...], str]]:
        """(name, type, labels, meaning) of every metric, as exposed."""
        rows = []
        for metric in (value for value in vars(self).values() if isinstance(value, MetricWrapperBase)):
            described = next(iter(metric.describe()))
            name = described.name + ("_total" if described.type == "counter" else "")
            rows.append((name, described.type, tuple(metric._labelnames), described.documentation))
        return rows

    def table_changed(self, tables: TableSet, taken: bool) -> None:
        """A table set was taken into use, or a new one refused while `tables` stays."""
        self._table_changes.labels("taken" if taken else "refused").inc()
        self._table_time.set(datetime.fromisoformat(tables.manifest.created).timestamp())
        self._table_simulated.set(tables.manifest.simulated)

    def shared_state(self, op: str, result: str) -> None:
        """Something was asked of the shared state, or told to it."""
        self._shared_state.labels(op, result).inc()

    def state_file(self, written: bool) -> None:
        """The state file was written, or could not be."""
        self._state_file.labels("ok" if written else "failed").inc()

    def started(self, record: RequestRecord) -> None:
        self._in_flight.inc()

    def finished(self, record: RequestRecord) -> None:
        self._in_flight.dec()
        route, turn = record.route or "none", _turn(record)
        self._requests_of(record.path, route, turn, record.outcome, record.status).inc()
        if turn == "2+" and record.route is not None:
            self._decisions.labels(route).inc()
        if record.ttft_s is not None:
            self._ttft_of(route, turn, record.stream).observe(record.ttft_s)
        if record.tpot_s is not None:
            self._tpot_of(route, turn).observe(record.tpot_s)
        if record.prefill_s is not None:
            self._prefill.observe(record.prefill_s)
        counted = {
            "prompt": record.prompt_tokens,
            "cached": record.cached_tokens,
            "prefill_cached": record.prefill_cached_tokens,
            "output": record.output_tokens,
            "readback": record.readback_tokens,
        }
        for kind, tokens in counted.items():
            if tokens:
                self._tokens_of(route, turn, kind).inc(tokens)

        self._compared(record.answering, record.residency)
        self._compared(record.prefill, record.prefill_residency)

    def _compared(self, pod: str | None, verdicts: Mapping[Source, Verdict]) -> None:
        for source, verdict in verdicts.items():
            self._residency_turns.labels(pod, source, verdict.word).inc()
            self._residency_error.labels(pod, source).inc(abs(verdict.error_tokens))

    def fault(self, kind: str, pod: str | None, request_id: str, detail: str) -> None:
        self._faults.labels(kind, pod or "none").inc()

    def pod_changed(self, pod: str, role: str, up: bool, detail: str) -> None:
        """Read from the fleet at scrape time."""

    def pod_restarted(self, pod: str, role: str, detail: str) -> None:
        self._pod_restarts.labels(pod).inc()

    def pod_tested(self, pod: str, role: str, outcome: str, direct: bool, detail: str) -> None:
        """Read from the fleet at scrape time."""

    def pod_breaker(self, pod: str, role: str, state: str, detail: str) -> None:
        """Read from the fleet at scrape time."""

    def page(self, parts: Parts) -> Page:
        """The exposition, with the gauges of this moment."""
        for pod in parts.fleet:
            self._pod_up.labels(pod.url, pod.role).set(pod.up)
            self._pod_in_flight.labels(pod.url, pod.role).set(pod.in_flight)
            self._pod_load.labels(pod.url, pod.role).set(pod.load_tokens)
            self._pod_restarts.labels(pod.url)
            self._pod_weight.labels(pod.url).set(pod.weight)
            for state in BreakerState:
                self._pod_breaker.labels(pod.url, state).set(pod.breaker.state is state)
            if pod.role != "prefill":
                self._pod_direct.labels(pod.url).set(pod.direct)
            else:
                self._waiting(pod, parts)
            self._residency(pod, parts)
        for result, count in (("made", parts.budget.allowed), ("denied", parts.budget.denied)):
            self._retries.labels(result).inc(count - self._retries_told[result])
            self._retries_told[result] = count
        self._conversations.set(len(parts.store))
        return Page(CONTENT_TYPE_LATEST, generate_latest(self.registry))

    def _waiting(self, pod: Pod, parts: Parts) -> None:
        now = time.monotonic()
        parts.handovers.expire(now)
        count, age_s = parts.handovers.of(pod.url, now)
        self._handovers.labels(pod.url).set(count)
        self._handover_age.labels(pod.url).set(age_s)
        stranded = parts.handovers.stranded[pod.url]
        self._stranded.labels(pod.url).inc(stranded - self._stranded_told[pod.url])
        self._stranded_told[pod.url] = stranded

    def _residency(self, pod: Pod, parts: Parts) -> None:
        cache = parts.residency.cache(pod)
        if cache.ghost.room_tokens is not None:
            self._ledger_room.labels(pod.url).set(cache.ghost.room_tokens)
        views = [view for view in cache.views.values() if view.heard]
        if views:
            self._kv_blocks.labels(pod.url).set(sum(view.resident_blocks for view in views))
            self._kv_complete.labels(pod.url).set(all(view.complete for view in views))
            self._kv_lag.labels(pod.url).set(time.time() - max(view.last_event_s for view in views))
            self._kv_batches.labels(pod.url).set(sum(view.batches for view in views))
            self._kv_lost.labels(pod.url).set(sum(view.lost for view in views))


def _turn(record: RequestRecord) -> str:
    if record.turn is None:
        return "none"
    return "1" if record.turn == 1 else "2+"
