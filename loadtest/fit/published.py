"""Which published numbers set parameters and which are predictions, as data (`published.toml`).

Rule of this room: a report asks here before it calls a number a prediction.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any

_FILE = Path(__file__).with_suffix(".toml")
_FIGURES = Path(__file__).with_name("figures.toml")
TURN_TOKENS = 128
"""In and out, in each turn of the turn-scaling run."""


class Use(StrEnum):
    """How a published number was used; see the top of the file."""

    CALIBRATION = "calibration"
    PARTLY = "partly"
    GIVEN = "given"
    PREDICTION = "prediction"


@dataclass(frozen=True, slots=True)
class Number:
    """sets: the parameters it moved or gave, by dotted name."""

    key: str
    what: str
    place: str
    use: Use
    sets: tuple[str, ...] = ()


@lru_cache(maxsize=1)
def numbers() -> dict[str, Number]:
    """All of them, by key."""
    rows = tomllib.loads(_FILE.read_text(encoding="utf-8"))["number"]
    found = [Number(row["key"], row["what"], row["place"], Use(row["use"]), tuple(row.get("sets", ()))) for row in rows]
    by_key = {number.key: number for number in found}
    if len(by_key) < len(found):
        raise ValueError(f"{_FILE.name} has a key twice")
    return by_key


@lru_cache(maxsize=1)
def figures() -> dict[str, Any]:
    """Numbers read off figures and raw results: `figures.toml`."""
    return tomllib.loads(_FIGURES.read_text(encoding="utf-8"))


def use_of(key: str) -> Use:
    """Raises KeyError for a number that is not in the list."""
    return numbers()[key].use
