"""Counters, gauges and histograms as plain numbers, and the text that Prometheus reads.

Rule of this room: one event loop touches them, so no child has a lock; counting is an addition, and what it takes to
show a number is paid at the scrape. Every family is a collector of prometheus_client's registry as well, whose own
exposition is what the text here is tested against.

A label takes few values, or the family stops making new children: the rest is counted under "other".
"""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from gateway.net.parts import Parts

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_CHILDREN = 2000

Values = tuple[str, ...]
Read = Callable[[Parts], Iterable[tuple[Values, float]]]
"""What a family shows of the gateway's state at a scrape: label values, in the family's order, and the number."""

_SAMPLES_AT_ONCE = 256


class Count:
    """A number that grows; add to `value`."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0


class Spread:
    """A histogram's numbers. counts: per bucket, not cumulative, the last one above all bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def add(self, counts: list[int], total: float) -> None:
        """Many observations at once, counted by the same bounds."""
        self.counts = list(map(operator.add, self.counts, counts))
        self.total += total


class Book:
    """All families of one process. constant: labels that every sample gets."""

    def __init__(self, constant: Mapping[str, str] | None = None) -> None:
        self.registry = CollectorRegistry()
        self.families: list[Family] = []
        self.constant = dict(constant or {})
        self.parts: Parts | None = None

    def add(self, family: Family) -> None:
        self.families.append(family)
        self.registry.register(family)

    def others(self) -> Iterator[Metric]:
        """What collectors of other makes in the registry have to say."""
        for collector in list(self.registry._collector_to_names):
            if not isinstance(collector, Family):
                yield from collector.collect()

    def label_text(self, labels: Iterable[str], values: Iterable[str]) -> str:
        """`a="1",b="2"`, sorted by name, the constant ones first."""
        pairs = sorted(zip(labels, values, strict=True))
        return ",".join(f'{name}="{_escaped(value)}"' for name, value in (*self.constant.items(), *pairs))


class Family:
    """One metric by its full name. Subclasses say `kind` and give the samples."""

    kind = "gauge"

    def __init__(self, book: Book, name: str, meaning: str, labels: Iterable[str] = ()) -> None:
        self.name = name
        self.meaning = meaning
        self.labels = tuple(labels)
        self.book = book
        book.add(self)

    def text(self) -> Iterator[str]:
        """The exposition, in pieces that take little time each."""
        yield f"# HELP {self.name} {_help(self.meaning)}\n# TYPE {self.name} {self.kind}\n"
        yield from self.pieces()

    def pieces(self) -> Iterator[str]:
        raise NotImplementedError

    def describe(self) -> Iterable[Metric]:
        return [Metric(self.name.removesuffix("_total"), self.meaning, self.kind)]

    def collect(self) -> Iterable[Metric]:
        raise NotImplementedError

    def forget(self, label: str, kept: Callable[[str], bool]) -> None:
        """Drop what a label has values for that are of no use any more."""


Child = TypeVar("Child", Count, Spread)


class _Stored(Family, Generic[Child]):
    """A family with children that others add to."""

    def __init__(self, book: Book, name: str, meaning: str, labels: Iterable[str] = ()) -> None:
        super().__init__(book, name, meaning, labels)
        self._children: dict[Values, Child] = {}
        self._shown: dict[Values, str] = {}
        if not self.labels:
            self.child()

    def child(self, *values: str) -> Child:
        """The one with these label values. Keep it where it is needed often."""
        found = self._children.get(values)
        if found is None:
            if len(values) != len(self.labels):
                raise ValueError(f"{self.name} has the labels {', '.join(self.labels)}")
            if len(self._children) >= MAX_CHILDREN:
                values = ("other",) * len(values)
            found = self._children.setdefault(values, self._new())
            self._shown[values] = self.book.label_text(self.labels, values)
        return found

    def _new(self) -> Child:
        raise NotImplementedError

    def children(self) -> list[tuple[Values, Child]]:
        """All of them, with their label values."""
        return list(self._children.items())

    def forget(self, label: str, kept: Callable[[str], bool]) -> None:
        at = self.labels.index(label)
        for values in [values for values in self._children if not kept(values[at])]:
            del self._children[values], self._shown[values]


class Counter(_Stored[Count]):
    """`name` without `_total`."""

    kind = "counter"

    def __init__(self, book: Book, name: str, meaning: str, labels: Iterable[str] = ()) -> None:
        super().__init__(book, name + "_total", meaning, labels)

    def _new(self) -> Count:
        return Count()

    def pieces(self) -> Iterator[str]:
        for at in range(0, len(self._children), _SAMPLES_AT_ONCE):
            some = list(self._children.items())[at : at + _SAMPLES_AT_ONCE]
            yield "".join([_sample(self.name, self._shown[values], child.value) for values, child in some])

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(self.name, self.meaning, labels=_names(self))
        for values, child in self._children.items():
            family.add_metric(_values(self, values), child.value)
        yield family


class Histogram(_Stored[Spread]):
    """One with a bound below 0 has no `_sum`: it could shrink, and Prometheus would take that for a restart."""

    kind = "histogram"

    def __init__(
        self, book: Book, name: str, meaning: str, labels: Iterable[str] = (), *, bounds: tuple[float, ...]
    ) -> None:
        self.bounds = bounds
        self._tails = [f'le="{bound!r}"}} ' for bound in map(float, bounds)] + ['le="+Inf"} ']
        super().__init__(book, name, meaning, labels)

    def _new(self) -> Spread:
        return Spread(self.bounds)

    def pieces(self) -> Iterator[str]:
        for values, child in list(self._children.items()):
            labels = self._shown[values]
            head = f"{self.name}_bucket{{{labels}," if labels else f"{self.name}_bucket{{"
            lines, count = [], 0
            for tail, more in zip(self._tails, child.counts, strict=True):
                count += more
                lines.append(f"{head}{tail}{count}.0\n")
            lines.append(_sample(f"{self.name}_count", labels, count))
            if self.bounds[0] >= 0:
                lines.append(_sample(f"{self.name}_sum", labels, child.total))
            yield "".join(lines)

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self.name, self.meaning, labels=_names(self))
        for values, child in self._children.items():
            buckets, count = [], 0
            for bound, more in zip((*map(repr, map(float, self.bounds)), "+Inf"), child.counts, strict=True):
                count += more
                buckets.append((bound, float(count)))
            family.add_metric(_values(self, values), buckets, child.total if self.bounds[0] >= 0 else None)
        yield family


class Shown(Family):
    """A gauge, or a counter that somebody else keeps (`_total` at the end of its name), read at the scrape."""

    def __init__(self, book: Book, name: str, meaning: str, labels: Iterable[str] = (), *, read: Read) -> None:
        super().__init__(book, name, meaning, labels)
        self.kind = "counter" if name.endswith("_total") else "gauge"
        self._read = read

    def _samples(self) -> Iterable[tuple[Values, float]]:
        return () if self.book.parts is None else self._read(self.book.parts)

    def pieces(self) -> Iterator[str]:
        label_text, name, labels = self.book.label_text, self.name, self.labels
        yield "".join([_sample(name, label_text(labels, values), value) for values, value in self._samples()])

    def collect(self) -> Iterable[Metric]:
        make = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        family = make(self.name, self.meaning, labels=_names(self))
        for values, value in self._samples():
            family.add_metric(_values(self, values), value)
        yield family


def exposed(metric: Metric) -> tuple[str, str, Values, str]:
    """Name, type, labels and meaning of a metric of another make."""
    labels = tuple(sorted({name for sample in metric.samples for name in sample.labels} - {"le"}))
    return metric.name + ("_total" if metric.type == "counter" else ""), metric.type, labels, metric.documentation


def foreign_text(book: Book, metric: Metric) -> str:
    """Such a metric in the same words as ours."""
    name, kind, _, meaning = exposed(metric)
    lines = [f"# HELP {name} {_help(meaning)}\n# TYPE {name} {kind}\n"]
    for sample in metric.samples:
        if not sample.name.endswith("_created"):
            lines.append(_sample(sample.name, book.label_text(sample.labels, sample.labels.values()), sample.value))
    return "".join(lines)


def _names(family: Family) -> list[str]:
    return [*family.book.constant, *family.labels]


def _values(family: Family, values: Values) -> list[str]:
    return [*family.book.constant.values(), *values]


def _sample(name: str, labels: str, value: float) -> str:
    return f"{name}{{{labels}}} {_number(value)}\n" if labels else f"{name} {_number(value)}\n"


def _number(value: float) -> str:
    text = repr(float(value))
    return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(text, text)


def _help(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _escaped(value: str) -> str:
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return value
