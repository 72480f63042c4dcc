"""The report, in Markdown.

Rule of this room: everything in it comes from the `Result`; the plots are beside it and may be missing.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadtest.live.compare import CONFIDENCE
from loadtest.live.results import Result
from loadtest.live.text import (
    count_rows,
    difference_rows,
    fault_lines,
    latency_rows,
    markdown,
    notes,
    overhead_line,
)


def report(result: Result, plots: Sequence[tuple[str, str]] = ()) -> str:
    """plots: (file name, caption)."""
    setup = result.setup
    parts = ["# Load test", _setup_table(result)]
    parts += [f"> **{warning}**" for warning in result.overhead.warnings]
    if result.differences:
        parts += [
            "## B beside A",
            f"**Verdict: {result.verdict}.**",
            markdown(difference_rows(result)),
            "Times in ms. The intervals are bootstrapped over conversations (a pair is drawn together) and hold "
            f"all at once with {CONFIDENCE:.0%}.",
        ]
    for arm in result.arms:
        parts += [f"## {arm.name}: {arm.url}", markdown(count_rows(arm.groups))]
        parts.append(markdown(latency_rows(arm.groups, service=True)))
    faults = fault_lines(result)
    if faults:
        parts += ["## Failures", "\n".join(f"- {line}" for line in faults)]
    parts += [f"![{caption}]({name})" for name, caption in plots]
    parts += ["## How to read this", "\n".join(f"- {note}" for note in notes(result))]
    if setup.slo:
        parts.append(f"- Good turns are those with {setup.slo}.")
    parts += ["## The load test itself", overhead_line(result.overhead).capitalize() + "."]
    return "\n\n".join(parts) + "\n"


def _setup_table(result: Result) -> str:
    setup = result.setup
    counted = f"of which the first {setup.warmup_s:g} s do not count" if setup.warmup_s else "all counted"
    rows = [
        ["", ""],
        ["begun", setup.began],
        ["models", ", ".join(setup.models)],
        ["API", f"{setup.api}, streamed"],
        ["workload", setup.workload],
        ["arrivals", setup.arrivals],
        ["duration", f"{setup.end_s:g} s, {counted}"],
        ["time-outs", f"{setup.first_token_timeout_s:g} s to the first token, {setup.timeout_s:g} s to the end"],
        ["seed", str(setup.seed)],
    ]
    if setup.assignment:
        rows.append(["assignment", setup.assignment])
    return markdown(rows)
