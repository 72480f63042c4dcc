"""The guard of a canary: looks at both sides over a sliding window and says when the canary is worse.

Rule of this room: like is held against like. Times are compared within a stratum (turn 1 or later, size of the prompt),
over the same span of time on both sides, and a conversation counts once per stratum, because conversations are what
chance put on either side; their turns are not independent of each other.

Each look makes three tests (`evidence`): share of conversations that met a failure, times to first token, times per
token. The probability of a false alarm that the operator allows per day is divided evenly among all tests of all looks
of a day and of all workers (Bonferroni), so it holds whatever the looks have to do with each other.

`evidence` needs NumPy (12 MB), so it is loaded by the first look, which most gateways never take.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.core.evidence import Exceedances, Failures

SIZES = (1024, 4096, 16384)
"""Prompts of fewer tokens than this are of one size, then of the next."""

MAX_PER_STRATUM = 1000
MAX_CONVERSATIONS = 4000
_DAY_S = 86_400.0
_TESTS = 3


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """When to stop. Seconds; shares of 1.

    min_samples: conversations on each side before anything is said. quantile: of the times. latency_margin: 0.25 lets
    it be a quarter above the baseline's. error_margin: 0.01 lets a point more of the conversations meet a failure.
    false_alarms: allowed per day.
    """

    enabled: bool = True
    window_s: float = 600.0
    look_s: float = 10.0
    min_samples: int = 100
    quantile: float = 0.99
    latency_margin: float = 0.25
    error_margin: float = 0.01
    false_alarms: float = 0.01


@dataclass(frozen=True, slots=True)
class Sample:
    """One request that is over. ttft_s: of streams only; an unstreamed answer's first byte is its last."""

    canary: bool
    conversation: str
    turn: int
    prompt_tokens: int
    failed: bool
    ttft_s: float | None = None
    tpot_s: float | None = None


@dataclass(frozen=True, slots=True)
class Findings:
    """One look. alpha: what `p` must not exceed for an alarm. verdict: the alarm in words, None for none."""

    failures: Failures
    ttft: Exceedances
    tpot: Exceedances
    alpha: float
    verdict: str | None


class _Newest:
    """The newest value of each conversation, up to a number of them. horizon_s: everything newer is here."""

    __slots__ = ("_most", "_values", "horizon_s")

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self.horizon_s = float("-inf")

    def put(self, conversation: str, value: float, now_s: float, *, worst: bool = False) -> None:
        """worst: keep the greater of this and what is here."""
        before = self._values.pop(conversation, None)
        if worst and before is not None:
            value = max(value, before[1])
        self._values[conversation] = (now_s, value)
        if len(self._values) > self._most:
            _, (left_s, _) = self._values.popitem(last=False)
            self.horizon_s = left_s

    def drop_until(self, time_s: float) -> None:
        """Forget what is not newer than that."""
        while self._values:
            conversation = next(iter(self._values))
            if self._values[conversation][0] > time_s:
                return
            del self._values[conversation]

    def values(self) -> Iterator[float]:
        return map(itemgetter(1), self._values.values())

    def __len__(self) -> int:
        return len(self._values)


class _Pair:
    """What is known of both sides; [0] baseline, [1] canary."""

    __slots__ = ("sides",)

    def __init__(self, most: int) -> None:
        self.sides = (_Newest(most), _Newest(most))

    def level(self, since_s: float) -> None:
        """Let both sides span the same time: since then, or since the side that had more forgot its oldest."""
        since_s = max(since_s, *(side.horizon_s for side in self.sides))
        for side in self.sides:
            side.drop_until(since_s)

    def values(self) -> tuple[list[float], list[float]]:
        """Of both sides."""
        baseline, canary = self.sides
        return list(baseline.values()), list(canary.values())


class Guard:
    """Collects samples, and looks. workers: how many look at once, each at its own samples."""

    def __init__(self, settings: GuardSettings, workers: int = 1) -> None:
        self.settings = settings
        self.findings: Findings | None = None
        self._alpha = settings.false_alarms * settings.look_s / _DAY_S / _TESTS / workers
        self.clear()

    def clear(self) -> None:
        """Forget all samples: the sides have changed, so what was before says nothing about what is."""
        self._failures = _Pair(MAX_CONVERSATIONS)
        self._ttft: dict[tuple[bool, int], _Pair] = {}
        self._tpot: dict[tuple[bool, int], _Pair] = {}
        self.findings = None

    def add(self, sample: Sample, now_s: float) -> None:
        """A request of either side is over."""
        side, conversation = sample.canary, sample.conversation
        self._failures.sides[side].put(conversation, float(sample.failed), now_s, worst=True)
        if sample.ttft_s is None and sample.tpot_s is None:
            return
        stratum = (sample.turn > 1, size_of(sample.prompt_tokens))
        for pairs, value in ((self._ttft, sample.ttft_s), (self._tpot, sample.tpot_s)):
            if value is not None:
                pair = pairs.get(stratum) or pairs.setdefault(stratum, _Pair(MAX_PER_STRATUM))
                pair.sides[side].put(conversation, value, now_s)

    def look(self, now_s: float) -> Findings:
        """Test everything, at once."""
        for _ in self.steps(now_s):
            pass
        assert self.findings is not None
        return self.findings

    def steps(self, now_s: float) -> Iterator[None]:
        """A look in pieces of some milliseconds, between which others may run; `findings` has it in the end."""
        from gateway.core import evidence

        settings = self.settings
        since_s = now_s - settings.window_s
        self._failures.level(since_s)
        yield
        baseline, canary = self._failures.values()
        counts = (int(sum(canary)), len(canary), int(sum(baseline)), len(baseline))
        yield
        failed = evidence.failures(*counts, settings.error_margin, self._alpha)
        times = []
        for pairs in (self._ttft, self._tpot):
            strata = []
            for pair in list(pairs.values()):
                pair.level(since_s)
                baseline, canary = pair.values()
                strata.append(evidence.Stratum(canary, baseline))
                yield
            times.append(evidence.exceedances(strata, settings.quantile, settings.latency_margin))
        ttft, tpot = times
        self.findings = Findings(failed, ttft, tpot, self._alpha, self._verdict(failed, ttft, tpot))

    def _verdict(self, failed: Failures, ttft: Exceedances, tpot: Exceedances) -> str | None:
        settings, found = self.settings, []
        if self._enough(failed.canary, failed.baseline) and failed.p <= self._alpha:
            found.append(
                f"{failed.canary_failed} of {failed.canary} conversations met a failure, of the baseline's "
                f"{failed.baseline_failed} of {failed.baseline} (margin {settings.error_margin:g}, p {failed.p:.1g})"
            )
        for name, times in (("time to first token", ttft), ("time per token", tpot)):
            if self._enough(times.canary, times.baseline) and times.p <= self._alpha:
                found.append(
                    f"{name}: {times.above} of {times.canary} lie above {1 + settings.latency_margin:g} times the "
                    f"baseline's P{100 * settings.quantile:g}, {times.expected:.1f} expected (p {times.p:.1g})"
                )
        return "; ".join(found) or None

    def _enough(self, canary: int, baseline: int) -> bool:
        return min(canary, baseline) >= self.settings.min_samples


def size_of(prompt_tokens: int) -> int:
    """The size class of a prompt, 0 … len(SIZES)."""
    return sum(prompt_tokens >= size for size in SIZES)
