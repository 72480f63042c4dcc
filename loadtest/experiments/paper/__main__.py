"""`python -m loadtest.experiments.paper -o docs/paper`: run everything, write README.md and the plots."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from loadtest.experiments.errors import ExperimentError
from loadtest.experiments.paper import chats, document, frontier, grid, interference, network, pareto, turns
from loadtest.experiments.paper.section import SECTION, Findings, Scale, Section
from loadtest.experiments.rows import Row, read_jsonl, write_jsonl
from loadtest.experiments.run import Hardware
from loadtest.experiments.sweep import progress, run_all
from loadtest.experiments.tables import FOLDER, table_for
from lut.errors import TableError

SECTIONS = (
    interference.SECTION,
    turns.SECTION,
    grid.SECTION,
    chats.SECTION,
    network.SECTION,
    frontier.SECTION,
    pareto.SECTION,
)
EXIT_USAGE = 2
QUICK = Scale(seeds=1, conversations=200, workloads=6, rates=5)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.experiments.paper", description=__doc__)
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="DIR", help="for README.md and plots")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="keep the results there as JSON lines")
    parser.add_argument("--again", action="store_true", help="run nothing: write the report from --rows")
    parser.add_argument("--seeds", type=int, default=Scale().seeds, metavar="N", help="of all but the grid (default 3)")
    parser.add_argument("--quick", action="store_true", help="a part of it, one seed: to look at the report")
    parser.add_argument("--workloads", type=int, default=18, metavar="N", help="of the grid's 18 (default all)")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), metavar="N", help="processes (default: one per core)"
    )
    parser.add_argument("--tables", type=Path, default=FOLDER, metavar="DIR", help=f"of policy ppd (default {FOLDER})")
    options = parser.parse_args(arguments)
    if options.again and options.rows is None:
        parser.error("--again needs --rows")
    began = time.monotonic()
    try:
        scale = QUICK if options.quick else Scale(seeds=options.seeds, workloads=options.workloads)
        if options.again:
            rows = read_jsonl(options.rows)
        else:
            tables = {
                name: table_for(name, Hardware(), folder=options.tables, jobs=options.jobs, tell=_tell)
                for name in chats.SPLITS
            }
            rows = experiments(replace(scale, tables=tables), options.jobs)
            if options.rows is not None:
                options.rows.parent.mkdir(parents=True, exist_ok=True)
                write_jsonl(rows, options.rows)
        options.out.mkdir(parents=True, exist_ok=True)
        verdicts = document.write(findings(rows), rows, options.out)
    except (ExperimentError, TableError, OSError) as error:
        print(f"loadtest.experiments.paper: {error}", file=sys.stderr)
        return EXIT_USAGE
    counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
    print(f"{options.out / 'README.md'}: {counts}; {time.monotonic() - began:.0f} s")
    return 0


def experiments(scale: Scale, jobs: int | None, *, quiet: bool = False) -> list[Row]:
    """The rows of all sections, the long experiments first, so that the cores end together."""
    specs = [spec for section in SECTIONS for spec in section.specs(scale)]
    with progress(len(specs), "paper", quiet=quiet) as on_row:
        return run_all(specs, jobs, on_row)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def findings(rows: Sequence[Row]) -> list[tuple[Section, Findings]]:
    """What the rows come to, section by section."""
    return [
        (section, section.evaluate([row for row in rows if row.label(SECTION) == section.name])) for section in SECTIONS
    ]


if __name__ == "__main__":
    sys.exit(main())
