"""The paper authors' grid, as a calibration sees it: points, and which of them may set parameters.

Rule of this room: the file is given by path and never copied; a point without a single success has no latencies and is
left out, and so is one below 95 % (the paper's own limit), since a crash is not a property of a GPU.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MIN_SUCCESS_PCT = 95.0

CALIBRATION_ASSIGNMENTS = ("4R", "1P_3D")
CALIBRATION_WORKLOADS = (
    "small_tiny",
    "small_mid_bal",
    "small_huge_paste",
    "large_short_gen",
    "large_mid_bal",
    "large_long_gen",
)
CALIBRATION_RATES = (1.0, 4.0, 8.0, 16.0)
"""The part that sets parameters: all other points are predicted."""

_PODS = re.compile(r"(\d+)(R|P|D|pD)")
_NEEDED = (
    "node_assignment",
    "workload",
    "context_tokens",
    "new_tokens",
    "output_tokens",
    "conversations_per_s",
    "success_pct",
    "requests",
    "turn1_ttft_mean_ms",
    "turn1_tpot_mean_ms",
    "turn2_ttft_mean_ms",
    "turn2_ttft_p50_ms",
    "turn2_tpot_mean_ms",
    "turn2_tpot_p99_ms",
    "tokens_per_s",
)


class GridError(ValueError):
    """The file is not the grid; the message names it and what is wrong."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Pods by what they do: replicas, prefill, decode with every turn through P, decode with local follow-ups."""

    replicas: int
    prefill: int
    decode: int
    local: int


@dataclass(frozen=True, slots=True)
class Measured:
    """What one run showed, in seconds. The paper's turn-1 TTFT has no median; its mean holds the wait for a slot."""

    ttft1_s: float
    ttft2_s: float
    ttft2_median_s: float
    tpot1_s: float
    tpot2_s: float
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class Point:
    """One run of the grid. Turn 1 is half of the context in, half out."""

    assignment: str
    workload: str
    context_tokens: int
    new_tokens: int
    output_tokens: int
    rate: float
    """Conversations started per second."""
    conversations: int
    """That the run really started."""
    measured: Measured

    @property
    def turn1_tokens(self) -> int:
        return self.context_tokens // 2

    @property
    def layout(self) -> Layout:
        return layout(self.assignment)

    @property
    def arm(self) -> str:
        """How follow-ups go: `pd` (x = 0), `local` (x = 1), `partial` (between), `replica`, `hybrid` (replicas)."""
        pods = self.layout
        if pods.prefill == 0:
            return "replica"
        if pods.replicas:
            return "hybrid"
        if pods.decode and pods.local:
            return "partial"
        return "local" if pods.local else "pd"

    @property
    def calibrates(self) -> bool:
        return (
            self.assignment in CALIBRATION_ASSIGNMENTS
            and self.workload in CALIBRATION_WORKLOADS
            and self.rate in CALIBRATION_RATES
        )

    @property
    def load(self) -> str:
        """The paper's classes of Table 1, and what lies between them."""
        return "low" if self.rate <= 2 else "mid" if self.rate <= 8 else "high"


def layout(assignment: str) -> Layout:
    """Parse `1R_1P_1D_1pD`. Raises GridError."""
    count = {"R": 0, "P": 0, "D": 0, "pD": 0}
    for part in assignment.split("_"):
        found = _PODS.fullmatch(part)
        if not found:
            raise GridError(f"{assignment!r} is not a node assignment like 1P_2D_1pD")
        count[found[2]] += int(found[1])
    return Layout(count["R"], count["P"], count["D"], count["pD"])


def read_grid(path: Path) -> list[Point]:
    """The usable points. Raises GridError naming the file (and line)."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            missing = [name for name in _NEEDED if name not in (rows.fieldnames or ())]
            if missing:
                raise GridError(f"{path} is not the paper's grid: no column {', '.join(missing)}")
            return list(_points(path, rows))
    except OSError as error:
        raise GridError(f"{path} cannot be read ({error.strerror})") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise GridError(f"{path} is not a CSV file ({error})") from error


def _points(path: Path, rows: csv.DictReader[str]) -> Iterable[Point]:
    for row in rows:
        if row["turn2_tpot_p99_ms"] == "":  # the model-scaling runs, of another benchmark
            continue
        try:
            point = Point(
                assignment=row["node_assignment"],
                workload=row["workload"],
                context_tokens=int(row["context_tokens"]),
                new_tokens=int(row["new_tokens"]),
                output_tokens=int(row["output_tokens"]),
                rate=float(row["conversations_per_s"]),
                conversations=int(row["requests"]) // 2,
                measured=Measured(
                    ttft1_s=float(row["turn1_ttft_mean_ms"]) / 1e3,
                    ttft2_s=float(row["turn2_ttft_mean_ms"]) / 1e3,
                    ttft2_median_s=float(row["turn2_ttft_p50_ms"]) / 1e3,
                    tpot1_s=float(row["turn1_tpot_mean_ms"]) / 1e3,
                    tpot2_s=float(row["turn2_tpot_mean_ms"]) / 1e3,
                    tokens_per_s=float(row["tokens_per_s"]),
                ),
            )
            success = float(row["success_pct"])
        except (TypeError, ValueError) as error:
            raise GridError(f"{path}:{rows.line_num}: {error}") from error
        layout(point.assignment)
        if success >= MIN_SUCCESS_PCT and point.conversations and point.measured.ttft2_s > 0:
            yield point
