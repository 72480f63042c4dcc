"""The paper authors' benchmark results as raw measurements.

Rule of this room: everything that is peculiar to that benchmark is undone or written into the notes here, so that the
rest of the package sees ordinary raw points.

- Their grid counts conversations started per second, each of exactly two turns: turns per second = 2 × that.
- `1P_3D` is x = 0 (arm pd), `1P_3pD` is x = 1 (arm local) of the same pods. Layouts with replicas or with a part of the
  decode pods appending have no counterpart in a table and are left out.
- The measured turn is turn 2: `context_tokens` is what turn 1 left behind (its input and output), `new_tokens` and
  `output_tokens` are turn 2's own.
- A point counts as it stands: below 95 % success it is degraded. Where nothing succeeded there are no latencies.
- Rows without TPOT percentiles are not of the grid: they are the model-scaling runs (another model among them).

The authors' own JSON files are not read: their layout is not written down anywhere this project may rely on.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from lut.cell import Route
from lut.errors import refuse
from lut.raw import Located, RawPoint

MODEL = "Llama-3.1-8B"
GPU = "4x H100 80 GB HBM3 (paper)"
NETWORK = "NVLink, one node (paper)"
TURNS_PER_CONVERSATION = 2
POINT_DURATION_S = 10.0

_LAYOUT = re.compile(r"([1-9]\d*P_[1-9]\d*)(p?)D")
_COLUMNS = (
    "node_assignment",
    "context_tokens",
    "new_tokens",
    "output_tokens",
    "conversations_per_s",
    "success_pct",
    "requests",
    "turn2_count",
    "turn2_ttft_mean_ms",
    "turn2_ttft_p99_ms",
    "turn2_tpot_mean_ms",
    "turn2_tpot_p99_ms",
)


@dataclass(frozen=True, slots=True)
class PaperResults:
    points: tuple[Located, ...]
    notes: tuple[str, ...]


def read_paper(path: Path | str) -> PaperResults:
    """Read the one-file CSV layout, a row a point. Raises TableError naming file and line."""
    path = Path(path)
    points: list[Located] = []
    left_out: Counter[str] = Counter()
    scaling_runs = 0
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            _check_header(path, rows.fieldnames)
            for row in rows:
                layout = _LAYOUT.fullmatch(row["node_assignment"] or "")
                if layout is None:
                    left_out[row["node_assignment"]] += 1
                elif row["turn2_tpot_p99_ms"] == "":
                    scaling_runs += 1
                else:
                    arm: Route = "local" if layout[2] else "pd"
                    where = f"{path}:{rows.line_num}"
                    points.append(Located(where, _point(where, row, f"{layout[1]}D", arm)))
    except OSError as error:
        raise refuse(path, f"cannot be read ({error.strerror})") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise refuse(path, f"is not a CSV file ({error})") from error
    return PaperResults(tuple(points), _notes(path, left_out, scaling_runs))


def _check_header(path: Path, header: object) -> None:
    names = list(header) if isinstance(header, list) else []
    missing = [name for name in _COLUMNS if name not in names]
    if missing:
        raise refuse(path, f"is not the paper's grid as one CSV file: no column {', '.join(missing)}")


def _point(where: str, row: dict[str, str], assignment: str, arm: Route) -> RawPoint:
    try:
        measured = int(row["turn2_count"])
        ttft, ttft_p99 = _seconds(row, "turn2_ttft_mean_ms"), _seconds(row, "turn2_ttft_p99_ms")
        tpot, tpot_p99 = _seconds(row, "turn2_tpot_mean_ms"), _seconds(row, "turn2_tpot_p99_ms")
        return RawPoint(
            assignment=assignment,
            arm=arm,
            context_tokens=int(row["context_tokens"]),
            new_tokens=int(row["new_tokens"]),
            output_tokens=int(row["output_tokens"]),
            rate=TURNS_PER_CONVERSATION * float(row["conversations_per_s"]),
            rate_achieved=None,
            repeat=0,
            samples=measured or int(row["requests"]),
            success=0.0 if ttft is None else float(row["success_pct"]) / 100,
            ttft_mean_s=ttft,
            ttft_p99_s=ttft_p99,
            tpot_mean_s=tpot,
            tpot_p99_s=tpot_p99,
            model=MODEL,
            block_size=None,
            simulated=False,
            started_at=None,
            duration_s=POINT_DURATION_S,
            stopped=None,
        )
    except (ValueError, TypeError) as error:
        raise refuse(where, error) from error


def _seconds(row: dict[str, str], column: str) -> float | None:
    """A latency; the benchmark writes 0 where it has none."""
    milliseconds = float(row[column])
    if not 0 <= milliseconds < 1e9:
        raise ValueError(f"{column} is {row[column]}")
    return milliseconds / 1000 if milliseconds > 0 else None


def _notes(path: Path, left_out: Counter[str], scaling_runs: int) -> tuple[str, ...]:
    notes = [
        f"imported from {path.name}, the benchmark results of the authors of arXiv 2603.13358: one run of"
        f" {POINT_DURATION_S:g} s a point, so no confidence intervals",
        "rate: their conversations started per second × 2 turns each = turns per second at the gateway",
        "cell = turn 2: context is turn 1's input and output, new and output tokens are turn 2's; a latency is the"
        " mean over the turns that succeeded",
        "samples of a point where nothing succeeded: the requests sent; its latencies are filled like unmeasured ones",
    ]
    if left_out:
        rows = ", ".join(f"{name} {count}" for name, count in sorted(left_out.items()))
        notes.append(f"rows left out, of layouts that are neither all D nor all pD: {rows}")
    if scaling_runs:
        notes.append(f"rows left out, without TPOT percentiles (model-scaling runs, not the grid): {scaling_runs}")
    return tuple(notes)
