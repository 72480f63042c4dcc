"""Figure 1: 10,000 tokens in, 100 out, five turns: far more than the pods can prefill.

Rule of this room: "D-local" is x = 1, the baselines are x = 0; of each, the point with the most tokens per second.
4R is drawn beside them, which the paper does not.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadtest.experiments.assignments import PAPER
from loadtest.experiments.book import Book, Configuration
from loadtest.experiments.client import Patience
from loadtest.experiments.paper.section import Findings, Picture, Scale, Section, labelled
from loadtest.experiments.plots import Panel, Point
from loadtest.experiments.rows import Row
from loadtest.experiments.run import Hardware, Spec
from loadtest.experiments.statistics import NOTHING
from loadtest.experiments.traffic import Extent, Stream
from loadtest.experiments.workloads import LongTurns

RATES = (0.5, 1.0, 1.5)
WORKLOAD = LongTurns("10k_in_100_out", 5, 10_000, 10_000, 100)
MAX_MODEL_LEN = 65_536
_SHOWN = [static for static in PAPER if static.family in ("replica", "x=0", "x=1")]


def _specs(scale: Scale) -> list[Spec]:
    return [
        labelled(
            Spec(
                assignment=static.name,
                policy=static.policy,
                streams=(Stream(WORKLOAD, rate),),
                extent=Extent(until_s=scale.burst_s),
                seed=f"pareto/{seed}",
                hardware=Hardware(max_model_len=MAX_MODEL_LEN),
                patience=Patience(first_token_s=120.0, turn_s=120.0),
            ),
            "pareto",
        )
        for rate in RATES
        for static in _SHOWN
        for seed in range(scale.seeds)
    ]


def _evaluate(rows: Sequence[Row]) -> Findings:
    book, found = Book(rows), Findings()
    panels = []
    for place in book.places:
        for name, family in (("local", "x=1"), ("base", "x=0")):
            among = [_configuration(static.name, static.policy) for static in _SHOWN if static.family == family]
            best = book.best(place, "tokens_per_s", among)
            value = NOTHING if best is None else book.value(place, best, "all.ttft_p99_ms")
            found.ours[f"figure1.{place.rate:g}.{name}.ttft"] = value
        series = {}
        for static in _SHOWN:
            configuration = _configuration(static.name, static.policy)
            ttft = book.value(place, configuration, "all.ttft_p99_ms").mean
            tokens = book.value(place, configuration, "tokens_per_s").mean
            if ttft == ttft:
                series[static.name] = [Point(ttft, tokens, label=static.name)]
        panels.append(Panel(f"{place.rate:g} conversations/s", "TTFT, P99 (ms)", "tokens/s", series, joined=False))
    found.pictures = [Picture("pareto", "10,000 tokens in, 100 out, five turns (figure 1)", panels, 3)]
    return found


def _configuration(name: str, policy: str) -> Configuration:
    found = Configuration(name, policy)
    return found._replace(policy="") if found.only_replicas else found


SECTION = Section(
    "pareto",
    "Long prompts",
    "Conversations of five turns of 10,000 tokens, 30 s of arrivals.",
    _specs,
    _evaluate,
)
