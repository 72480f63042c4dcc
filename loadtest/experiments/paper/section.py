"""What a section of the paper's report is.

Rule of this room: a section names its experiments by a label, and reads its rows by that label alone, so all sections
can be run as one list on all cores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from loadtest.experiments.plots import Panel
from loadtest.experiments.rows import Row
from loadtest.experiments.run import Spec
from loadtest.experiments.statistics import Interval

SECTION = "section"
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is run. seeds: of the data sets and the small sections; grid_seeds: of the grid, which has 180 places
    already; burst_s: of long prompts.

    tables: table set of policy ppd by node assignment.
    """

    seeds: int = 3
    grid_seeds: int = 1
    conversations: int = 500
    workloads: int = 18
    rates: int = 20
    burst_s: float = 30.0
    tables: dict[str, Path] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Picture:
    """A plot. columns: of panels."""

    name: str
    title: str
    panels: Sequence[Panel]
    columns: int = 2


@dataclass(slots=True)
class Findings:
    """ours: by the key of the claim. text: Markdown below the section's table."""

    ours: dict[str, Interval] = field(default_factory=dict)
    pictures: list[Picture] = field(default_factory=list)
    text: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Section:
    """specs: what is to be run; evaluate: its rows → findings."""

    name: str
    title: str
    about: str
    specs: Callable[[Scale], list[Spec]]
    evaluate: Callable[[Sequence[Row]], Findings]


def labelled(spec: Spec, section: str, **labels: str) -> Spec:
    return replace(spec, labels=((SECTION, section), *sorted(labels.items())))


def percent(change: Interval) -> Interval:
    return Interval(100 * change.mean, 100 * change.half, change.runs)


def thin(values: Sequence[Value], count: int) -> list[Value]:
    """About so many of them, the first and the last among them."""
    if len(values) <= count:
        return list(values)
    step = (len(values) - 1) / max(1, count - 1)
    return [values[round(index * step)] for index in range(count)] if count > 1 else [values[0]]
