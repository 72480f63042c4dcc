"""`python -m loadtest.fit report`: docs/paper/engine.md, every number of it computed or read from a file.

Rule of this room: no number is typed here; published ones come from the grid and from the data files beside this
module.
"""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from loadtest.fit import report_text
from loadtest.fit.grid import Measured, Point, read_grid
from loadtest.fit.paper_command import dump, predictions, shipped

DEFAULT = Path("docs/paper/engine.md")


def add_command(commands: Any) -> None:
    parser = commands.add_parser("report", help="write docs/paper/engine.md")
    parser.add_argument("grid", type=Path, metavar="CSV", help="the paper's raw grid")
    parser.add_argument("-o", "--output", type=Path, default=DEFAULT, metavar="MD")
    parser.add_argument(
        "--predictions",
        type=Path,
        metavar="JSONL",
        help="read them from here if it exists, else play and keep them here",
    )
    parser.add_argument("--every", type=int, default=1, metavar="N", help="predict only every n-th held-out point")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="processes")
    parser.set_defaults(run=run)


def run(options: Namespace) -> int:
    numbers = shipped()
    points = read_grid(options.grid)
    kept: Path | None = options.predictions
    if kept is not None and kept.exists():
        rows = _read(kept)
    else:
        pairs = list(_told(predictions(numbers, points, options.jobs, options.every), len(points) // options.every))
        if kept is not None:
            dump(pairs, kept)
        rows = pairs
    options.output.parent.mkdir(parents=True, exist_ok=True)
    plot = options.output.with_name("engine-held-out.png")
    report_text.draw(rows, plot)
    options.output.write_text(report_text.text(numbers, rows, points, plot.name), encoding="utf-8")
    print(f"written to {options.output} and {plot}")
    return 0


def _told(pairs: Any, total: int) -> Any:
    for number, pair in enumerate(pairs, 1):
        if number % 100 == 0:
            print(f"{number}/{total}", file=sys.stderr, flush=True)
        yield pair


def _read(path: Path) -> list[tuple[Point, Measured]]:
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        measured = Measured(**row["point"].pop("measured"))
        found.append((Point(**row["point"], measured=measured), Measured(**row["predicted"])))
    return found
