"""Figure 4 and what the paper says of ShareGPT and WildChat.

Rule of this room: the client is the paper's (500 conversations, 50 slots, no time to think, 180 s); 4R stands in every
comparison.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from loadtest.experiments.book import Book, Configuration, Place
from loadtest.experiments.client import Patience
from loadtest.experiments.paper.section import Findings, Picture, Scale, Section, labelled, percent, thin
from loadtest.experiments.plots import Panel, Point
from loadtest.experiments.published_chats import PUBLISHED, PublishedChats
from loadtest.experiments.rows import Row
from loadtest.experiments.run import Spec
from loadtest.experiments.statistics import NOTHING, Interval, interval
from loadtest.experiments.traffic import Extent, Stream

RATES = (1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0, 20.0)
TABLE3_RATES = (2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0, 20.0)
SPLITS = ("1P_3D", "2P_2D", "3P_1D")
POLICIES = ("pd", "local", "ppd")
REPLICAS = Configuration("4R", "")
PATIENCE = Patience(slots=50, first_token_s=180.0, turn_s=180.0)
HEALTHY = 0.95


def _specs(scale: Scale) -> list[Spec]:
    configurations = [("4R", "pd"), *((split, policy) for split in SPLITS for policy in POLICIES)]
    return [
        labelled(
            Spec(
                assignment=assignment,
                policy=policy,
                streams=(Stream(PublishedChats(name, PUBLISHED[name]), rate),),
                extent=Extent(conversations=scale.conversations),
                seed=f"chats/{seed}",
                patience=PATIENCE,
                tables=scale.tables.get(assignment) if policy == "ppd" else None,
            ),
            "chats",
        )
        for rate in reversed(thin(RATES, scale.rates))
        for name in PUBLISHED
        for assignment, policy in configurations
        for seed in range(scale.seeds)
    ]


def _evaluate(rows: Sequence[Row]) -> Findings:
    book, found = Book(rows), Findings()
    ours = found.ours
    places = book.places
    for place in places:
        for policy in ("pd", "ppd"):
            for split in SPLITS:
                key = f"figure4.{split}.{place.workload}.{place.rate:g}.{policy}"
                ours[key] = book.value(place, Configuration(split, policy), "all.e2e_mean_ms")
        ours[f"raw.4R.{place.workload}.{place.rate:g}.ttft"] = book.value(place, REPLICAS, "later.ttft_ok_ms")
        ours[f"raw.4R.{place.workload}.{place.rate:g}.e2e"] = book.value(place, REPLICAS, "all.e2e_mean_ms")
    ours["chats.ttft"] = percent(_mean_change(book, "later.ttft_ok_ms"))
    ours["transfers"] = percent(_transfers(book))
    success = [
        book.value(place, Configuration(split, "ppd"), "all.success").mean for place in places for split in SPLITS
    ]
    ours["chats.success.ppd"] = _exact(100 * min(success)) if success else NOTHING
    pd = [
        book.value(place, Configuration(split, "pd"), "all.success").mean >= HEALTHY
        for place in places
        for split in ("2P_2D", "3P_1D")
    ]
    ours["chats.success.pd"] = _exact(100 * sum(pd) / len(pd)) if pd else NOTHING
    ours |= _table3(book)
    found.pictures = [_figure4(book, name) for name in PUBLISHED]
    found.text = _against_replicas(book)
    return found


def _mean_change(book: Book, metric: str) -> Interval:
    """PPD against all through P: per seed, the mean over data sets, splits and rates of the change."""
    changes: dict[str, list[float]] = {}
    for place in book.places:
        for split in SPLITS:
            before = {row.seed: row for row in book.rows(place, Configuration(split, "pd"))}
            for row in book.rows(place, Configuration(split, "ppd")):
                one, other = row.later.ttft_ok_ms, before[row.seed].later.ttft_ok_ms
                if one is not None and other:
                    changes.setdefault(row.seed, []).append(one / other - 1)
    return interval([math.fsum(each) / len(each) for each in changes.values()])


def _transfers(book: Book) -> Interval:
    """By count, WildChat on 1P_3D, over all rates."""
    counts: dict[str, dict[str, int]] = {}
    for place in book.places:
        if place.workload == "wildchat":
            for policy in ("pd", "ppd"):
                for row in book.rows(place, Configuration("1P_3D", policy)):
                    seed = counts.setdefault(row.seed, {"pd": 0, "ppd": 0})
                    seed[policy] += row.moves
    return interval([each["ppd"] / each["pd"] - 1 for each in counts.values() if each["pd"]])


def _table3(book: Book) -> dict[str, Interval]:
    places = [place for place in book.places if place.workload == "wildchat" and place.rate in TABLE3_RATES]
    ours: dict[str, Interval] = {}
    for policy in POLICIES:
        counts = {"ttft": 0, "tpot": 0, "success": 0}
        for place in places:
            for split in SPLITS:
                among = [Configuration(split, each) for each in POLICIES]
                for name in ("ttft", "tpot"):
                    best = book.best(place, f"later.{name}_ok_ms", among)
                    counts[name] += best is not None and best.policy == policy
                counts["success"] += book.value(place, Configuration(split, policy), "all.success").mean == 1.0
        for name, count in counts.items():
            ours[f"table3.{policy}.{name}"] = _exact(float(count)) if places else NOTHING
    return ours


def _figure4(book: Book, name: str) -> Picture:
    panels = []
    rates = book.rates(name)
    for metric, title in (
        ("all.e2e_mean_ms", "mean query latency (ms)"),
        ("later.ttft_ok_ms", "turn 2+ TTFT, mean (ms)"),
        ("all.tpot_ok_ms", "TPOT, mean (ms)"),
        ("all.success", "success"),
    ):
        series = {}
        for configuration in book.configurations():
            if configuration.policy == "local":
                continue
            points = []
            for rate in rates:
                value = book.value(Place(name, rate), configuration, metric)
                if not math.isnan(value.mean):
                    points.append(Point(rate, value.mean, value.bar))
            series[str(configuration)] = points
        panels.append(
            Panel(title, "conversations per second", title, series, log_y="TTFT" in title, share=title == "success")
        )
    return Picture(f"latency_{name}", f"Over the rate, {name}-like conversations (figure 4)", panels)


def _against_replicas(book: Book) -> list[str]:
    lines = [
        "PPD against plain replicas with affinity (4R), which the paper's figure leaves out; means over rates:",
        "",
        "| | turn 2+ TTFT | TPOT | query latency | tokens/s |",
        "|---|---:|---:|---:|---:|",
    ]
    metrics = ("later.ttft_ok_ms", "all.tpot_ok_ms", "all.e2e_mean_ms", "tokens_per_s")
    for split in SPLITS:
        for name in PUBLISHED:
            cells = []
            for metric in metrics:
                changes = [
                    book.difference(Place(name, rate), Configuration(split, "ppd"), REPLICAS, metric).mean
                    for rate in book.rates(name)
                ]
                known = [change for change in changes if not math.isnan(change)]
                cells.append(f"{100 * math.fsum(known) / len(known):+.0f} %" if known else "–")
            lines.append(f"| {split}, {name} | {' | '.join(cells)} |")
    return [*lines, ""]


def _exact(value: float) -> Interval:
    return Interval(value, math.nan, 1)


SECTION = Section(
    "chats",
    "ShareGPT and WildChat",
    "500 conversations made up after the published statistics of each data set, 50 client slots, no time to think.",
    _specs,
    _evaluate,
)
