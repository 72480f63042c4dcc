"""What is shown of the gateway itself: the table in use, the canary, the budgets, what it remembers, its own delay.

Rule of this room: nothing of a single request, nothing of a single pod. Limits, tenants and goals belong here too, or
into a module of their own beside this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from gateway.core.canary import CanaryState
from gateway.core.pods import Role
from gateway.net.parts import Parts
from gateway.ops.metrics.families import Book, Count, Counter, Histogram, Shown, Values
from gateway.ops.metrics.requests import RequestMetrics
from gateway.version import VERSION
from lut.table import TableSet

LAG_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)


class StateMetrics:
    """All of them. `tables` is the set in use, once there is one."""

    def __init__(self, book: Book) -> None:
        self._tables: TableSet | None = None
        self.table_changes = Counter(book, "ppd_table_changes", "Table sets taken into use or refused.", ["result"])
        self.shared_state = Counter(
            book,
            "ppd_shared_state",
            "What was asked of and told to the shared state, by op (ask, write, rate) and result.",
            ["op", "result"],
        )
        self.state_file = Counter(
            book, "ppd_state_file_writes", "Times the conversations were written to state_file.", ["result"]
        )
        self.loop_lag = Histogram(
            book,
            "ppd_event_loop_lag_seconds",
            "How late the event loop came to a timer, four times a second: what a request waits for the others.",
            bounds=LAG_S,
        )
        Shown(
            book,
            "ppd_build_info",
            "1; the gateway's version and the policy that decides.",
            ["version", "policy"],
            read=lambda parts: [((VERSION, parts.policy.name), 1)],
        )
        Shown(
            book,
            "ppd_default_weight",
            "The weights of requests that have none of their own, by weight: ttft, tpot.",
            ["weight"],
            read=_weights,
        )
        Shown(
            book,
            "ppd_pods",
            "Pods by role and state: up, draining, down.",
            ["role", "state"],
            read=_pods,
        )
        Shown(
            book,
            "ppd_conversations",
            "Conversations remembered.",
            read=lambda parts: [((), len(parts.store))],
        )
        Shown(
            book,
            "ppd_retries_total",
            "Further attempts at a request, by result: made, or denied by the retry budget.",
            ["result"],
            read=lambda parts: [(("made",), parts.budget.allowed), (("denied",), parts.budget.denied)],
        )
        self._of_table(book)
        _of_canary(book)

    def table_changed(self, tables: TableSet, taken: bool) -> None:
        self._tables = tables
        self.table_changes.child("taken" if taken else "refused").value += 1

    def _of_table(self, book: Book) -> None:
        def created(parts: Parts) -> Iterator[tuple[Values, float]]:
            if self._tables is not None:
                yield (), datetime.fromisoformat(self._tables.manifest.created).timestamp()

        def simulated(parts: Parts) -> Iterator[tuple[Values, float]]:
            if self._tables is not None:
                yield (), self._tables.manifest.simulated

        def info(parts: Parts) -> Iterator[tuple[Values, float]]:
            if self._tables is not None:
                manifest = self._tables.manifest
                yield (manifest.model, manifest.gpu, manifest.created, manifest.tool), 1

        Shown(
            book,
            "ppd_table_info",
            "1; the table set in use: model and GPU it was measured on, when (its version), and by which tool.",
            ["model", "gpu", "created", "tool"],
            read=info,
        )
        Shown(
            book,
            "ppd_table_created_timestamp_seconds",
            "When the table set in use was made; time() less this is its age.",
            read=created,
        )
        Shown(
            book,
            "ppd_table_simulated",
            "1 when the table set in use was measured on simulated pods.",
            read=simulated,
        )


class KvBytes:
    """Bytes of KV moved and avoided: tokens by what a token is worth, as the pods' own counters tell.

    A pod counts the bytes and the tokens it fetched from others, whichever gateway sent it to them; their ratio is
    the bytes of a token. What is shown are sums of what was added between scrapes, each at the ratio of its time, so
    that they never shrink. Before any pod has told there are none.
    """

    def __init__(self, book: Book, requests: RequestMetrics) -> None:
        self._sources = (
            (requests.moved, Counter(book, "ppd_kv_moved_bytes", _MOVED, ["leg", "arm"])),
            (requests.avoided, Counter(book, "ppd_kv_avoided_bytes", _AVOIDED, ["route", "arm"])),
        )
        self._told: dict[Count, float] = {}
        self._bytes_per_token = 0.0
        Shown(
            book,
            "ppd_kv_bytes_per_token",
            "KV bytes of one token, as the pods' counters of what they fetched tell; not there until they do.",
            read=lambda parts: [((), self._bytes_per_token)] if self._bytes_per_token else [],
        )

    def renew(self, parts: Parts) -> None:
        """A scrape begins."""
        facts = [pod.facts for pod in parts.fleet if pod.facts.fetched_bytes and pod.facts.fetched_tokens]
        if facts:
            self._bytes_per_token = sum(f.fetched_bytes for f in facts) / sum(f.fetched_tokens for f in facts)
        if not self._bytes_per_token:
            return
        for tokens, shown in self._sources:
            for values, count in tokens.children():
                new = count.value - self._told.get(count, 0.0)
                self._told[count] = count.value
                shown.child(*values).value += new * self._bytes_per_token


_MOVED = "Bytes of ppd_kv_moved_tokens_total, by ppd_kv_bytes_per_token."
_AVOIDED = "Bytes of ppd_kv_avoided_tokens_total, by ppd_kv_bytes_per_token."


def _weights(parts: Parts) -> Iterable[tuple[Values, float]]:
    weights = parts.settings.weights.default
    return [(("ttft",), weights.w_ttft), (("tpot",), weights.w_tpot)]


def _pods(parts: Parts) -> Iterable[tuple[Values, float]]:
    counts = {(role.value, state): 0 for role in Role for state in ("up", "draining", "down")}
    for pod in parts.fleet:
        counts[pod.role.value, "down" if not pod.up else "draining" if pod.draining else "up"] += 1
    return counts.items()


def _of_canary(book: Book) -> None:
    Shown(
        book,
        "ppd_canary_state",
        "1 for the canary's state (on, off, stopped by its guard), 0 for the others.",
        ["state"],
        read=lambda parts: [((state.value,), parts.canary.status.state is state) for state in CanaryState],
    )
    Shown(
        book,
        "ppd_canary_percent",
        "Share of the conversations that the policy routes while the canary is on, 0 to 100.",
        read=lambda parts: [((), parts.canary.status.percent)],
    )
    Shown(
        book,
        "ppd_canary_stops_total",
        "Times the guard stopped the canary.",
        read=lambda parts: [((), parts.canary.stops)],
    )
    Shown(
        book,
        "ppd_canary_shadow_decisions_total",
        "Decisions in shadow, by the route that the policy would have taken.",
        ["route"],
        read=lambda parts: [((route,), count) for route, count in parts.canary.shadowed.items()],
    )
