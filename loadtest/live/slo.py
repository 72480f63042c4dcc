"""What an operator promises: `ttft=500ms,tpot=30ms,e2e=10s`.

Rule of this room: a turn keeps a promise or does not; a failed turn keeps none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from loadtest.live.book import TurnRecord
from loadtest.live.errors import LoadtestError

_LIMIT = re.compile(r"(ttft|tpot|e2e)=(\d+(?:\.\d+)?)(ms|s)")


@dataclass(frozen=True, slots=True)
class Slo:
    """Upper limits in seconds; None: no limit."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    @property
    def words(self) -> str:
        limits = (("TTFT", self.ttft_s), ("TPOT", self.tpot_s), ("E2E", self.e2e_s))
        return ", ".join(f"{name} ≤ {limit * 1e3:g} ms" for name, limit in limits if limit is not None)

    def kept(self, turn: TurnRecord) -> bool:
        """True when the turn succeeded within every limit. An answer of one token has no TPOT to exceed."""
        tpot_s = turn.tpot_s
        return (
            turn.ok
            and (self.ttft_s is None or turn.ttft_s <= self.ttft_s)
            and (self.tpot_s is None or tpot_s is None or tpot_s <= self.tpot_s)
            and (self.e2e_s is None or turn.e2e_s <= self.e2e_s)
        )


def slo_of(text: str) -> Slo:
    """Raises LoadtestError."""
    limits: dict[str, float] = {}
    for part in text.split(","):
        found = _LIMIT.fullmatch(part.strip())
        if found is None:
            raise LoadtestError(f"--slo {part.strip()!r}: must be like ttft=500ms, tpot=30ms or e2e=10s")
        if f"{found[1]}_s" in limits:
            raise LoadtestError(f"--slo: {found[1]} twice")
        limits[f"{found[1]}_s"] = float(found[2]) / (1000 if found[3] == "ms" else 1)
    return Slo(**limits)
