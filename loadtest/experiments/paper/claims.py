"""What was published, and how ours compares.

Rule of this room: the bar is the same for every number. A change in percent is within 10 % when it is off by at most a
tenth of the published change or by one percentage point; a value when it is off by at most a tenth. Same direction: the
change has the same sign; a value lies on the same side of the value that it is published beside.
"""

from __future__ import annotations

import math
from enum import StrEnum
from functools import lru_cache
from pathlib import Path

import msgspec

from loadtest.experiments.statistics import NOTHING, Interval
from loadtest.fit.published import use_of

_FILE = Path(__file__).with_suffix(".toml")
WITHIN = 0.1
POINTS = 1.0


class Kind(StrEnum):
    """CHANGE: percent against a baseline. VALUE: a number with a unit. SHARE: percent of something."""

    CHANGE = "change"
    VALUE = "value"
    SHARE = "share"


class Verdict(StrEnum):
    """How ours compares."""

    WITHIN = "within 10 %"
    DIRECTION = "same direction"
    NOT = "not reproduced"
    MISSING = "not run"


class Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One published number. use: the key of `loadtest.fit.published` that says whether it set a parameter.

    against: the key of the value or share beside which it is published. reason: why ours differs, where it does.
    """

    key: str
    section: str
    what: str
    place: str
    value: float
    kind: Kind
    use: str
    unit: str = "%"
    against: str = ""
    reason: str = ""

    @property
    def role(self) -> str:
        return use_of(self.use).value


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    claim: list[Claim]


@lru_cache(maxsize=1)
def claims() -> dict[str, Claim]:
    """All of them, by key, in the order of the file."""
    found = msgspec.toml.decode(_FILE.read_bytes(), type=_Document).claim
    by_key = {claim.key: claim for claim in found}
    if len(by_key) < len(found):
        raise ValueError(f"{_FILE.name} has a key twice")
    return by_key


def judge(claim: Claim, ours: Interval, all_ours: dict[str, Interval]) -> Verdict:
    """MISSING where a part of the report left it out, NOT where it was run and there is no number."""
    if claim.key not in all_ours:
        return Verdict.MISSING
    value = ours.mean
    if math.isnan(value):
        return Verdict.NOT
    error = abs(value - claim.value)
    if error <= WITHIN * abs(claim.value) or (claim.kind is not Kind.VALUE and error <= POINTS):
        return Verdict.WITHIN
    if claim.kind is Kind.CHANGE:
        return Verdict.DIRECTION if value * claim.value > 0 else Verdict.NOT
    if claim.against:
        published = claim.value - claims()[claim.against].value
        found = value - all_ours.get(claim.against, NOTHING).mean
        return Verdict.DIRECTION if published * found > 0 else Verdict.NOT
    return Verdict.NOT
