"""Several observers as one: who is told of what, and in which order."""

from __future__ import annotations

from gateway.net.records import IdleObserver, RequestRecord
from gateway.ops.observers import Observers


class Told(IdleObserver):
    """Writes down what it is told of requests' ends, under its name."""

    def __init__(self, name: str, heard: list[str]) -> None:
        self._name = name
        self._heard = heard

    def finished(self, record: RequestRecord) -> None:
        self._heard.append(f"{self._name}: {record.request_id} is over")


class ToldAll(Told):
    """One that inherits what it makes of an end, and wants to know of the beginning as well."""

    def started(self, record: RequestRecord) -> None:
        self._heard.append(f"{self._name}: {record.request_id} began")


def test_each_is_told_what_it_wants_to_know_in_the_order_they_were_given() -> None:
    heard: list[str] = []
    several = Observers(Observers(Told("a", heard), IdleObserver()), ToldAll("b", heard), Told("c", heard))
    record = RequestRecord("r", "POST", "/")
    several.started(record)
    several.finished(record)
    assert heard == ["b: r began", "a: r is over", "b: r is over", "c: r is over"]


def test_nobody_may_be_there() -> None:
    several = Observers(IdleObserver())
    several.started(RequestRecord("r", "POST", "/"))
    several.finished(RequestRecord("r", "POST", "/"))
