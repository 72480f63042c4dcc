"""What was done to the cluster, what clients got, and what of that no fault explains.

Rule of this room: numbers and words, no I/O and no clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

FORGIVEN_S = 3.0
"""After a fault is over: requests that met it may end so much later."""

UNDERSTOOD = ("500", "502", "503", "504", "broken")
"""How a request may end because of a fault: a clear status, or a stream that ends with an error event."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """One fault. Seconds since the start; until: when the cluster was whole again."""

    kind: str
    pod: str
    at_s: float
    until_s: float


@dataclass(frozen=True, slots=True)
class Ended:
    """One request. how: "ok", a status, "broken", or what a client could make nothing of."""

    how: str
    began_s: float
    ended_s: float


@dataclass(slots=True)
class Ledger:
    """All of one run. samples: (seconds, KiB) of the gateway's memory."""

    troubles: list[Trouble] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[Ended] = field(default_factory=list)
    samples: list[tuple[float, int]] = field(default_factory=list)
    left_over: list[str] = field(default_factory=list)
    conversations: int = 0
    held_back: int = 0

    def note(self, ended: Ended) -> None:
        """A request ended."""
        self.outcomes[ended.how] += 1
        if ended.how != "ok":
            self.failures.append(ended)

    def unexplained(self) -> list[Ended]:
        """Failures that met no fault, or that no fault excuses."""
        return [each for each in self.failures if each.how not in UNDERSTOOD or not self._met(each)]

    def _met(self, ended: Ended) -> bool:
        return any(
            trouble.at_s <= ended.ended_s and ended.began_s <= trouble.until_s + FORGIVEN_S for trouble in self.troubles
        )

    def slope_mib_per_minute(self, warm_up_s: float) -> float:
        """Of the gateway's memory, by least squares over the samples after the warm-up."""
        return slope([sample for sample in self.samples if sample[0] >= warm_up_s]) * 60 / 1024


def slope(samples: Sequence[tuple[float, float]]) -> float:
    """Units per second; 0 for fewer than two moments."""
    if len(samples) < 2:
        return 0.0
    mean_x = sum(x for x, _ in samples) / len(samples)
    mean_y = sum(y for _, y in samples) / len(samples)
    spread = sum((x - mean_x) ** 2 for x, _ in samples)
    return sum((x - mean_x) * (y - mean_y) for x, y in samples) / spread if spread else 0.0


def report(ledger: Ledger, minutes: float, warm_up_s: float, bound: float) -> dict[str, Any]:
    """The run in numbers; `passed` is the verdict."""
    unexplained = ledger.unexplained()
    growth = ledger.slope_mib_per_minute(warm_up_s)
    return {
        "passed": not unexplained and not ledger.left_over and growth <= bound,
        "minutes": minutes,
        "conversations": ledger.conversations,
        "conversations_held_back": ledger.held_back,
        "conversations_per_s": round(ledger.conversations / (minutes * 60), 1),
        "requests": sum(ledger.outcomes.values()),
        "outcomes": dict(ledger.outcomes.most_common()),
        "faults": dict(Counter(trouble.kind for trouble in ledger.troubles).most_common()),
        "unexplained": [{"how": e.how, "began_s": round(e.began_s, 2)} for e in unexplained[:20]],
        "unexplained_count": len(unexplained),
        "left_over": ledger.left_over,
        "rss_mib": {
            "first": round(ledger.samples[0][1] / 1024, 1) if ledger.samples else None,
            "last": round(ledger.samples[-1][1] / 1024, 1) if ledger.samples else None,
            "most": round(max(kib for _, kib in ledger.samples) / 1024, 1) if ledger.samples else None,
            "course": [round(kib / 1024, 1) for _, kib in ledger.samples[:: max(1, len(ledger.samples) // 12)]],
            "slope_per_minute": round(growth, 3),
            "bound_per_minute": bound,
        },
    }
