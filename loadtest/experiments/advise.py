"""Which split of N pods, which policy and which weights, for given traffic and targets?

Two rounds. The first tries every split with policy ppd and balanced weights, plain replicas too, over rates around the
wanted one; the second tries other weights and the static policies on the best split.

Rule of this room: a choice carries its rate when in every seed at least `GOOD` of all turns meet both targets. The
best choice carries the highest rate; of those that carry the same, the one that is best at the wanted rate.
Differences below `TIE` are ties, and a tie goes to what is simpler: replicas before a split, a static policy before
ppd.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from gateway.core.weights import BALANCED, PRESETS, Weights
from loadtest.experiments.book import Book, Configuration, Place
from loadtest.experiments.errors import ExperimentError
from loadtest.experiments.options import at_rate, traced
from loadtest.experiments.rows import Row
from loadtest.experiments.run import Spec
from loadtest.experiments.traffic import Stream
from loadtest.experiments.workloads import Recorded, Script

GOOD = 0.95
TIE = 0.005
SCALES = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
"""Of the wanted rate."""

TRIED: dict[str, Weights] = {"": BALANCED, **{name: weights for name, weights in PRESETS.items() if name != "balanced"}}
Runs = Callable[[Sequence[Spec]], list[Row]]


class Choice(NamedTuple):
    """One way to run the pods, and how it did. carried: the highest scale of the wanted rate, 0 for none."""

    configuration: Configuration
    carried: float
    goodput: float
    success: float
    ttft_p99_ms: float
    tpot_p99_ms: float
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class Advice:
    """rounds: the choices of both, the best first."""

    spec: Spec
    rate: float | None
    rounds: tuple[list[Choice], list[Choice]]
    rows: list[Row]

    @property
    def best(self) -> Choice:
        return self.rounds[1][0]


def splits(pods: int) -> list[str]:
    """Every P:D split of so many pods, and only replicas. Raises ExperimentError for fewer than 2."""
    if not 2 <= pods <= 64:
        raise ExperimentError("--pods: must be 2 to 64")
    counts = range(1, pods)
    if pods > 12:
        counts = range(1, pods, math.ceil(pods / 12))
    return [f"{pods}R", *(f"{count}P_{pods - count}D" for count in counts)]


def advise(base: Spec, pods: int, rate: float | None, seeds: Sequence[str], run: Runs) -> Advice:
    """base: everything but assignment, policy, rate and seed. rate: conversations per second, None for a trace."""
    rows = run([spec for name in splits(pods) for spec in _over_rates(base, name, "ppd", "", rate, seeds)])
    first = ranked(Book(rows), rate)
    best = first[0].configuration
    if best.only_replicas:
        best = next((each.configuration for each in first if not each.configuration.only_replicas), best)
    if not best.only_replicas:
        more = [("ppd", name) for name in TRIED if name] + [("pd", ""), ("local", ""), ("threshold", "")]
        rows += run(
            [spec for policy, name in more for spec in _over_rates(base, best.assignment, policy, name, rate, seeds)]
        )
    book = Book([row for row in rows if row.assignment in (best.assignment, f"{pods}R")])
    return Advice(base, rate, (first, ranked(book, rate)), rows)


def _over_rates(
    base: Spec, assignment: str, policy: str, weights: str, rate: float | None, seeds: Sequence[str]
) -> list[Spec]:
    replicas = Configuration(assignment, policy).only_replicas
    knobs = replace(base.knobs, weights=TRIED[weights])
    labels = (("weights", weights),) if weights else ()
    made = replace(base, assignment=assignment, policy="pd" if replicas else policy, knobs=knobs, labels=labels)
    return [replace(scaled(made, rate, scale), seed=seed) for scale in SCALES for seed in seeds]


def scaled(spec: Spec, rate: float | None, scale: float) -> Spec:
    """The same conversations at another rate; a trace is played faster."""
    if rate is not None:
        return at_rate(spec, rate * scale)
    streams = tuple(replace(stream, workload=_faster(stream, scale)) for stream in spec.streams)
    return replace(spec, streams=streams, labels=(*spec.labels, ("scale", f"{scale:g}")))


def _faster(stream: Stream, scale: float) -> Recorded:
    """A trace whose conversations begin so many times as fast. Thinking stays as it is."""
    recorded = stream.workload
    assert isinstance(recorded, Recorded)
    assert traced(recorded)
    scripts: list[Script] = [
        script._replace(at_s=script.at_s / scale) for script in recorded.recorded if script.at_s is not None
    ]
    return replace(recorded, recorded=scripts, name=recorded.name if scale == 1 else f"{recorded.name} ×{scale:g}")


def scale_of(place: Place, rate: float | None) -> float:
    if rate is not None:
        return (place.rate or rate) / rate
    _, times, scale = place.workload.rpartition(" ×")
    return float(scale) if times else 1.0


def ranked(book: Book, rate: float | None) -> list[Choice]:
    """The best first."""
    wanted = next(place for place in book.places if scale_of(place, rate) == 1.0)
    choices = [_choice(book, each, wanted, rate) for each in book.configurations(wanted)]
    return sorted(choices, key=_merit, reverse=True)


def _choice(book: Book, configuration: Configuration, wanted: Place, rate: float | None) -> Choice:
    carried = 0.0
    for place in sorted(book.places, key=lambda place: scale_of(place, rate)):
        if not all(row.all.goodput >= GOOD for row in book.rows(place, configuration)):
            break
        carried = scale_of(place, rate)

    def value(metric: str) -> float:
        found = book.value(wanted, configuration, metric).mean
        return math.inf if math.isnan(found) else found

    return Choice(
        configuration,
        carried,
        value("all.goodput"),
        value("all.success"),
        value("all.ttft_p99_ms"),
        value("all.tpot_p99_ms"),
        value("tokens_per_s"),
    )


def _merit(choice: Choice) -> tuple[float, ...]:
    simple = 2 if choice.configuration.only_replicas else 0 if choice.configuration.policy == "ppd" else 1
    goodput = round(choice.goodput / TIE)
    return choice.carried, goodput, simple, -choice.ttft_p99_ms
