"""What a table says about one point: an `Arm` per route, together a `Cell`.

Rule of this room: the meaning and order of the numbers in a table file is fixed here and nowhere else. Latencies and
their confidence intervals are seconds, shares are 0 to 1.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Literal, NamedTuple

Route = Literal["pd", "local", "readback"]

ARMS: tuple[Route, ...] = ("pd", "local", "readback")
"""Through a prefill pod (x = 0), on the decode pod (x = 1), through a prefill pod with the KV read back."""

HEALTHY_SUCCESS = 0.949999988079071
"""An arm that brought fewer of its requests to the end is degraded (paper 1.1: at least 95 % did not time out). The
number is 0.95 as float32, so that 19 of 20 read back from a table are not below it."""

UNKNOWN_CI = -1.0


class Origin(IntEnum):
    """Where the numbers of an arm come from."""

    MEASURED = 0
    INTERPOLATED = 1
    NEAREST = 2


class Arm(NamedTuple):
    """One route in one cell; the fields are the innermost dimension of a table file, in this order."""

    ttft_mean: float
    ttft_p99: float
    tpot_mean: float
    """0 where there is none (outputs of one token)."""
    tpot_p99: float
    success: float
    """Share of the turns that came to a good end."""
    samples: float
    """Turns measured; 0 in a filled cell."""
    ttft_ci: float
    """Half width of the 95 % confidence interval of the mean between repeats; -1: not known."""
    tpot_ci: float
    origin: float
    """An `Origin`."""

    @property
    def degraded(self) -> bool:
        return self.success < HEALTHY_SUCCESS


FIELDS = Arm._fields
UNITS = {
    "ttft_mean": "s",
    "ttft_p99": "s",
    "tpot_mean": "s",
    "tpot_p99": "s",
    "success": "share, 0 to 1",
    "samples": "turns",
    "ttft_ci": "s; -1: not known",
    "tpot_ci": "s; -1: not known",
    "origin": "0 measured, 1 interpolated, 2 nearest",
}


class Cell(NamedTuple):
    """The arms at one point, and the point: the cell's axis values, or the clamped request when interpolated."""

    pd: Arm
    local: Arm
    readback: Arm | None
    """None where it was not measured."""
    context_tokens: float
    new_tokens: float
    output_tokens: float
    rate: float
