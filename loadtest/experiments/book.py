"""Rows put side by side: by configuration, by seed, by rate.

Rule of this room: a configuration is a node assignment with a policy; replicas (`nR`) have no policy worth naming.
Nothing is averaged over configurations or workloads here.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from loadtest.experiments.assignments import parse
from loadtest.experiments.rows import Row
from loadtest.experiments.statistics import NOTHING, Interval, interval, paired


class Configuration(NamedTuple):
    """weights: as a label says, "" for the default."""

    assignment: str
    policy: str
    weights: str = ""

    def __str__(self) -> str:
        if self.only_replicas:
            return self.assignment
        return f"{self.assignment} {self.policy}" + (f" {self.weights}" if self.weights else "")

    @property
    def only_replicas(self) -> bool:
        cluster = parse(self.assignment)
        return cluster.replicas == cluster.num_pods


class Place(NamedTuple):
    """Where configurations are compared: the same traffic but for the seed."""

    workload: str
    rate: float | None

    def __str__(self) -> str:
        return self.workload if self.rate is None else f"{self.workload} at {self.rate:g}/s"


LOWER_IS_BETTER = {
    "later.ttft_ok_ms": "turn 2+ TTFT, mean",
    "later.ttft_p50_ms": "turn 2+ TTFT, P50",
    "later.ttft_p99_ms": "turn 2+ TTFT, P99",
    "first.ttft_p50_ms": "turn 1 TTFT, P50",
    "all.ttft_p99_ms": "TTFT, P99",
    "all.tpot_ok_ms": "TPOT, mean",
    "later.tpot_ok_ms": "turn 2+ TPOT, mean",
    "all.tpot_p99_ms": "TPOT, P99",
    "all.e2e_mean_ms": "whole turn, mean",
    "all.e2e_p99_ms": "whole turn, P99",
}
HIGHER_IS_BETTER = {
    "tokens_per_s": "tokens/s",
    "all.success": "success",
    "all.goodput": "goodput under the SLO",
}
TIE = 1e-6
NAMES = {**LOWER_IS_BETTER, **HIGHER_IS_BETTER}


def value_of(row: Row, metric: str) -> float | None:
    """`later.ttft_p50_ms` of a row."""
    found: object = row
    for name in metric.split("."):
        found = getattr(found, name)
    return found if found is None or isinstance(found, float) else float(str(found))


class Book:
    """All rows of a sweep."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows: dict[Place, dict[Configuration, dict[str, Row]]] = defaultdict(lambda: defaultdict(dict))
        for row in rows:
            configuration = Configuration(row.assignment, row.policy, row.label("weights"))
            if configuration.only_replicas:
                configuration = configuration._replace(policy="", weights="")
            self._rows[Place(row.workload, row.rate)][configuration][row.seed] = row

    @property
    def places(self) -> list[Place]:
        return list(self._rows)

    @property
    def workloads(self) -> list[str]:
        return list(dict.fromkeys(place.workload for place in self._rows))

    def rates(self, workload: str) -> list[float]:
        return sorted({place.rate for place in self._rows if place.workload == workload and place.rate is not None})

    def configurations(self, place: Place | None = None) -> list[Configuration]:
        places = [place] if place is not None else self.places
        return list(dict.fromkeys(each for where in places for each in self._rows[where]))

    def rows(self, place: Place, configuration: Configuration) -> list[Row]:
        """One per seed."""
        return list(self._rows[place].get(configuration, {}).values())

    def seeds(self) -> list[str]:
        return sorted({seed for place in self._rows.values() for rows in place.values() for seed in rows})

    def value(self, place: Place, configuration: Configuration, metric: str) -> Interval:
        rows = self.rows(place, configuration)
        return interval([value_of(row, metric) for row in rows]) if rows else NOTHING

    def difference(
        self, place: Place, ours: Configuration, theirs: Configuration, metric: str, *, relative: bool = True
    ) -> Interval:
        """ours against theirs, seed by seed."""
        one, other = self._rows[place].get(ours, {}), self._rows[place].get(theirs, {})
        return paired(
            {seed: value_of(row, metric) for seed, row in one.items()},
            {seed: value_of(row, metric) for seed, row in other.items()},
            relative=relative,
        )

    def best(self, place: Place, metric: str, among: Iterable[Configuration] | None = None) -> Configuration | None:
        """The first of `winners`; None where nobody has a value."""
        return next(iter(self.winners(place, metric, among)), None)

    def winners(self, place: Place, metric: str, among: Iterable[Configuration] | None = None) -> list[Configuration]:
        """Who is best by the mean over seeds, and who ties with that to rounding."""
        sign = -1.0 if metric in HIGHER_IS_BETTER else 1.0
        values = {
            each: sign * self.value(place, each, metric).mean
            for each in (self.configurations(place) if among is None else among)
        }
        known = {each: value for each, value in values.items() if not math.isnan(value)}
        least = min(known.values(), default=0.0)
        return [each for each, value in known.items() if value <= least + TIE * abs(least)]
