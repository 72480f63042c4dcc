"""Repeats of one measurement become one arm of one cell.

Rule of this room: what is combined here is never better than what was measured. Means are weighted by the turns that
succeeded; P99 is the largest of the repeats' (the P99 of all turns cannot be had from theirs, and is not above that);
the confidence interval comes from the spread between repeats, not from the turns within one, which are not independent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from lut.cell import UNKNOWN_CI, Arm, Origin
from lut.raw import RawPoint

_T_975 = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
    *(2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423),
)
"""Student's t, 97.5 % quantile, for 1 to 30 degrees of freedom."""

_Z_975 = 1.959964


def combine(points: Sequence[RawPoint]) -> Arm:
    """One arm from at least one point with samples. Latencies that nobody measured are NaN (`lut.build` fills them)."""
    samples = sum(point.samples for point in points)
    ttft = [(p.succeeded, p.ttft_mean_s) for p in points if p.ttft_mean_s is not None]
    tpot = [(p.succeeded, p.tpot_mean_s) for p in points if p.tpot_mean_s is not None]
    return Arm(
        ttft_mean=_mean(ttft),
        ttft_p99=max((p.ttft_p99_s for p in points if p.ttft_p99_s is not None), default=math.nan),
        tpot_mean=_mean(tpot),
        tpot_p99=max((p.tpot_p99_s for p in points if p.tpot_p99_s is not None), default=math.nan),
        success=min(sum(point.succeeded for point in points) / samples, 1.0),
        samples=samples,
        ttft_ci=half_width([value for _, value in ttft]),
        tpot_ci=half_width([value for _, value in tpot]),
        origin=Origin.MEASURED,
    )


def half_width(means: Sequence[float]) -> float:
    """Half of the 95 % confidence interval of the mean of `means`, one per repeat; -1 (unknown) for fewer than two."""
    count = len(means)
    if count < 2:
        return UNKNOWN_CI
    centre = math.fsum(means) / count
    variance = math.fsum((mean - centre) ** 2 for mean in means) / (count - 1)
    return student_t(count - 1) * math.sqrt(variance / count)


def student_t(freedom: int) -> float:
    """97.5 % quantile of Student's t; beyond the table by the first two terms of its expansion (error below 1e-4)."""
    if freedom <= len(_T_975):
        return _T_975[freedom - 1]
    first = (_Z_975**3 + _Z_975) / 4
    second = (5 * _Z_975**5 + 16 * _Z_975**3 + 3 * _Z_975) / 96
    return _Z_975 + first / freedom + second / freedom**2


def _mean(weighted: Sequence[tuple[float, float]]) -> float:
    total = math.fsum(weight for weight, _ in weighted)
    return math.fsum(weight * value for weight, value in weighted) / total if total > 0 else math.nan
