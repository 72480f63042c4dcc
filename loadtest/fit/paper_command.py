"""`python -m loadtest.fit paper`: the H100 profile from the grid, and how well it predicts the rest.

Rule of this room: what is written into a profile is what was fitted here; fixed numbers keep the source they had.
"""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from loadtest.engine import profile as profiles
from loadtest.fit.benchmark import Client
from loadtest.fit.grid import Measured, Point, read_grid
from loadtest.fit.paper import PARAMETERS, ROUNDS, GridFit, Numbers, Predictor, fit_grid
from loadtest.fit.profile_file import Provenance, machine, measured_of, save, sources_of, to_toml

NAME = "h100-llama3.1-8b"
FILE = profiles.PROFILES / f"{NAME}.toml"
KEPT = "benchmark_answer_kept_tokens"
"""In `[measured]` of the profile: the one number of the benchmark's client that is fitted."""

GRID_SOURCE = "fitted to the calibration part of the raw grid of arXiv 2603.13358 by `python -m loadtest.fit paper`"
PAIR_SOURCE = "computed: FLOP of a query-key pair in proportion to those of a token (loadtest/fit/paper.py)"
HEADING = """One H100 80 GB (HBM3, NVLink), Llama-3.1-8B, BF16, TP=1, vLLM with the paper's P2pNccl connector.
Written by `python -m loadtest.fit paper`; see docs/paper/engine.md."""
PREDICTION_SEEDS = (11,)


def shipped() -> Numbers:
    """The profile as it comes along, with the client of the paper's benchmark."""
    return Numbers(profiles.load(NAME), Client(float(str(measured_of(FILE).get(KEPT, 100.0)))))


def predictions(numbers: Numbers, points: list[Point], jobs: int, every: int = 1) -> Iterable[tuple[Point, Measured]]:
    """Every (or every n-th) point that sets no parameter, with what the model says of it."""
    held_out = [point for point in points if not point.calibrates][::every]
    with Predictor(jobs) as predict:
        yield from zip(held_out, predict.each([numbers] * len(held_out), held_out, PREDICTION_SEEDS), strict=True)


def add_command(commands: Any) -> None:
    parser = commands.add_parser("paper", help="fit the H100 profile to the stated part of the paper's grid")
    parser.add_argument("grid", type=Path, metavar="CSV", help="the paper's raw grid, a row a point")
    parser.add_argument("-o", "--output", type=Path, default=FILE, metavar="TOML")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="at most so many moves of the parameters")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="processes")
    parser.set_defaults(run=run)


def run(options: Namespace) -> int:
    points = read_grid(options.grid)
    start = shipped()
    with Predictor(options.jobs) as predict:
        fitted = fit_grid(start, points, predict, lambda line: print(line, file=sys.stderr, flush=True), options.rounds)
    save(options.output, written(fitted))
    for name, value in zip(PARAMETERS, fitted.numbers.values(), strict=True):
        print(f"{name:28} {value:.4g} ± {fitted.errors[name]:.1g}")
    print(f"written to {options.output}")
    return 0


def written(fitted: GridFit) -> str:
    """The profile file of a fit."""
    sources, of = sources_of(FILE)
    sources |= {"grid": GRID_SOURCE, "pairs": PAIR_SOURCE}
    of |= {name: "grid" for name in PARAMETERS if not name.startswith("client.")}
    of["step.attended_pair_s"] = "pairs"
    errors = {name: error for name, error in fitted.errors.items() if not name.startswith("client.")}
    profile = replace(fitted.numbers.profile, name=NAME)
    measured = {
        "date": machine()["date"],
        "command": "python -m loadtest.fit paper ppd_paper_grid.csv",
        "points": fitted.points,
        "losses": [round(loss, 4) for loss in fitted.losses],
        KEPT: round(fitted.numbers.client.answer_kept_tokens, 1),
    }
    return to_toml(profile, Provenance(sources, of, "grid", errors), measured, HEADING)


def dump(pairs: Iterable[tuple[Point, Measured]], path: Path) -> list[dict[str, Any]]:
    """Predictions as JSON lines, and as the rows themselves."""
    rows = [{"point": asdict(point), "predicted": asdict(said)} for point, said in pairs]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return rows
