"""The two tests of the canary's guard: is a share of failures, is a tail of times worse than a margin allows?

Rule of this room: exact for every sample size and every distribution, with no model of how times are distributed and no
approximation that needs many samples. What they take as independent are their items, so an item must be what was
assigned to a side by chance: a conversation, not a request.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Stratum:
    """Times of both sides for requests that can be compared, one per conversation."""

    canary: Sequence[float] | Floats
    baseline: Sequence[float] | Floats


@dataclass(frozen=True, slots=True)
class Exceedances:
    """How many of the canary's times lie above the baseline's quantile and margin, how many were to be expected, and
    how likely so many are when the canary is worse by the margin exactly."""

    canary: int
    baseline: int
    above: int
    expected: float
    p: float


def exceedances(strata: Sequence[Stratum], quantile: float, margin: float) -> Exceedances:
    """Test whether the canary's quantile exceeds (1 + margin) times the baseline's, over all strata together.

    The precedence (exceedance) test: the threshold is the r-th largest of the baseline's times, each stretched by the
    margin; r is what lies above the quantile. If the canary were like the stretched baseline, the number of its times
    above the threshold is negative hypergeometric whatever the distribution. Strata have thresholds of their own, and
    the numbers add up; the law of the sum is their convolution.
    """
    above, expected, laws = 0, 0.0, []
    for stratum in strata:
        n_canary, n_baseline = len(stratum.canary), len(stratum.baseline)
        if not n_canary or not n_baseline:
            continue
        rank = max(1, math.floor((1 - quantile) * (n_baseline + 1)))
        ordered = np.partition(np.asarray(stratum.baseline), n_baseline - rank)
        threshold = float(ordered[n_baseline - rank]) * (1 + margin)
        above += int(np.count_nonzero(np.asarray(stratum.canary) > threshold))
        expected += n_canary * rank / (n_baseline + 1)
        laws.append((n_canary, n_baseline, rank))
    return Exceedances(
        canary=sum(len(stratum.canary) for stratum in strata),
        baseline=sum(len(stratum.baseline) for stratum in strata),
        above=above,
        expected=expected,
        p=_at_least(above, laws),
    )


def _at_least(count: int, laws: Sequence[tuple[int, int, int]]) -> float:
    """The probability that the independent counts of all strata add up to `count` or more."""
    if count == 0:
        return 1.0
    sums: Floats = np.ones(1)
    for n_canary, n_baseline, rank in laws:
        sums = np.convolve(sums, _law(n_canary, n_baseline, rank)[:count])[:count]
    return max(0.0, 1.0 - float(sums.sum()))


def _law(n_canary: int, n_baseline: int, rank: int) -> Floats:
    """P(k of the canary's lie above the r-th largest of the baseline's), k = 0 … n_canary, when all are alike."""
    k = np.arange(n_canary, dtype=np.float64)
    steps = np.log(k + rank) + np.log(n_canary - k) - np.log(k + 1) - np.log(n_canary - k + n_baseline - rank)
    first = (
        math.lgamma(n_canary + n_baseline - rank + 1)
        + math.lgamma(n_baseline + 1)
        - math.lgamma(n_baseline - rank + 1)
        - math.lgamma(n_canary + n_baseline + 1)
    )
    law: Floats = np.exp(first + np.concatenate(([0.0], np.cumsum(steps))))
    return law


@dataclass(frozen=True, slots=True)
class Failures:
    """Conversations that met a failure, of how many; how likely so many are when the canary is worse by the margin."""

    canary: int
    baseline: int
    canary_failed: int
    baseline_failed: int
    p: float


def failures(
    canary_failed: int, canary: int, baseline_failed: int, baseline: int, margin: float, alpha: float
) -> Failures:
    """Test whether the canary's share of failures exceeds the baseline's by more than the margin (0.01: a point).

    The canary's number is held against a binomial law with the upper confidence bound of the baseline's share plus the
    margin (Berger and Boos 1994). The bound itself fails with probability alpha / 2, which is part of `p`; so of all
    true shares none makes `p` ≤ alpha more often than alpha.
    """
    p = 1.0
    if canary and baseline and canary_failed:
        share = min(1.0, _upper_share(baseline_failed, baseline, alpha / 2) + margin)
        p = min(1.0, _binomial(canary_failed, canary, canary, share) + alpha / 2)
    return Failures(canary, baseline, canary_failed, baseline_failed, p)


def _upper_share(failed: int, total: int, gamma: float) -> float:
    """The share under which `failed` or fewer of `total` have probability gamma (Clopper and Pearson)."""
    if failed >= total:
        return 1.0
    low, high = failed / total, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        if _binomial(0, failed, total, middle) > gamma:
            low = middle
        else:
            high = middle
    return high


def _binomial(first: int, last: int, total: int, share: float) -> float:
    """P(first ≤ X ≤ last) for X of `total` with that share."""
    if share <= 0.0 or share >= 1.0 or first > last:
        certain = 0 if share <= 0.0 else total
        return float(first <= certain <= last)
    k = np.arange(first, last, dtype=np.float64)
    steps = np.log(total - k) - np.log(k + 1) + math.log(share) - math.log1p(-share)
    start = (
        math.lgamma(total + 1)
        - math.lgamma(first + 1)
        - math.lgamma(total - first + 1)
        + first * math.log(share)
        + (total - first) * math.log1p(-share)
    )
    return min(1.0, float(np.exp(start + np.concatenate(([0.0], np.cumsum(steps)))).sum()))
