"""What a section of docs/slo/README.md is.

Rule of this room: a section runs its experiments and words what came out; every number in its text is from a run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is run. jobs: processes. seeds: of each configuration. short: a part of it, to look at the report.

    live: also once on HTTP pod simulators, in real time.
    """

    jobs: int | None = None
    seeds: int = 3
    short: bool = False
    live: bool = True


class Finding(NamedTuple):
    """One thing that was to be shown. met: whether it was."""

    claim: str
    measured: str
    met: bool


class Told(NamedTuple):
    """findings: for the table at the top. text: Markdown."""

    findings: list[Finding]
    text: list[str]


@dataclass(frozen=True, slots=True)
class Section:
    """name: for `--only`."""

    name: str
    title: str
    run: Callable[[Effort], Told]
