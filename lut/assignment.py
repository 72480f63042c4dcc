"""Node assignments π: how many prefill and decode pods, written `1P_3D`.

Rule of this room: names are parsed and compared here only. "Nearest" means: the P:D ratio first, then the size, both
as distances of logarithms; of two that are equally far the smaller cluster, then the one with fewer prefill pods.
"""

import math
import re
from collections.abc import Iterable
from typing import NamedTuple

_NAME = re.compile(r"([0-9]{1,6})P_([0-9]{1,6})D")


class Assignment(NamedTuple):
    """Counts of pods by role."""

    prefill: int
    decode: int

    def __str__(self) -> str:
        return f"{self.prefill}P_{self.decode}D"


def parse(name: str) -> Assignment | None:
    """`"1P_3D"` → (1, 3); None for anything else. Zero pods parse: a cluster may have lost them all."""
    match = _NAME.fullmatch(name)
    return Assignment(int(match[1]), int(match[2])) if match else None


def is_table_name(name: str) -> bool:
    """Whether a table may carry this name: both counts at least 1, no leading zeros."""
    assignment = parse(name)
    return assignment is not None and min(assignment) > 0 and str(assignment) == name


def nearest(wanted: str, known: Iterable[str]) -> str:
    """The name in `known` (not empty, table names) nearest to `wanted`.

    A count of 0 is taken as one half of a pod; what is no assignment at all is taken as 1P_1D.
    """
    target = parse(wanted) or Assignment(1, 1)
    return min(known, key=lambda name: _distance(target, parse(name) or Assignment(1, 1)))


def _distance(a: Assignment, b: Assignment) -> tuple[float, float, int, int]:
    ratio = abs(_ratio(a) - _ratio(b))
    size = abs(math.log(max(sum(a), 0.5)) - math.log(max(sum(b), 0.5)))
    return round(ratio, 9), round(size, 9), sum(b), b.prefill


def _ratio(assignment: Assignment) -> float:
    return math.log(max(assignment.prefill, 0.5) / max(assignment.decode, 0.5))
