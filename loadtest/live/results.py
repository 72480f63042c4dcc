"""A run as data.

Rule of this room: what a machine reads is what the report prints; no text of a conversation, no header's value.
Infinite times (failures) are written as null beside counts that say why.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import orjson

from loadtest.live.book import Book, TurnRecord
from loadtest.live.compare import Difference, compare, verdict
from loadtest.live.errors import LoadtestError
from loadtest.live.figures import Group, groups_of
from loadtest.live.overhead import Overhead
from loadtest.live.slo import Slo

FORMAT = 1
NAMES = ("A", "B")


class Arm(msgspec.Struct, frozen=True):
    """One endpoint. details: for some faults, what was seen with the first of them."""

    name: str
    url: str
    groups: dict[str, Group]
    details: dict[str, str]
    resent: int
    without_usage: int


class Setup(msgspec.Struct, frozen=True):
    """What was asked for. Of headers, the names."""

    urls: list[str]
    api: str
    models: dict[str, float]
    workload: str
    arrivals: str
    assignment: str
    warmup_s: float
    end_s: float
    slo: str
    seed: int
    timeout_s: float
    first_token_timeout_s: float
    max_in_flight: int
    header_names: list[str]
    tokens_per_word: float | None
    began: str
    version: str


class Result(msgspec.Struct, frozen=True):
    """All of a run. interrupted: seconds after which somebody stopped it, else None."""

    setup: Setup
    arms: list[Arm]
    differences: list[Difference]
    verdict: str
    overhead: Overhead
    too_long: int
    behind: int
    interrupted_s: float | None
    format: int = FORMAT


def measured(setup: Setup, interrupted_s: float | None) -> float:
    """Seconds that count."""
    end_s = setup.end_s if interrupted_s is None else min(interrupted_s, setup.end_s)
    return max(0.0, end_s - setup.warmup_s)


def result_of(setup: Setup, book: Book, slo: Slo | None, overhead: Overhead, interrupted_s: float | None) -> Result:
    """Work everything out."""
    measured_s = measured(setup, interrupted_s)
    arms = []
    for number, (url, seen) in enumerate(zip(setup.urls, book.arms, strict=True)):
        turns = [turn for turn in book.records if turn.arm == number]
        groups = groups_of(turns, seen, slo, measured_s)
        arms.append(Arm(NAMES[number], url, groups, seen.details, seen.resent, seen.without_usage))
    differences = compare(book.records, slo, setup.seed) if len(arms) == 2 else []
    return Result(
        setup,
        arms,
        differences,
        verdict(differences) if differences else "",
        overhead,
        book.too_long,
        book.behind,
        interrupted_s,
    )


def json_of(result: Result) -> bytes:
    """Indented JSON."""
    plain = msgspec.to_builtins(result)
    return orjson.dumps(_finite(plain), option=orjson.OPT_INDENT_2) + b"\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write(path: Path, data: bytes) -> None:
    """Raises LoadtestError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise LoadtestError(f"{path}: {error.strerror}") from None


def lines_of(records: Sequence[TurnRecord]) -> bytes:
    """One JSON line per turn, in the order in which they were due."""
    ordered = sorted(records, key=lambda turn: (turn.due_s, turn.conversation, turn.turn))
    return b"".join(orjson.dumps(record) + b"\n" for record in ordered)
