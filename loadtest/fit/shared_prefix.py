"""Why a full prefill beside a batch cost +48 % and an append +2 % in the paper's interference test.

Rule of this room: nothing is fitted here. The profile, set by other measurements, says what a step costs; what is added
is one fact about the engine: where all running sequences share a prefix, its KV is read once for all of them (vLLM's
cascade attention, which is on when at least 8 requests share at least 256 tokens), and one request without that prefix
turns this off for everybody for as long as it runs.

The test: a batch of decoders, all on one cached prefix of 2,048 tokens, 64 output tokens each. Beside them start either
full prefills (1,024 tokens, no prefix in common) or appends (1,024 tokens on the common prefix), which then decode too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from loadtest.engine.profile import StepCosts

Beside: TypeAlias = Literal["nothing", "full", "append"]

PREFIX = 2048
OWN = 4
NEW = 1024
OUTPUT = 64
MIN_SHARING = 8
MIN_PREFIX = 256


@dataclass(frozen=True, slots=True)
class Interference:
    """TPOT of the batch in seconds, alone and beside full prefills and appends."""

    batch: int
    alone_s: float
    full_s: float
    append_s: float

    @property
    def full_change(self) -> float:
        return self.full_s / self.alone_s - 1

    @property
    def append_change(self) -> float:
        return self.append_s / self.alone_s - 1


def interference(costs: StepCosts, batch: int, beside: int = 1, *, shared: bool = True) -> Interference:
    """The test at one batch size with so many prefills at once. `shared` False: no prefix is read once for all."""
    return Interference(
        batch,
        tpot_s(costs, batch, "nothing", 0, shared=shared),
        tpot_s(costs, batch, "full", beside, shared=shared),
        tpot_s(costs, batch, "append", beside, shared=shared),
    )


def tpot_s(costs: StepCosts, batch: int, kind: Beside, count: int, *, shared: bool) -> float:
    """Mean step while the batch makes its 64 tokens: one step also does the prefills, which decode from then on."""
    together = shared and batch >= MIN_SHARING and PREFIX >= MIN_PREFIX and kind != "full"
    total = 0.0
    prefix = {"nothing": 0, "full": 0, "append": PREFIX}[kind]
    for step in range(1, OUTPUT):
        own = batch * (OWN + step)
        others = count if step > 1 else 0
        theirs = others * (NEW + step - 1)
        prefixes = PREFIX if together else batch * PREFIX + others * prefix
        total += costs.duration_s(
            prefill_tokens=count * NEW if step == 1 else 0,
            attended_tokens=count * prefix if step == 1 else 0,
            attended_pairs=count * (NEW * prefix + NEW * (NEW + 1) / 2) if step == 1 else 0,
            decode_sequences=batch + others,
            decode_context_tokens=prefixes + own + theirs,
        )
    return total / (OUTPUT - 1)
