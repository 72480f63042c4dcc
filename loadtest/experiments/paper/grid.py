"""Tables 1, 2, 3 and 5: 17 node assignments × 18 workloads × 10 rates, ten seconds of arrivals each.

Rule of this room: the client is the paper's (50 slots, no time to think, 120 s), the gateway is ours. Averages for
table 1 are ratios of means over workloads, as the paper's are, but over all of them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from loadtest.experiments import workloads
from loadtest.experiments.assignments import PAPER
from loadtest.experiments.book import Book, Configuration, Place
from loadtest.experiments.client import Patience
from loadtest.experiments.paper.section import Findings, Picture, Scale, Section, labelled, percent, thin
from loadtest.experiments.plots import Panel, Point
from loadtest.experiments.rows import Row
from loadtest.experiments.run import Spec
from loadtest.experiments.statistics import NOTHING, Interval, interval
from loadtest.experiments.traffic import Extent, Stream
from loadtest.fit.benchmark import REHASHED

RATES = (0.5, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 16.0, 20.0)
LOADS = {"low": (0.5, 1.0, 2.0), "mid": (4.0, 6.0, 8.0), "high": (12.0, 16.0, 20.0)}
HEALTHY = 0.95
PATIENCE = Patience(slots=50, first_token_s=120.0, turn_s=120.0)
METRICS = {"ttft": "later.ttft_ok_ms", "tpot": "later.tpot_ok_ms", "throughput": "tokens_per_s"}
_TWINS = {"1P_3D": "1P_3pD", "2P_2D": "2P_2pD", "3P_1D": "3P_1pD"}
_POLICY = {static.name: static.policy for static in PAPER}
_FAMILIES = {static.name: static.family for static in PAPER}


def _specs(scale: Scale) -> list[Spec]:
    chosen = thin(workloads.PAPER, scale.workloads)
    return [
        labelled(
            Spec(
                assignment=static.name,
                policy=static.policy,
                streams=(Stream(workload, rate),),
                extent=Extent(until_s=10.0),
                seed=f"grid/{seed}",
                patience=PATIENCE,
            ),
            "grid",
        )
        for rate in thin(RATES, scale.rates)
        for workload in chosen
        for static in PAPER
        for seed in range(scale.grid_seeds)
    ]


def _evaluate(rows: Sequence[Row]) -> Findings:
    book, found = Book(rows), Findings()
    found.ours |= _table1(rows)
    found.ours |= _winners(book)
    found.ours |= _failures(rows)
    found.pictures = [_over_rate(book)]
    found.text = [*_misrouted(found.ours), *_family_table(book)]
    return found


def _table1(rows: Sequence[Row]) -> dict[str, Interval]:
    """Ratio of the means over workloads, per seed."""
    sums: dict[tuple[str, str, float], list[float]] = defaultdict(list)
    for row in rows:
        if row.later.ttft_ok_ms is not None and row.rate is not None:
            sums[row.seed, row.assignment, row.rate].append(row.later.ttft_ok_ms)
    seeds = sorted({row.seed for row in rows})
    ours = {}
    for name, twin in _TWINS.items():
        for load, rates in LOADS.items():
            changes = []
            for seed in seeds:
                before = [value for rate in rates for value in sums[seed, name, rate]]
                after = [value for rate in rates for value in sums[seed, twin, rate]]
                if before and after:
                    changes.append(math.fsum(after) / len(after) / (math.fsum(before) / len(before)) - 1)
            ours[f"table1.{name}.{load}"] = percent(interval(changes)) if changes else NOTHING
    return ours


def _misrouted(ours: dict[str, Interval]) -> list[str]:
    """Table 1 as it would be, had the prototype's mistake been made here."""
    lines = [
        f"In the prototype {100 * REHASHED:.0f} % of the follow-ups of x=1 were taken for first turns and went through "
        "P. With that share of ours taken at the price of x=0, table 1 would be:",
        "",
        f"| | {' | '.join(LOADS)} |",
        "|---|" + "---:|" * len(LOADS),
    ]
    for name in _TWINS:
        changes = [(1 - REHASHED) * ours[f"table1.{name}.{load}"].mean for load in LOADS]
        lines.append(f"| {name} | {' | '.join('–' if math.isnan(each) else f'{each:.1f} %' for each in changes)} |")
    return [*lines, ""]


def _winners(book: Book) -> dict[str, Interval]:
    """Shares of places, per family, a tie shared; and how often no configuration wins both TTFT and TPOT."""
    places = book.places
    best = {name: [book.winners(place, metric) for place in places] for name, metric in METRICS.items()}
    ours = {}
    for name, winners in best.items():
        shares = dict.fromkeys(_FAMILIES.values(), 0.0)
        for tied in winners:
            for each in tied:
                shares[_FAMILIES[each.assignment]] += 1 / len(tied)
        for family, share in shares.items():
            ours[f"winners.{family}.{name}"] = _share(share, len(places))
    differ = sum(not set(one) & set(other) for one, other in zip(best["ttft"], best["tpot"], strict=True))
    ours["winners.differ"] = _share(differ, len(places))
    return ours


def _failures(rows: Iterable[Row]) -> dict[str, Interval]:
    """Share of workloads of which fewer than 95 % of turns end well within 30 s: where P95 is above, or endless."""
    failed: dict[tuple[str, float], list[bool]] = defaultdict(list)
    for row in rows:
        if row.rate is not None:
            failed[row.assignment, row.rate].append(row.within_30_s < HEALTHY)
    names = {"3P_1D": "3P_1D.x0", "3P_1pD": "3P_1D.x1", "2P_2D": "2P_2D.x0", "2P_2pD": "2P_2D.x1", "4R": "4R"}
    return {
        f"failures.{names[assignment]}.{rate:g}": _share(sum(each), len(each))
        for (assignment, rate), each in failed.items()
        if assignment in names
    }


def _share(count: float, of: int) -> Interval:
    return Interval(100 * count / of, math.nan, 1) if of else NOTHING


def _over_rate(book: Book) -> Picture:
    """Means over the workloads."""
    shown = ("4R", "1P_3D", "1P_3pD", "2P_2D", "2P_2pD", "3P_1D", "3P_1pD")
    rates = sorted({place.rate for place in book.places if place.rate is not None})
    names = {"later.ttft_ok_ms": "turn 2 TTFT (ms)", "later.tpot_ok_ms": "turn 2 TPOT (ms)", "tokens_per_s": "tokens/s"}
    panels = []
    for metric, title in names.items():
        series = {}
        for name in shown:
            configuration = Configuration(name, "" if name == "4R" else _POLICY[name])
            series[name] = [
                Point(rate, value)
                for rate in rates
                if not math.isnan(value := _mean_over(book, configuration, rate, metric))
            ]
        panels.append(Panel(title, "conversations per second", title, series, log_y="TTFT" in title))
    return Picture("grid", "Means over the 18 synthetic workloads", panels, 3)


def _mean_over(book: Book, configuration: Configuration, rate: float, metric: str) -> float:
    values = [book.value(Place(workload, rate), configuration, metric).mean for workload in book.workloads]
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan


def _family_table(book: Book) -> list[str]:
    """How near the families are: the best of each against the best of all, on average over places."""
    families = list(dict.fromkeys(_FAMILIES.values()))
    lines = ["How far the best of each family is behind the best of all, on average over the places:", ""]
    lines += [f"| | {' | '.join(METRICS)} |", "|---|" + "---:|" * len(METRICS)]
    for family in families:
        cells = [_behind(book, family, metric) for metric in METRICS.values()]
        lines.append(f"| {family} | {' | '.join(cells)} |")
    return [*lines, ""]


def _behind(book: Book, family: str, metric: str) -> str:
    """On average over the places, of the best of the family against the best of all."""
    pick: Callable[[list[float]], float] = max if metric == "tokens_per_s" else min
    gaps = []
    for place in book.places:
        values = {each: book.value(place, each, metric).mean for each in book.configurations(place)}
        known = {each: value for each, value in values.items() if not math.isnan(value)}
        ours = [value for each, value in known.items() if _FAMILIES[each.assignment] == family]
        if ours:
            gaps.append(abs(pick(ours) / pick(list(known.values())) - 1))
    return f"{100 * math.fsum(gaps) / len(gaps):.1f} %" if gaps else "–"


SECTION = Section(
    "grid",
    "The synthetic grid",
    "17 node assignments, 18 two-turn workloads, 10 rates, 10 s of Poisson arrivals, 50 client slots, no thinking.",
    _specs,
    _evaluate,
)
