"""`ppd-gateway lut …`.

Rule of this room: arguments in, text out; each command is one call of a module beside it. Bad input is one line on
stderr and exit status 2.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lut import diff, plot, show
from lut.build import build
from lut.errors import TableError
from lut.learn import MIN_SAMPLES, PRIOR, learn
from lut.paper import GPU, MODEL, NETWORK, read_paper
from lut.publish import write_table_set
from lut.raw import Located, read_raw
from lut.tableset import TableSet

EXIT_USAGE = 2

Command = Callable[[argparse.Namespace], None]


def add_commands(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the parser `lut` with its commands; each sets `run`, which takes the options and returns the exit status."""
    commands = subparsers.add_parser("lut", help="make, import and look at lookup tables").add_subparsers(
        required=True, metavar="COMMAND"
    )
    _add_build(commands)
    _add_learn(commands)
    _add_import(commands)
    _add_show(commands)
    _add_diff(commands)
    _add_plot(commands)


def _add_build(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser("build", help="make a table set of raw measurements", allow_abbrev=False)
    parser.add_argument("raw", nargs="+", type=Path, metavar="RAW", help="file written by `ppd-gateway profile`")
    _add_output(parser)
    parser.add_argument("--model", metavar="NAME", help="model name to write (default: the one measured)")
    parser.add_argument("--gpu", default="", metavar="TEXT", help="what the pods run on")
    parser.add_argument("--network", default="", metavar="TEXT", help="what connects the pods")
    parser.set_defaults(run=_runner(_build))


def _add_learn(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "learn", help="make a table set of another and what was measured in production", allow_abbrev=False
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="table set that the gateway used")
    parser.add_argument("raw", nargs="+", type=Path, metavar="RAW", help="its drift.measurements_file")
    _add_output(parser)
    parser.add_argument(
        "--prior", type=_count, default=PRIOR, metavar="N", help=f"turns the old numbers count for (default {PRIOR})"
    )
    parser.add_argument(
        "--min-samples", type=_count, default=MIN_SAMPLES, metavar="N", help=f"per cell (default {MIN_SAMPLES})"
    )
    parser.set_defaults(run=_runner(_learn))


def _add_import(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser("import", help="make a table set of the paper authors' results", allow_abbrev=False)
    parser.add_argument("source", type=Path, metavar="SRC", help="their grid as one CSV file")
    _add_output(parser)
    parser.add_argument("--model", default=MODEL, metavar="NAME", help=f"model name to write (default {MODEL})")
    parser.add_argument("--gpu", default=GPU, metavar="TEXT", help=f"default: {GPU}")
    parser.add_argument("--network", default=NETWORK, metavar="TEXT", help=f"default: {NETWORK}")
    parser.set_defaults(run=_runner(_import))


def _add_show(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser("show", help="check a table set and say what is in it", allow_abbrev=False)
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    _add_weights(parser)
    parser.set_defaults(run=_runner(_show))


def _add_diff(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser("diff", help="what changes from table set A to B", allow_abbrev=False)
    parser.add_argument("before", type=Path, metavar="A")
    parser.add_argument("after", type=Path, metavar="B")
    _add_weights(parser)
    parser.add_argument("--limit", type=_count, default=20, metavar="N", help="lines of each kind (default 20)")
    parser.set_defaults(run=_runner(_diff))


def _add_plot(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser("plot", help="draw a table set as heat maps", allow_abbrev=False)
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument(
        "-o",
        "--output",
        nargs="+",
        type=Path,
        required=True,
        metavar="PNG",
        help="one file per node assignment, or one name to which -π is added when there are several",
    )
    _add_weights(parser)
    parser.add_argument("--rate", type=float, metavar="Q", help="turns per second (default: middle of the axis)")
    parser.add_argument("--out", type=float, metavar="N", help="output tokens (default: middle of the axis)")
    parser.set_defaults(run=_runner(_plot))


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="table set to write or replace")
    parser.add_argument("--note", action="append", default=[], metavar="TEXT", help="kept in the manifest; repeatable")


def _add_weights(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--weights", type=_weights, default=(1.0, 1.0), metavar="TTFT,TPOT", help="weights of S (default 1,1)"
    )


def _weights(text: str) -> tuple[float, float]:
    try:
        w_ttft, w_tpot = (float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not two numbers like 1,1") from None
    if not (math.isfinite(w_ttft + w_tpot) and min(w_ttft, w_tpot) >= 0 and w_ttft + w_tpot > 0):
        raise argparse.ArgumentTypeError(f"{text!r}: weights are finite, not negative and not both 0")
    return w_ttft, w_tpot


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a count")
    return int(text)


def _runner(command: Command) -> Callable[[argparse.Namespace], int]:
    def run(options: argparse.Namespace) -> int:
        try:
            command(options)
        except TableError as error:
            sys.stderr.write(f"ppd-gateway: {error}\n")
            return EXIT_USAGE
        return 0

    return run


def _build(options: argparse.Namespace) -> None:
    points, notes = _read(options)
    draft = build(points, model=options.model, gpu=options.gpu, network=options.network, notes=notes)
    _report(write_table_set(options.output, draft))


def _read(options: argparse.Namespace) -> tuple[list[Located], list[str]]:
    """All raw points, and the notes for the manifest."""
    points: list[Located] = []
    notes = list(options.note)
    for path in options.raw:
        read = read_raw(path)
        points.extend(read.points)
        if read.torn is not None:
            sys.stderr.write(f"ppd-gateway: {read.torn}\n")
            notes.append(read.torn)
    return points, notes


def _learn(options: argparse.Namespace) -> None:
    points, notes = _read(options)
    found = learn(_open(options.directory), points, prior=options.prior, min_samples=options.min_samples, notes=notes)
    directory = write_table_set(options.output, found.draft)
    for reason, lines in found.passed_over.items():
        sys.stdout.write(f"{directory}: {reason}: {lines} lines passed over\n")
    sys.stdout.write(
        f"{directory}: learned from {found.turns} turns; {found.cells} of {found.arms_cells} cells changed\n"
    )
    _report(directory)


def _import(options: argparse.Namespace) -> None:
    results = read_paper(options.source)
    notes = (*options.note, *results.notes)
    draft = build(results.points, model=options.model, gpu=options.gpu, network=options.network, notes=notes)
    _report(write_table_set(options.output, draft))


def _report(directory: Path) -> None:
    """Say what was written, and any assignment that has no table."""
    written = TableSet.open(directory)
    sys.stdout.write(f"{directory}: {written.describe()}\n")
    for assignment, reason in written.manifest.left_out.items():
        sys.stdout.write(f"{directory}: no table for {assignment}: {reason}\n")


def _open(directory: Path) -> TableSet:
    """Open and check everything: a person is looking, so it may take a while."""
    tables = TableSet.open(directory)
    tables.verify()
    return tables


def _show(options: argparse.Namespace) -> None:
    summary = show.summarise(_open(options.directory), options.weights)
    sys.stdout.write(f"{show.as_json(summary)}\n" if options.json else show.as_text(summary))


def _diff(options: argparse.Namespace) -> None:
    difference = diff.compare(_open(options.before), _open(options.after), options.weights, options.limit)
    sys.stdout.write(diff.as_text(difference, options.limit))


def _plot(options: argparse.Namespace) -> None:
    tables = _open(options.directory)
    names = list(tables.tables)
    paths: list[Path] = options.output
    if len(paths) == 1 and len(names) > 1:
        paths = [paths[0].with_name(f"{paths[0].stem}-{name}{paths[0].suffix or '.png'}") for name in names]
    if len(paths) != len(names):
        raise TableError(f"{len(paths)} PNG names for {len(names)} node assignments ({', '.join(names)})")
    for name, path in zip(names, paths, strict=True):
        content = plot.panels(tables.tables[name], options.weights, options.out, options.rate)
        plot.draw(content, path, f"{tables.manifest.model}{', SIMULATED' if tables.manifest.simulated else ''}")
        sys.stdout.write(f"{path}: {content.title}\n")
