"""What is shown of pods.

Rule of this room: read from the fleet at the scrape, nothing kept; a pod that has left takes its series with it. What
is counted of pods as it happens (faults, restarts) is forgotten once the pod is gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from gateway.core.breakers import BreakerState
from gateway.core.pods import Pod, Role
from gateway.core.views import RankView
from gateway.net.parts import Parts
from gateway.ops.metrics.families import Book, Counter, Shown, Values

NO_POD = "none"


class PodMetrics:
    """All families of pods."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._of_load()
        self._of_health()
        self._of_handovers()
        self._of_residency()
        self._of_events()
        self.pair_probes = Counter(
            book, "ppd_pair_probes", "Hand-overs tried between two pods after a restart of either.", ["result"]
        )
        self.faults = Counter(book, "ppd_faults", "Faults, seen by the client or not.", ["kind", "pod"])
        self.restarts = Counter(
            book, "ppd_pod_restarts", "Times the pod's process was found to be another one.", ["pod"]
        )

    def renew(self, parts: Parts) -> None:
        """A scrape begins."""
        urls = {pod.url for pod in parts.fleet} | {NO_POD}
        for family in (self.faults, self.restarts):
            family.forget("pod", urls.__contains__)
        for pod in parts.fleet:
            self.restarts.child(pod.url)
        parts.handovers.expire(time.monotonic())

    def _per_pod(self, name: str, meaning: str, value: Callable[[Pod], float], *, role: bool = True) -> None:
        def read(parts: Parts) -> Iterator[tuple[Values, float]]:
            for pod in parts.fleet:
                yield ((pod.url, pod.role.value) if role else (pod.url,)), value(pod)

        Shown(self._book, name, meaning, ["pod", "role"] if role else ["pod"], read=read)

    def _of_load(self) -> None:
        self._per_pod("ppd_pod_in_flight", "Requests of this gateway at the pod.", lambda pod: pod.in_flight)
        self._per_pod("ppd_pod_load_tokens", "Tokens in flight at the pod.", lambda pod: pod.load_tokens)
        self._per_pod(
            "ppd_pod_running", "Requests that the pod's scheduler runs, by its word.", lambda pod: pod.facts.running
        )
        self._per_pod(
            "ppd_pod_waiting", "Requests that wait in the pod's scheduler, by its word.", lambda pod: pod.facts.waiting
        )
        self._per_pod(
            "ppd_pod_kv_usage_ratio", "Share of the pod's KV cache in use, 0 to 1.", lambda pod: pod.facts.kv_usage
        )

    def _of_health(self) -> None:
        self._per_pod("ppd_pod_up", "1 when the pod may get traffic.", lambda pod: pod.up)
        self._per_pod("ppd_pod_draining", "1 while the pod is being emptied.", lambda pod: pod.draining)
        self._per_pod(
            "ppd_pod_weight",
            "Below 1 while the pod gets less traffic, being far from its peers.",
            lambda pod: pod.weight,
            role=False,
        )
        Shown(
            self._book,
            "ppd_pod_breaker",
            "1 for the state of the pod's breaker (closed, open, half_open), 0 for the others.",
            ["pod", "state"],
            read=lambda parts: (
                ((pod.url, state.value), pod.breaker.state is state) for pod in parts.fleet for state in BreakerState
            ),
        )
        Shown(
            self._book,
            "ppd_pod_direct",
            "1 when later turns may go straight to the pod, 0 when its self-test speaks against it (see /admin/pods).",
            ["pod"],
            read=lambda parts: (((pod.url,), pod.direct) for pod in parts.fleet if pod.role is not Role.PREFILL),
        )

    def _of_handovers(self) -> None:
        def waiting(parts: Parts, at: int) -> Iterator[tuple[Values, float]]:
            now = time.monotonic()
            for pod in parts.fleet.of(Role.PREFILL):
                yield (pod.url,), parts.handovers.of(pod.url, now)[at]

        Shown(
            self._book,
            "ppd_handovers_waiting",
            "Prompts whose KV waits on the prefill pod for a taker.",
            ["pod"],
            read=lambda parts: waiting(parts, 0),
        )
        Shown(
            self._book,
            "ppd_handover_oldest_seconds",
            "For how long the oldest of them has waited.",
            ["pod"],
            read=lambda parts: waiting(parts, 1),
        )
        Shown(
            self._book,
            "ppd_handovers_stranded_total",
            "Prompts whose KV nobody took before the prefill pod's lease ended (lease_s).",
            ["pod"],
            read=lambda parts: (
                ((pod.url,), parts.handovers.stranded[pod.url]) for pod in parts.fleet.of(Role.PREFILL)
            ),
        )

        Shown(
            self._book,
            "ppd_pairs_held",
            "Pairs of a prefill and a decode pod that get no hand-over until a probe between them works.",
            read=lambda parts: [((), len(parts.fleet.pairs))],
        )

    def _of_residency(self) -> None:
        def verdicts(parts: Parts) -> Iterator[tuple[Values, float]]:
            for pod in parts.fleet:
                for source, seen in parts.residency.cache(pod).accuracy.items():
                    for word, count in (("exact", seen.exact), ("over", seen.over), ("under", seen.under)):
                        if count:
                            yield (pod.url, source.value, word), count

        def errors(parts: Parts) -> Iterator[tuple[Values, float]]:
            for pod in parts.fleet:
                for source, seen in parts.residency.cache(pod).accuracy.items():
                    if seen.turns:
                        yield (pod.url, source.value), seen.error_tokens

        def tokens(parts: Parts) -> Iterator[tuple[Values, float]]:
            for pod in parts.fleet:
                for source, seen in parts.residency.cache(pod).accuracy.items():
                    if seen.turns:
                        yield (pod.url, source.value, "predicted"), seen.predicted_tokens
                        yield (pod.url, source.value, "actual"), seen.cached_tokens

        def room(parts: Parts) -> Iterator[tuple[Values, float]]:
            for pod in parts.fleet:
                tokens = parts.residency.cache(pod).ghost.room_tokens
                if tokens is not None:
                    yield (pod.url,), tokens

        Shown(
            self._book,
            "ppd_residency_predictions_total",
            "Predictions of cached tokens by verdict: exact (within a block), over, under; source: events, ledger.",
            ["pod", "source", "verdict"],
            read=verdicts,
        )
        Shown(
            self._book,
            "ppd_residency_error_tokens_total",
            "Sum of |predicted - actual| cached tokens.",
            ["pod", "source"],
            read=errors,
        )
        Shown(
            self._book,
            "ppd_residency_tokens_total",
            "Cached tokens of the turns that were compared, by kind: predicted, actual.",
            ["pod", "source", "kind"],
            read=tokens,
        )
        Shown(
            self._book,
            "ppd_ledger_room_tokens",
            "Cache room the ledger has learned for the pod.",
            ["pod"],
            read=room,
        )

    def _of_events(self) -> None:
        rows: list[tuple[str, str, Callable[[list[RankView]], float]]] = [
            (
                "ppd_kv_resident_blocks",
                "Blocks that the pod's KV events say are cached.",
                lambda views: sum(view.resident_blocks for view in views),
            ),
            (
                "ppd_kv_view_complete",
                "1 when every KV event since the pod's start was heard (0: the ledger answers for what is unknown).",
                lambda views: all(view.complete for view in views),
            ),
            (
                "ppd_kv_event_age_seconds",
                "Time since the pod published its last KV events, by both clocks.",
                lambda views: time.time() - max(view.last_event_s for view in views),
            ),
            (
                "ppd_kv_event_lag_seconds",
                "From the pod's publishing of its last KV events to their being known here, by both clocks.",
                lambda views: max(view.lag_s for view in views),
            ),
            (
                "ppd_kv_event_batches",
                "Batches of KV events applied.",
                lambda views: sum(view.batches for view in views),
            ),
            (
                "ppd_kv_event_gaps_lost",
                "Gaps in the KV events that no replay filled.",
                lambda views: sum(view.lost for view in views),
            ),
        ]
        for name, meaning, value in rows:
            Shown(self._book, name, meaning, ["pod"], read=_of_views(value))


def _of_views(value: Callable[[list[RankView]], float]) -> Callable[[Parts], Iterable[tuple[Values, float]]]:
    def read(parts: Parts) -> Iterator[tuple[Values, float]]:
        for pod in parts.fleet:
            views = [view for view in parts.residency.cache(pod).views.values() if view.heard]
            if views:
                yield (pod.url,), value(views)

    return read
