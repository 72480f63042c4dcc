"""Targets per class, and a controller that moves the weights until they are met.

Rule of this room: one step at a time, then a whole window of new measurements before the next; what was stepped back
too early is tried again later and later. The controller knows times and weights, no pods and no policy.
"""

from __future__ import annotations

import enum
import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from gateway.core.admission.classes import ServiceClass
from gateway.core.weights import Weights

_RATIO = 1.08
_LOWEST_S = 0.0005
_BUCKETS = 190
_BOUNDS_S = tuple(_LOWEST_S * _RATIO**n for n in range(_BUCKETS))
"""0.5 ms to 1000 s; a quantile is off by 4 % at most."""
_SLICES = 12


class Targets(NamedTuple):
    """99 % of a class's requests are to be within these; None is no target."""

    ttft_p99_ms: float | None = None
    tpot_p99_ms: float | None = None
    e2e_p99_s: float | None = None

    @property
    def any(self) -> bool:
        return any(each is not None for each in self)

    @property
    def deadline_s(self) -> float:
        """For a first token, from its arrival; inf where there is none."""
        return math.inf if self.ttft_p99_ms is None else self.ttft_p99_ms / 1000


@dataclass(frozen=True, slots=True)
class SloSettings:
    """targets: per class. window_s: of what is looked at, and the least time between two steps. min_samples: before a
    quantile counts. max_factor: the ratio w_ttft/w_tpot moves by so much at most, either way. steps: from the middle to
    either end."""

    targets: Mapping[ServiceClass, Targets] = field(default_factory=dict)
    window_s: float = 30.0
    min_samples: int = 50
    max_factor: float = 16.0
    steps: int = 4

    @property
    def on(self) -> bool:
        return any(targets.any for targets in self.targets.values())


class Window:
    """The times of the last `window_s`, in buckets and slices; constant size. Fails count as endless."""

    def __init__(self, window_s: float) -> None:
        self._slice_s = window_s / _SLICES
        self._counts = [[0] * (_BUCKETS + 1) for _ in range(_SLICES)]
        self._sums = [0] * _SLICES
        self._slot = -1

    def add(self, value_s: float, now_s: float) -> None:
        self._advance(now_s)
        index = self._slot % _SLICES
        self._counts[index][bisect_left(_BOUNDS_S, value_s)] += 1
        self._sums[index] += 1

    def count(self, now_s: float) -> int:
        self._advance(now_s)
        return sum(self._sums)

    def quantile(self, share: float, now_s: float) -> float:
        """The least bound that `share` of them do not exceed, inf when that is one that failed, NaN of nothing."""
        total = self.count(now_s)
        if total == 0:
            return math.nan
        rank, seen = math.ceil(share * total - 1e-9), 0
        for index in range(_BUCKETS):
            seen += sum(counts[index] for counts in self._counts)
            if seen >= rank:
                return _BOUNDS_S[index] / math.sqrt(_RATIO)
        return math.inf

    def clear(self) -> None:
        for index in range(_SLICES):
            self._empty(index)

    def _empty(self, index: int) -> None:
        if self._sums[index]:
            self._counts[index] = [0] * (_BUCKETS + 1)
            self._sums[index] = 0

    def _advance(self, now_s: float) -> None:
        slot = int(now_s / self._slice_s)
        if self._slot >= 0:
            for passed in range(self._slot + 1, min(slot, self._slot + _SLICES) + 1):
                self._empty(passed % _SLICES)
        self._slot = max(self._slot, slot)


class Standing(NamedTuple):
    """How one target stands. measured: P99 in the target's unit, NaN while there are too few samples; pressure:
    measured by target, above 1 it is violated."""

    service: ServiceClass
    metric: str
    target: float
    measured: float
    samples: int

    @property
    def pressure(self) -> float:
        return self.measured / self.target

    @property
    def violated(self) -> bool:
        return self.pressure > 1.0


class Leaning(enum.StrEnum):
    """Which way a violated target pulls."""

    TTFT = "ttft"
    TPOT = "tpot"


HYSTERESIS = 1.05
"""A target counts as violated for a step above this pressure, and as recovered below 1 / this."""
EASE = 0.8
"""Only below this pressure the weights go back towards what was configured."""
EASE_WINDOWS = 10
"""And only so many windows after it was violated, or after the last step back."""
_MAX_PATIENCE = 64


@dataclass
class SloController:
    """Call `seen` for each request that is over and `tick` now and then; `shifted` gives the weights to use.

    step: -steps (all for TPOT) … steps (all for TTFT), 0 as configured. changes: steps so far. why: for people.
    """

    settings: SloSettings
    step: int = 0
    changes: int = 0
    why: str = "as configured"

    def __post_init__(self) -> None:
        self._windows: dict[tuple[ServiceClass, str], Window] = {}
        self._targets: dict[tuple[ServiceClass, str], float] = {}
        self._ttft: dict[ServiceClass, Window] = {}
        self._looked_s = -math.inf
        self._stepped_s = -math.inf
        self._begin()

    def reconfigure(self, settings: SloSettings) -> None:
        """Other targets. The step stays, where there are any, and moves on from there; what was measured stays where
        it means the same. How long to wait before a step back is learned anew."""
        same = settings.window_s == self.settings.window_s
        windows, ttft = (self._windows, self._ttft) if same else ({}, {})
        self.settings = settings
        self._begin(windows, ttft)
        if not settings.on:
            self.step, self.why = 0, "as configured"

    def _begin(
        self,
        windows: Mapping[tuple[ServiceClass, str], Window] = MappingProxyType({}),
        ttft: Mapping[ServiceClass, Window] = MappingProxyType({}),
    ) -> None:
        """Look at the targets of the settings, in these windows where they are known."""
        window_s = self.settings.window_s
        self._targets = {
            (service, metric): target
            for service, targets in self.settings.targets.items()
            for metric, target in zip(METRICS, targets, strict=True)
            if target is not None
        }
        self._windows = {key: windows.get(key) or Window(window_s) for key in self._targets}
        self._ttft = {service: ttft.get(service) or Window(window_s) for service in self.settings.targets}
        self._eased: Leaning | None = None
        self._patience = 1
        self._ease_at_s = -math.inf

    def seen(
        self,
        service: ServiceClass,
        now_s: float,
        *,
        ttft_s: float | None,
        tpot_s: float | None,
        total_s: float | None,
    ) -> None:
        """A request is over. inf: it failed. None: there is no such time (an answer of one token has no TPOT)."""
        for metric, value in zip(METRICS, (ttft_s, tpot_s, total_s), strict=True):
            window = self._windows.get((service, metric))
            if window is not None and value is not None:
                window.add(value, now_s)
        if ttft_s is not None and (service, "e2e_p99_s") in self._windows:
            self._ttft[service].add(ttft_s, now_s)

    def standings(self, now_s: float) -> list[Standing]:
        """Every target and how it stands."""
        found = []
        for (service, metric), window in self._windows.items():
            samples = window.count(now_s)
            enough = samples >= self.settings.min_samples
            measured = window.quantile(0.99, now_s) if enough else math.nan
            unit = 1000.0 if metric.endswith("_ms") else 1.0
            found.append(Standing(service, metric, self._targets[service, metric], measured * unit, samples))
        return found

    def shifted(self, weights: Weights) -> Weights:
        """Those weights, moved by as much as the controller holds right. Their product stays."""
        if self.step == 0:
            return weights
        factor = math.sqrt(self.factor)
        return Weights(weights.w_ttft * factor, weights.w_tpot / factor)

    @property
    def factor(self) -> float:
        """By how much w_ttft/w_tpot is more than configured."""
        return float(self.settings.max_factor ** (self.step / self.settings.steps))

    def tick(self, now_s: float) -> bool:
        """Look, and step if it is time. True when the step changed."""
        settings = self.settings
        if now_s - self._looked_s < settings.window_s / _SLICES:
            return False
        self._looked_s = now_s
        if now_s - self._stepped_s < settings.window_s:
            return False
        standings = self.standings(now_s)
        pressure = {lean: self._pressure(standings, lean, now_s) for lean in Leaning}
        wanted = self._wanted(pressure, now_s)
        if wanted == self.step:
            return False
        self.step = wanted
        self.changes += 1
        self._stepped_s = now_s
        for window in (*self._windows.values(), *self._ttft.values()):
            window.clear()
        return True

    def _wanted(self, pressure: Mapping[Leaning, float], now_s: float) -> int:
        """The step that what was measured asks for."""
        ttft, tpot, most = pressure[Leaning.TTFT], pressure[Leaning.TPOT], self.settings.steps
        worse = Leaning.TTFT if ttft >= tpot else Leaning.TPOT
        if max(ttft, tpot) > HYSTERESIS:
            if min(ttft, tpot) > 1.0 and max(ttft, tpot) < min(ttft, tpot) * HYSTERESIS:
                self.why = f"ttft at {ttft:.2f} and tpot at {tpot:.2f} of their targets: no weights help both"
                return self.step
            sign = 1 if worse is Leaning.TTFT else -1
            self._note_violation(worse, now_s)
            wanted = max(-most, min(most, self.step + sign))
            end = ", at the end of its range" if wanted == self.step else ""
            self.why = f"{worse} at {pressure[worse]:.2f} of its target{end}"
            return wanted
        pulled = Leaning.TTFT if self.step > 0 else Leaning.TPOT
        if self.step and 0 <= pressure[pulled] < EASE and now_s >= self._ease_at_s:
            self._eased = pulled
            self._ease_at_s = now_s + self._patience * self.settings.window_s * EASE_WINDOWS
            self.why = f"{pulled} at {pressure[pulled]:.2f} of its target: back towards what is configured"
            return self.step - (1 if self.step > 0 else -1)
        return self.step

    def _note_violation(self, lean: Leaning, now_s: float) -> None:
        """Stepping back was too early: the next try comes later, each time twice as late."""
        if self._eased is lean:
            self._patience = min(_MAX_PATIENCE, self._patience * 2)
            self._eased = None
        self._ease_at_s = now_s + self._patience * self.settings.window_s * EASE_WINDOWS

    def _pressure(self, standings: list[Standing], lean: Leaning, now_s: float) -> float:
        """Of the target of that kind that stands worst; -1 where there is none, or too little was seen."""
        found = [-1.0]
        for standing in standings:
            if standing.samples < self.settings.min_samples:
                continue
            if standing.metric == f"{lean}_p99_ms" or (
                standing.metric == "e2e_p99_s" and self._leans(standing, now_s) is lean
            ):
                found.append(standing.pressure)
        return max(found)

    def _leans(self, standing: Standing, now_s: float) -> Leaning:
        """What most of a whole answer's time is: waiting for its first token, or the rest."""
        first_s = self._ttft[standing.service].quantile(0.99, now_s)
        return Leaning.TTFT if first_s > standing.measured / 2 else Leaning.TPOT


METRICS = Targets._fields
"""`ttft_p99_ms`, `tpot_p99_ms`, `e2e_p99_s`."""
