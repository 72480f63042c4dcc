"""Prometheus metrics: an observer that counts, and the page that shows it.

    families    counters, gauges, histograms as plain numbers; their text
    requests    what is counted of requests          pods    what is shown of pods
    state       the gateway itself: table, canary, budgets, KV bytes
    admission   who waits and who is refused, tenants, targets
    drift       what is seen against the table's word, the pods' paces
    loop        how late the event loop is           turns   long work in small steps

Rule of this room: bounded labels only (routes, outcomes, reason classes, pods of the fleet, models they serve); no
conversation, user or request ids. The page is made piece by piece, and requests are served between two pieces.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import ProcessCollector

from gateway.net.exchange import Page
from gateway.net.parts import Parts
from gateway.net.records import RequestRecord
from gateway.ops.metrics.admission import AdmissionMetrics
from gateway.ops.metrics.drift import DriftMetrics
from gateway.ops.metrics.families import CONTENT_TYPE, Book, Histogram, exposed, foreign_text
from gateway.ops.metrics.loop import LoopLag
from gateway.ops.metrics.pods import NO_POD, PodMetrics
from gateway.ops.metrics.requests import RequestMetrics
from gateway.ops.metrics.state import KvBytes, StateMetrics
from gateway.ops.metrics.turns import joined
from lut.table import TableSet


class Metrics:
    """An observer that counts. worker: its number, where there are several; every sample then has it as a label."""

    def __init__(self, worker: int | None = None) -> None:
        self._book = Book({} if worker is None else {"worker": str(worker)})
        self.registry = self._book.registry
        self._requests = RequestMetrics(self._book)
        self._pods = PodMetrics(self._book)
        self._state = StateMetrics(self._book)
        self._kv_bytes = KvBytes(self._book, self._requests)
        self._admission = AdmissionMetrics(self._book)
        DriftMetrics(self._book)
        ProcessCollector(registry=self.registry)
        self.loop_lag = LoopLag(self._state.loop_lag.child())

    def described(self) -> list[tuple[str, str, tuple[str, ...], str]]:
        """(name, type, labels, meaning) of every metric, as exposed."""
        ours = [(family.name, family.kind, family.labels, family.meaning) for family in self._book.families]
        return ours + [exposed(metric) for metric in self._book.others()]

    def bounds(self) -> dict[str, tuple[float, ...]]:
        """The upper bounds of every histogram's buckets, by name."""
        return {family.name: family.bounds for family in self._book.families if isinstance(family, Histogram)}

    def table_changed(self, tables: TableSet, taken: bool) -> None:
        """A table set was taken into use, or a new one refused while `tables` stays."""
        self._state.table_changed(tables, taken)

    def shared_state(self, op: str, result: str) -> None:
        """Something was asked of the shared state, or told to it."""
        self._state.shared_state.child(op, result).value += 1

    def state_file(self, written: bool) -> None:
        """The state file was written, or could not be."""
        self._state.state_file.child("ok" if written else "failed").value += 1

    def started(self, record: RequestRecord) -> None:
        self._requests.started(record)

    def finished(self, record: RequestRecord) -> None:
        self._requests.finished(record)
        self._admission.finished(record)

    def fault(self, kind: str, pod: str | None, request_id: str, detail: str) -> None:
        self._pods.faults.child(kind, pod or NO_POD).value += 1

    def pod_changed(self, pod: str, role: str, up: bool, detail: str) -> None:
        """Read from the fleet at scrape time."""

    def pod_restarted(self, pod: str, role: str, detail: str) -> None:
        self._pods.restarts.child(pod).value += 1

    def pod_tested(self, pod: str, role: str, outcome: str, direct: bool, detail: str) -> None:
        """Read from the fleet at scrape time."""

    def pod_models(self, pod: str, role: str, models: tuple[str, ...]) -> None:
        """Nothing counts it."""

    def pair_probed(self, prefill: str, decode: str, works: bool, detail: str) -> None:
        self._pods.pair_probes.child("worked" if works else "failed").value += 1

    def pod_breaker(self, pod: str, role: str, state: str, detail: str) -> None:
        """Read from the fleet at scrape time."""

    def pod_added(self, pod: str, role: str, source: str) -> None:
        """Read from the fleet at scrape time."""

    def pod_removed(self, pod: str, role: str, detail: str) -> None:
        """Its series end with the next scrape."""

    def page(self, parts: Parts) -> Page:
        """The exposition of this moment, at once."""
        return Page(CONTENT_TYPE, "".join(self._pieces(parts)).encode())

    async def served(self, parts: Parts) -> Page:
        """The exposition, made while requests are served."""
        return Page(CONTENT_TYPE, await joined(piece.encode() for piece in self._pieces(parts)))

    def _pieces(self, parts: Parts) -> Iterator[str]:
        self._book.parts = parts
        self._pods.renew(parts)
        self._kv_bytes.renew(parts)
        for family in self._book.families:
            yield from family.text()
        for metric in self._book.others():
            yield foreign_text(self._book, metric)
