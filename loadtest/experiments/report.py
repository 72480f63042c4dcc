"""A sweep as Markdown with plots, for a person.

Rule of this room: every number comes from rows, with its interval over seeds where there are several; where the traffic
is made up, the report says so above the first number.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from loadtest.experiments import plots
from loadtest.experiments.book import NAMES, Book, Configuration, Place
from loadtest.experiments.plots import Panel, Point
from loadtest.experiments.rows import Row
from loadtest.experiments.statistics import FEWEST, Interval

COLUMNS = (
    "first.ttft_p50_ms",
    "later.ttft_p50_ms",
    "later.ttft_p99_ms",
    "all.tpot_ok_ms",
    "all.e2e_mean_ms",
    "tokens_per_s",
    "all.success",
    "all.goodput",
)
WINNERS = ("later.ttft_ok_ms", "later.ttft_p99_ms", "all.tpot_ok_ms", "all.e2e_mean_ms", "tokens_per_s", "all.goodput")
_OVER_RATE = (
    "later.ttft_p50_ms",
    "later.ttft_p99_ms",
    "all.tpot_ok_ms",
    "all.e2e_mean_ms",
    "all.success",
    "all.goodput",
)


def write(rows: Sequence[Row], folder: Path, title: str, notes: Sequence[str] = ()) -> Path:
    """`report.md` and its PNGs in `folder`, which exists. Plots are left out where matplotlib is not installed."""
    book = Book(rows)
    lines = [f"# {title}", "", *_preface(book, rows, notes)]
    pictures = _draw(book, folder) if plots.available() else []
    lines += [f"![{text}]({name})\n" for name, text in pictures]
    for place in book.places:
        lines += _place(book, place)
    lines += _differences(book)
    lines += _winners(book)
    path = folder / "report.md"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _preface(book: Book, rows: Sequence[Row], notes: Sequence[str]) -> list[str]:
    turns, cpu_s = sum(row.simulated_turns for row in rows), sum(row.wall_s for row in rows)
    speed = f", {60 * turns / cpu_s:,.0f} turns per CPU minute" if cpu_s > 0 else ""
    lines = [f"Simulated in virtual time: {len(rows)} experiments, {turns:,} turns{speed}.", ""]
    lines += [f"- Profile: {', '.join(sorted({row.profile for row in rows}))}."]
    origins = dict.fromkeys((row.workload, row.origin) for row in rows)
    lines += [f"- Workload `{name}`: {origin}." for name, origin in origins]
    lines += [
        f"- Seeds: {len(book.seeds())}; ± is half of a 95 % interval, given three or more. All met the same traffic.",
        "- Failed, timed-out and never-sent turns count: as endless ones in percentiles, at their limit in means.",
    ]
    return [*lines, *(f"- {note}" for note in notes), ""]


def _place(book: Book, place: Place) -> list[str]:
    lines = [f"## {place}", "", f"| | {' | '.join(_heading(metric) for metric in COLUMNS)} | local | KV moved |"]
    lines.append("|---|" + "---:|" * (len(COLUMNS) + 2))
    for configuration in book.configurations(place):
        cells = [shown(metric, book.value(place, configuration, metric)) for metric in COLUMNS]
        local = shown("all.success", book.value(place, configuration, "all.local_share"))
        moved = book.value(place, configuration, "moved_bytes")
        lines.append(f"| {configuration} | {' | '.join(cells)} | {local} | {moved.mean / 1e9:.1f} GB |")
    return [*lines, ""]


def _heading(metric: str) -> str:
    return NAMES[metric] + (", ms" if metric.endswith("_ms") else ", %" if metric.startswith("all.") else "")


def shown(metric: str, value: Interval) -> str:
    """∞ for a percentile that lies among the failed turns."""
    if math.isnan(value.mean):
        return "∞" if metric.endswith("_ms") else "–"
    percent = metric in ("all.success", "all.goodput")
    scale = 100.0 if percent else 1.0
    digits = 1 if percent or abs(value.mean * scale) < 100 else 0
    text = f"{scale * value.mean:.{digits}f}"
    return f"{text} ± {scale * value.bar:.{digits}f}" if value.runs >= FEWEST else text


def _differences(book: Book) -> list[str]:
    """Against policy pd on the same pods, and against replicas, seed by seed."""
    lines: list[str] = []
    metrics = ("later.ttft_ok_ms", "all.tpot_ok_ms", "all.e2e_mean_ms", "tokens_per_s")
    for place in book.places:
        known = book.configurations(place)
        replicas = next((each for each in known if each.only_replicas), None)
        for ours in known:
            for theirs in (Configuration(ours.assignment, "pd"), replicas):
                if theirs is None or theirs not in known or ours == theirs or ours.only_replicas:
                    continue
                cells = [_change(book.difference(place, ours, theirs, metric)) for metric in metrics]
                lines.append(f"| {place} | {ours} | {theirs} | {' | '.join(cells)} |")
    if not lines:
        return []
    head = " | ".join(NAMES[metric] for metric in metrics)
    return [
        "## Differences",
        "",
        "Paired over seeds; bold where the 95 % interval leaves 0 out.",
        "",
        f"| where | | against | {head} |",
        "|---|---|---|" + "---:|" * len(metrics),
        *lines,
        "",
    ]


def _change(change: Interval) -> str:
    if math.isnan(change.mean):
        return "–"
    text = f"{100 * change.mean:+.1f} %"
    if change.runs < FEWEST:
        return text
    text += f" ± {100 * change.half:.1f}"
    return f"**{text}**" if change.sure else text


def _winners(book: Book) -> list[str]:
    """At how many places each configuration is best, be it by less than the noise; ties count for all."""
    places = [place for place in book.places if len(book.configurations(place)) > 1]
    if not places:
        return []
    counts = {metric: Counter(each for place in places for each in book.winners(place, metric)) for metric in WINNERS}
    lines = [
        "## Winners",
        "",
        f"Of {len(places)} places; ties count for all.",
        "",
        f"| | {' | '.join(NAMES[metric] for metric in WINNERS)} |",
        "|---|" + "---:|" * len(WINNERS),
    ]
    for configuration in book.configurations():
        lines.append(f"| {configuration} | {' | '.join(str(counts[metric][configuration]) for metric in WINNERS)} |")
    return [*lines, ""]


def _draw(book: Book, folder: Path) -> list[tuple[str, str]]:
    """(file, what it shows) of each plot."""
    pictures = []
    for workload in book.workloads:
        rates = book.rates(workload)
        safe = "".join(letter if letter.isalnum() else "_" for letter in workload)
        if len(rates) > 1:
            name = f"rate_{safe}.png"
            plots.draw(folder / name, f"{workload}: over the rate", over_rate(book, workload, _OVER_RATE))
            pictures.append((name, f"{workload}: latency, success and goodput over the rate"))
        name = f"pareto_{safe}.png"
        plots.draw(folder / name, f"{workload}: first token and throughput", [pareto(book, workload)])
        pictures.append((name, f"{workload}: P99 TTFT against tokens per second"))
    return pictures


def over_rate(book: Book, workload: str, metrics: Sequence[str]) -> list[Panel]:
    """One panel per metric, one line per configuration; a point is left out where it is endless."""
    panels = []
    for metric in metrics:
        series: dict[str, list[Point]] = {}
        for configuration in book.configurations():
            points = []
            for rate in book.rates(workload):
                value = book.value(Place(workload, rate), configuration, metric)
                if not math.isnan(value.mean):
                    points.append(Point(rate, value.mean, value.bar))
            if points:
                series[str(configuration)] = points
        unit = " (ms)" if metric.endswith("_ms") else ""
        log_y = metric.endswith("_ms") and "tpot" not in metric
        panels.append(
            Panel(NAMES[metric], "conversations per second", NAMES[metric] + unit, series, log_y=log_y, share=not unit)
        )
    return panels


def pareto(book: Book, workload: str) -> Panel:
    """P99 TTFT against tokens per second, a point per rate."""
    series: dict[str, list[Point]] = {}
    for configuration in book.configurations():
        points = []
        for place in book.places:
            ttft = book.value(place, configuration, "all.ttft_p99_ms").mean
            tokens = book.value(place, configuration, "tokens_per_s").mean
            if place.workload == workload and not math.isnan(ttft) and not math.isnan(tokens):
                points.append(Point(ttft, tokens, label="" if place.rate is None else f"{place.rate:g}/s"))
        if points:
            series[str(configuration)] = points
    return Panel(workload, "TTFT, P99 (ms)", "tokens per second", series, log_x=True, joined=False)
