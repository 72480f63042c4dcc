"""`ppd-gateway advise`: the P:D split, policy and weights for your traffic, pods and targets, with the simulated curve.

Rule of this room: what is printed is the recommendation, why, and what else was tried, so a person can disagree.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadtest.experiments import options, plots, sources
from loadtest.experiments.advise import GOOD, SCALES, Advice, Choice, advise, scale_of
from loadtest.experiments.book import Book
from loadtest.experiments.errors import ExperimentError
from loadtest.experiments.plots import Panel, Point
from loadtest.experiments.rows import Row, write_jsonl
from loadtest.experiments.run import Spec
from loadtest.experiments.sweep import check_jobs, progress, run_all
from loadtest.experiments.workloads import Workload


def add_command(commands: Any) -> None:
    """Mount the command on an argparse sub-parser group."""
    parser = commands.add_parser(
        "advise", help="recommend a P:D split and weights", description=__doc__, allow_abbrev=False
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--trace", type=Path, metavar="FILE", help="recorded turns, or a gateway's access lines")
    what.add_argument("--workload", metavar="NAME", help=sources.HELP)
    parser.add_argument(
        "--rate", type=float, metavar="R", help="conversations that begin per second (not with --trace)"
    )
    parser.add_argument("--pods", type=int, default=4, metavar="N", help="how many there are to split (default 4)")
    options.add_traffic(parser)
    options.add_pods(parser)
    options.add_output(parser)
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Returns the exit status. Raises ConfigError, TableError."""
    jobs = check_jobs(given.jobs)
    workload, rate = _traffic(given)
    base = options.base(given, workload)

    def play(specs: Sequence[Spec]) -> list[Row]:
        ready = options.with_tables(specs, given)
        with progress(len(ready), "advise", quiet=given.quiet) as on_row:
            return run_all(ready, jobs, on_row)

    advice = advise(base, given.pods, rate, options.seeds(given), play)
    lines = text(advice)
    print("\n".join(lines))
    if given.out is not None:
        print(f"\n{save(advice, lines, given.out)}")
    return 0


def _traffic(given: argparse.Namespace) -> tuple[Workload, float | None]:
    """Raises ExperimentError."""
    if given.trace is not None:
        if given.rate is not None:
            raise ExperimentError("--rate: a trace has its own times")
        return sources.resolve(f"trace:{given.trace}"), None
    workload = sources.resolve(given.workload)
    if options.traced(workload):
        return workload, None
    if given.rate is None:
        raise ExperimentError("--rate: say how many conversations begin per second")
    return workload, options.rates(str(given.rate))[0]


def text(advice: Advice) -> list[str]:
    """The recommendation, for a terminal or a file: Markdown."""
    best, slo = advice.best, advice.spec.slo
    target = f"TTFT ≤ {1000 * slo.ttft_s:g} ms and TPOT ≤ {1000 * slo.tpot_s:g} ms"
    lines = [f"# {_name(best)}", ""]
    if best.carried >= 1:
        lines.append(
            f"It carries {best.carried:g} times the wanted traffic with at least {100 * GOOD:g} % of turns at "
            f"{target}; at the wanted traffic {100 * best.goodput:.1f} % are, P99 TTFT {_ms(best.ttft_p99_ms)}, "
            f"P99 TPOT {_ms(best.tpot_p99_ms)}, {best.tokens_per_s:.0f} tokens/s."
        )
    else:
        lines.append(
            f"**No choice meets the target ({target}) at the wanted traffic**; this one comes nearest with "
            f"{100 * best.goodput:.1f} % of turns. More pods, or other targets, are needed."
        )
    lines += ["", *_why(advice), ""]
    if best.carried == SCALES[-1]:
        lines += [f"More than {SCALES[-1]:g} times the traffic was not tried: fewer pods may do.", ""]
    origins = [stream.workload.origin for stream in advice.spec.streams]
    lines += [f"Traffic: {'; '.join(origins)}. Pods: profile {advice.spec.hardware.profile}, simulated.", ""]
    for title, choices in zip(("Splits, policy ppd", "On the best split"), advice.rounds, strict=True):
        lines += [f"## {title}", "", "| | carries | goodput | success | P99 TTFT | P99 TPOT | tokens/s |"]
        lines += ["|---|---:|---:|---:|---:|---:|---:|", *(_row(choice) for choice in choices), ""]
    lines += _curve(advice)
    return lines


def _why(advice: Advice) -> list[str]:
    """Against the next choice of each round."""
    lines = []
    best = advice.best
    for what, choices in zip(("split", "policy or weights"), advice.rounds, strict=True):
        others = [each for each in choices if each.configuration != best.configuration]
        if what == "split":
            others = [each for each in others if each.configuration.assignment != best.configuration.assignment]
        if not others:
            continue
        other = others[0]
        if best.carried != other.carried:
            why = f"carries {best.carried:g}× where {_name(other)} carries {other.carried:g}×"
        elif abs(best.goodput - other.goodput) > 1e-9:
            why = (
                f"both carry {best.carried:g}×; {100 * best.goodput:.1f} % of turns meet the targets at the wanted "
                f"traffic, {100 * other.goodput:.1f} % with {_name(other)}"
            )
        else:
            why = f"as good as {_name(other)}, and simpler or with a lower P99 TTFT"
        lines.append(f"- Next best {what}: {why}.")
    return lines


def _curve(advice: Advice) -> list[str]:
    """Goodput over the traffic."""
    book = Book(advice.rows)
    places = sorted(book.places, key=lambda place: scale_of(place, advice.rate))
    heads = [f"{scale_of(place, advice.rate):g}×" for place in places]
    lines = ["## Goodput over the traffic", "", f"| | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    for configuration in book.configurations():
        cells = [book.value(place, configuration, "all.goodput").mean for place in places]
        shown = " | ".join("–" if math.isnan(cell) else f"{100 * cell:.0f} %" for cell in cells)
        lines.append(f"| {configuration} | {shown} |")
    return lines


def _row(choice: Choice) -> str:
    return (
        f"| {choice.configuration} | {choice.carried:g}× | {100 * choice.goodput:.1f} % | {100 * choice.success:.1f} % "
        f"| {_ms(choice.ttft_p99_ms)} | {_ms(choice.tpot_p99_ms)} | {choice.tokens_per_s:.0f} |"
    )


def _name(choice: Choice) -> str:
    configuration = choice.configuration
    if configuration.only_replicas:
        return f"{configuration.assignment}: plain replicas with affinity"
    weights = f", weights {configuration.weights}" if configuration.weights else ""
    return f"{configuration.assignment}, policy {configuration.policy}{weights}"


def _ms(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:.0f} ms" if value >= 100 else f"{value:.1f} ms"


def save(advice: Advice, lines: Sequence[str], folder: Path) -> Path:
    """advice.md, results.jsonl and the curve. Raises ExperimentError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_jsonl(advice.rows, folder / "results.jsonl")
        picture = []
        if plots.available():
            plots.draw(folder / "advice.png", "Goodput over the traffic", [_panel(advice)])
            picture = ["", "![Goodput over the traffic](advice.png)"]
        path = folder / "advice.md"
        path.write_text("\n".join([*lines, *picture]) + "\n", encoding="utf-8")
    except OSError as error:
        raise ExperimentError(f"--out {folder}: {error.strerror}") from None
    return path


def _panel(advice: Advice) -> Panel:
    book = Book(advice.rows)
    places = sorted(book.places, key=lambda place: scale_of(place, advice.rate))
    series: dict[str, list[Point]] = {}
    for configuration in book.configurations():
        points = []
        for place in places:
            value = book.value(place, configuration, "all.goodput")
            if not math.isnan(value.mean):
                points.append(Point(scale_of(place, advice.rate), value.mean, value.bar))
        series[str(configuration)] = points
    return Panel("", "times the wanted traffic", "share of turns within the targets", series, share=True)
