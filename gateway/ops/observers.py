"""Several observers as one.

Rule of this room: everybody is told, in the order they were given.
"""

from __future__ import annotations

from gateway.net.records import IdleObserver, Observer, RequestRecord


class Observers:
    """Tells several observers. Those of another `Observers` are told directly, and nobody of a request who does nothing
    then."""

    def __init__(self, *observers: Observer) -> None:
        self._observers: list[Observer] = []
        for observer in observers:
            self._observers += observer._observers if isinstance(observer, Observers) else [observer]
        self._started = [each.started for each in self._observers if type(each).started is not IdleObserver.started]
        self._finished = [each.finished for each in self._observers if type(each).finished is not IdleObserver.finished]

    def started(self, record: RequestRecord) -> None:
        for started in self._started:
            started(record)

    def finished(self, record: RequestRecord) -> None:
        for finished in self._finished:
            finished(record)

    def fault(self, kind: str, pod: str | None, request_id: str, detail: str) -> None:
        for observer in self._observers:
            observer.fault(kind, pod, request_id, detail)

    def pod_changed(self, pod: str, role: str, up: bool, detail: str) -> None:
        for observer in self._observers:
            observer.pod_changed(pod, role, up, detail)

    def pod_restarted(self, pod: str, role: str, detail: str) -> None:
        for observer in self._observers:
            observer.pod_restarted(pod, role, detail)

    def pod_tested(self, pod: str, role: str, outcome: str, direct: bool, detail: str) -> None:
        for observer in self._observers:
            observer.pod_tested(pod, role, outcome, direct, detail)

    def pod_models(self, pod: str, role: str, models: tuple[str, ...]) -> None:
        for observer in self._observers:
            observer.pod_models(pod, role, models)

    def pair_probed(self, prefill: str, decode: str, works: bool, detail: str) -> None:
        for observer in self._observers:
            observer.pair_probed(prefill, decode, works, detail)

    def pod_breaker(self, pod: str, role: str, state: str, detail: str) -> None:
        for observer in self._observers:
            observer.pod_breaker(pod, role, state, detail)

    def pod_added(self, pod: str, role: str, source: str) -> None:
        for observer in self._observers:
            observer.pod_added(pod, role, source)

    def pod_removed(self, pod: str, role: str, detail: str) -> None:
        for observer in self._observers:
            observer.pod_removed(pod, role, detail)
