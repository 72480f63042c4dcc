"""Two endpoints under the same traffic: the differences, and what can be said of them.

Rule of this room: what was drawn together is drawn again together. The bootstrap draws pairs of conversations (all
turns of both), so that neither a conversation's length nor its words count as luck; all intervals hold at once with
95 % (Bonferroni over the figures), so the verdict may name any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from loadtest.live.book import TurnRecord
from loadtest.live.figures import in_group
from loadtest.live.slo import Slo

CONFIDENCE = 0.95
FEWEST_DRAWS, MOST_DRAWS = 1000, 4000
_WORK = 20_000_000
FEWEST_DRAWN = 10
"""Conversations (or pairs) below which no interval is given."""

Floats = npt.NDArray[np.float64]


class Difference(msgspec.Struct, frozen=True):
    """Figure `name` of B less that of A (seconds, or shares); low and high bound it. lower_is_better: of the figure.

    A figure or bound is None where it is not finite (failures) or there are too few conversations.
    """

    name: str
    a: float | None
    b: float | None
    difference: float | None
    low: float | None
    high: float | None
    lower_is_better: bool
    verdict: str
    """A, B, or "" where no difference is shown."""


class _Figure(NamedTuple):
    """share: of the percentile; None: the mean, and more is better."""

    name: str
    group: str
    value: Callable[[TurnRecord], float | None]
    share: float | None


def _figures(slo: Slo | None) -> list[_Figure]:
    found = [
        _Figure("TTFT P50, turn 1", "turn 1", lambda turn: turn.ttft_s, 0.5),
        _Figure("TTFT P50, turns 2+", "turns 2+", lambda turn: turn.ttft_s, 0.5),
        _Figure("TTFT P95, all turns", "all turns", lambda turn: turn.ttft_s, 0.95),
        _Figure("TPOT P50, all turns", "all turns", lambda turn: turn.tpot_s, 0.5),
        _Figure("TPOT P95, all turns", "all turns", lambda turn: turn.tpot_s, 0.95),
        _Figure("E2E P50, all turns", "all turns", lambda turn: turn.e2e_s, 0.5),
        _Figure("E2E P95, all turns", "all turns", lambda turn: turn.e2e_s, 0.95),
        _Figure("success", "all turns", lambda turn: float(turn.ok), None),
    ]
    if slo is not None:
        found.append(_Figure("within SLO", "all turns", lambda turn: float(slo.kept(turn)), None))
    return found


@dataclass(frozen=True, slots=True)
class _Column:
    """What one figure is made of at one endpoint: values in rising order and whose they are."""

    values: Floats
    owners: npt.NDArray[np.int64]
    share: float | None

    @property
    def drawn_from(self) -> int:
        return len(np.unique(self.owners))

    def figure(self, weight: npt.NDArray[np.int64]) -> float:
        """The percentile (nearest rank) or the mean when each owner counts so often; NaN of nothing."""
        each = weight[self.owners]
        total = int(each.sum())
        if not total:
            return np.nan
        if self.share is None:
            return float(each @ self.values) / total
        rank = max(1, int(np.ceil(self.share * total - 1e-9)))
        return float(self.values[int(np.searchsorted(np.cumsum(each), rank))])


def compare(turns: Sequence[TurnRecord], slo: Slo | None, seed: int, draws: int | None = None) -> list[Difference]:
    """Arm 1 (B) beside arm 0 (A). Conversations of a pair are drawn together, others by themselves."""
    figures = _figures(slo)
    owners = {pair: index for index, pair in enumerate(sorted({turn.pair for turn in turns}))}
    columns = [[_column(figure, turns, arm, owners) for arm in (0, 1)] for figure in figures]
    rows = draws or max(FEWEST_DRAWS, min(MOST_DRAWS, _WORK // max(1, len(turns))))
    drawn = np.full((len(figures), 2, rows), np.nan)
    dice = np.random.default_rng(seed)
    for row in range(rows if owners else 0):
        weight = np.bincount(dice.integers(len(owners), size=len(owners)), minlength=len(owners))
        for index, pair in enumerate(columns):
            drawn[index, :, row] = [column.figure(weight) for column in pair]
    once = np.ones(len(owners), dtype=np.int64)
    tail = (1 - CONFIDENCE) / len(figures) / 2
    return [
        _difference(figure.name, pair, [column.figure(once) for column in pair], drawn[index], tail)
        for index, (figure, pair) in enumerate(zip(figures, columns, strict=True))
    ]


def _column(figure: _Figure, turns: Sequence[TurnRecord], arm: int, owners: dict[int, int]) -> _Column:
    found = sorted(
        (number, owners[turn.pair])
        for turn in turns
        if turn.arm == arm and in_group(turn, figure.group) and (number := figure.value(turn)) is not None
    )
    return _Column(
        np.array([number for number, _ in found], dtype=np.float64),
        np.array([owner for _, owner in found], dtype=np.int64),
        figure.share,
    )


def _difference(
    name: str, columns: Sequence[_Column], points: Sequence[float], drawn: Floats, tail: float
) -> Difference:
    a, b = points
    low = high = None
    if all(column.drawn_from >= FEWEST_DRAWN for column in columns):
        low, high = _interval(drawn[0], drawn[1], tail)
    lower_is_better = columns[0].share is not None
    better = ""
    if low is not None and high is not None and (low > 0 or high < 0):
        better = "B" if (high < 0) == lower_is_better else "A"
    return Difference(
        name, _finite(a), _finite(b), _finite(_less(b, a)), _finite(low), _finite(high), lower_is_better, better
    )


def _interval(a: Floats, b: Floats, tail: float) -> tuple[float | None, float | None]:
    with np.errstate(invalid="ignore"):  # of two infinities, which are no difference
        differences = np.where(a == b, 0.0, b - a)
    known = np.sort(differences[~np.isnan(differences)])
    if not len(known):
        return None, None
    last = len(known) - 1
    return float(known[int(np.floor(tail * last))]), float(known[int(np.ceil((1 - tail) * last))])


def _less(b: float, a: float) -> float:
    return 0.0 if a == b else b - a


def _finite(value: float | None) -> float | None:
    return value if value is not None and np.isfinite(value) else None


def verdict(differences: Sequence[Difference]) -> str:
    """One line."""
    parts = []
    for arm, other in (("B", "A"), ("A", "B")):
        names = [_how(each) for each in differences if each.verdict == arm]
        if names:
            parts.append(f"{arm} is better than {other} in {'; '.join(names)}")
    if not parts:
        return "no difference between A and B is shown"
    return ". ".join(parts)


def _how(each: Difference) -> str:
    if each.a and each.difference is not None:
        return f"{each.name} ({each.difference / each.a:+.0%})"
    return each.name


def for_json(differences: Sequence[Difference]) -> list[dict[str, Any]]:
    return [msgspec.structs.asdict(each) for each in differences]
