"""What the operator wants: how much a faster first token is worth against a slower stream.

Rule of this room: weights are checked when they come in; a decision never sees a bad one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Weights:
    """S = w_ttft·Δttft − w_tpot·Δtpot. Both are finite and not negative, and not both are 0."""

    w_ttft: float = 1.0
    w_tpot: float = 1.0

    def __post_init__(self) -> None:
        for name, value in (("ttft", self.w_ttft), ("tpot", self.w_tpot)):
            if not math.isfinite(value) or value < 0:
                raise ValueError(f"the weight {name} must be a number of 0 or more, not {value!r}")
        if self.w_ttft == 0 and self.w_tpot == 0:
            raise ValueError("the weights must not both be 0")


BALANCED = Weights()

PRESETS = {
    "interactive": Weights(2.0, 1.0),
    "balanced": BALANCED,
    "throughput": Weights(1.0, 4.0),
}
"""Names for people who do not want to think in numbers."""


def parse_weights(text: str) -> Weights:
    """Read `ttft=2,tpot=1` or the name of a preset; what is left out is 1. Raises ValueError."""
    if text.strip().lower() in PRESETS:
        return PRESETS[text.strip().lower()]
    values = {"ttft": 1.0, "tpot": 1.0}
    for part in text.split(","):
        name, equals, number = part.partition("=")
        if not equals or name.strip().lower() not in values:
            raise ValueError(f"weights are written ttft=2,tpot=1 or as one of {', '.join(PRESETS)}")
        try:
            values[name.strip().lower()] = float(number)
        except ValueError:
            raise ValueError(f"the weight {name.strip().lower()} must be a number") from None
    return Weights(values["ttft"], values["tpot"])
