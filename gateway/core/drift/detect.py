"""Is what is seen still what it was against the table's word? One series of observed ÷ predicted at a time.

Rule of this room: a table's word on an arm is about a cluster where every turn takes that arm; where some do, the
ratio is not 1 though nothing has changed. So the first batches after a table was taken into use are the reference, as
long as they are within OFF_BY of the table's word, and drift is what differs from it.

An alarm has a stated rate. Logarithms of ratios are gathered in batches; a batch's mean, less the reference and what is
tolerated, goes into a one-sided CUSUM for slower and another for faster, in units of the batches' own noise.

The noise comes from differences of neighbouring batches, which a lasting change hardly touches, and only while nothing
is suspected, for what has changed may be noisier too. It is taken as larger than it looks because queues make
neighbours alike: for a lag-one correlation of rho the variance of a sum is (1 + rho) / (1 - rho) times that of
independent ones, and the differences show only (1 - rho) of the variance. The threshold follows from the wanted mean
number of batches between false alarms (Siegmund's approximation for a CUSUM with allowance k).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

BATCH_S = 5.0
MIN_BATCH = 10
"""A batch is at least so long and has at least so many ratios."""

ALLOWANCE = 0.5
CORRELATION = 0.3
"""Of neighbouring batches, which the stated rate allows for."""

OFF_BY = 2.5
"""A reference is at most so many times the table's word, or it over that: what is further off is drift at once."""

REFERENCE_BATCHES = 24
_MOST = 3.0
_LEAST_NOISE = 0.02
_NEWS = 0.05
_UNSUSPECTED = 1.0
_CLIP = math.log(4.0)
_LEAST_RATIO = 1e-6
_CALM_NEWS = 0.2
_CALM_BATCHES = 12
_INFLATION = math.sqrt((1 + CORRELATION) / (1 - CORRELATION)) / math.sqrt(1 - CORRELATION)
_DAY_S = 86_400.0


def threshold(false_alarms_per_day: float, series: int) -> float:
    """The CUSUM's limit, in units of noise, for so many false alarms per day over `series` two-sided series."""
    batches = _DAY_S / BATCH_S * 2 * series / false_alarms_per_day
    low, high = 0.0, 200.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        if _run_length(middle) < batches:
            low = middle
        else:
            high = middle
    return high


def _run_length(limit: float) -> float:
    """Mean number of batches to a false alarm."""
    b = 2 * ALLOWANCE * (limit + 1.166)
    return (math.exp(min(b, 700.0)) - b - 1) / (2 * ALLOWANCE * ALLOWANCE)


@dataclass(slots=True)
class Series:
    """One arm, one latency. tolerance: as a logarithm; limit: see `threshold`.

    drifting: what is seen has moved away from the reference. level: the logarithm of the ratio, of late; reference:
    what it was, 0 until that is known.
    """

    tolerance: float
    limit: float
    drifting: bool = False
    level: float = 0.0
    reference: float = 0.0
    batches: int = 0
    _count: int = 0
    _total: float = 0.0
    _began_s: float = 0.0
    _last: float = 0.0
    _variance: float = 0.0
    _slower: float = 0.0
    _faster: float = 0.0
    _calm: int = 0
    _sum: float = 0.0

    def add(self, ratio: float, now_s: float) -> bool:
        """One turn's observed ÷ predicted. True when `drifting` has changed by it."""
        if self._count == 0:
            self._began_s = now_s
        self._count += 1
        off = math.log(max(ratio, _LEAST_RATIO)) - self.level
        self._total += self.level + max(-_CLIP, min(_CLIP, off))
        if self._count < MIN_BATCH or now_s - self._began_s < BATCH_S:
            return False
        mean = self._total / self._count
        self._count, self._total = 0, 0.0
        return self._judge(mean)

    @property
    def settled(self) -> bool:
        """Whether the reference is known."""
        return self.batches >= REFERENCE_BATCHES

    @property
    def noise(self) -> float:
        """Standard deviation of a batch, as it is reckoned with."""
        return max(_LEAST_NOISE, math.sqrt(self._variance) * _INFLATION)

    def state(self) -> tuple[tuple[float, float, float], tuple[float, float]]:
        """What else a series goes on from: of its noise and reference; its CUSUMs."""
        return (self._last, self._variance, self._sum), (self._slower, self._faster)

    def take_state(self, noise: tuple[float, float, float], sums: tuple[float, float]) -> None:
        """Go on from there."""
        self._last, self._variance, self._sum = noise
        self._slower, self._faster = sums

    def _judge(self, mean: float) -> bool:
        self.batches += 1
        if self.batches == 1:
            self._last = self.level = mean
            return False
        self._learn_noise(mean)
        self.level += _CALM_NEWS * (mean - self.level)
        if self.batches <= REFERENCE_BATCHES:
            self._learn_reference(mean)
            return False
        noise, off = self.noise, mean - self.reference
        self._slower = _next(self._slower, (off - self.tolerance) / noise)
        self._faster = _next(self._faster, (-off - self.tolerance) / noise)
        if not self.drifting:
            if max(self._slower, self._faster) > self.limit:
                self.drifting, self._calm = True, 0
                return True
            return False
        self._calm = self._calm + 1 if abs(self.level - self.reference) < self.tolerance / 2 else 0
        if self._calm < _CALM_BATCHES:
            return False
        self.drifting = False
        self._slower = self._faster = 0.0
        return True

    def _learn_reference(self, mean: float) -> None:
        """The mean of the first batches."""
        self._sum += mean
        if self.batches == REFERENCE_BATCHES:
            most = math.log(OFF_BY)
            self.reference = max(-most, min(most, self._sum / (self.batches - 1)))

    def _learn_noise(self, mean: float) -> None:
        squared = (mean - self._last) ** 2 / 2
        self._last = mean
        if self.batches <= REFERENCE_BATCHES:
            self._variance += (squared - self._variance) / (self.batches - 1)
        elif max(self._slower, self._faster) <= _UNSUSPECTED:
            most = 9 * max(self._variance, _LEAST_NOISE**2)
            self._variance += _NEWS * (min(squared, most) - self._variance)


def _next(sum_: float, standardised: float) -> float:
    return max(0.0, sum_ + max(-_MOST, min(_MOST, standardised)) - ALLOWANCE)
