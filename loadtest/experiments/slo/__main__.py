"""`python -m loadtest.experiments.slo -o docs/slo`: run everything, write README.md."""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from loadtest.experiments.errors import ExperimentError
from loadtest.experiments.slo.section import Effort, Section, Told
from lut.errors import TableError

SECTIONS = ("overload", "flood", "death", "weights", "drift", "drift_live", "uneven")
"""Modules of this package, each with a `SECTION`; in the order of the report."""

WHEN_ASKED = ("drift_live",)
"""Long ones, which run when named."""

KEPT = Path("build/slo")

_HEAD = """# Overload, tenants, faults, drift

Made by `make slo`; do not edit. Simulated pods in virtual time ([simulation.md](../simulation.md)) under the shipped
`gateway.core`, which decides who comes in, who waits, and where each turn goes; no number here was typed by hand. What
is on HTTP ran in real time: the gateway as it is served, and simulated pods behind HTTP.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 1 when something that was to be shown was not."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.experiments.slo", description=__doc__)
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="DIR", help="for README.md")
    parser.add_argument(
        "--only",
        choices=SECTIONS,
        action="append",
        metavar="NAME",
        help="run this section alone; the others are put into the report as they were kept",
    )
    parser.add_argument(
        "--keep", type=Path, default=KEPT, metavar="DIR", help=f"where sections are kept (default {KEPT})"
    )
    parser.add_argument("--seeds", type=int, default=Effort().seeds, metavar="N", help="default 3")
    parser.add_argument("--short", action="store_true", help="one seed, nothing on HTTP: to look at the report")
    parser.add_argument("--jobs", type=int, metavar="N", help="processes (default: one per core)")
    options = parser.parse_args(arguments)
    effort = Effort(options.jobs, max(1, options.seeds), options.short, live=not options.short)
    try:
        for section in sections(options.only or [name for name in SECTIONS if name not in WHEN_ASKED]):
            keep(section, _told(section, effort), options.keep)
            told = [(each, found) for each in sections(SECTIONS) if (found := kept(each, options.keep)) is not None]
            options.out.mkdir(parents=True, exist_ok=True)
            (options.out / "README.md").write_text("\n".join(document(told)), encoding="utf-8")
    except (ExperimentError, TableError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0 if all(finding.met for _, one in told for finding in one.findings) else 1


def sections(names: Sequence[str]) -> list[Section]:
    """Those of that name."""
    found: list[Section] = []
    for name in names:
        found.append(importlib.import_module(f"loadtest.experiments.slo.{name}").SECTION)
    return found


def keep(section: Section, told: Told, folder: Path) -> None:
    """For a report that is put together later."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{section.name}.json").write_bytes(msgspec.json.encode(told))


def kept(section: Section, folder: Path) -> Told | None:
    """What it told last, None where it never ran."""
    try:
        return msgspec.json.decode((folder / f"{section.name}.json").read_bytes(), type=Told)
    except FileNotFoundError:
        return None


def document(told: Sequence[tuple[Section, Told]]) -> list[str]:
    """README.md, line by line."""
    lines = [*_HEAD.splitlines(), "", "| to be shown | measured | |", "|---|---|---|"]
    for _, one in told:
        for finding in one.findings:
            lines.append(f"| {finding.claim} | {finding.measured} | {'met' if finding.met else '**not met**'} |")
    for section, one in told:
        lines += ["", f"## {section.title}", "", *one.text]
    return [*lines, ""]


def _told(section: Section, effort: Effort) -> Told:
    began = time.monotonic()
    found = section.run(effort)
    print(f"{section.name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
