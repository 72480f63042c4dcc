"""`ppd-gateway simulate`: policies × node assignments × workloads × rates × seeds on simulated pods, in virtual time.

Rule of this room: arguments in, specs out, rows into files. Everything is checked before the first experiment.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from loadtest.experiments import assignments, options, report, scenario, sources
from loadtest.experiments.book import NAMES, Book, Configuration
from loadtest.experiments.errors import ExperimentError
from loadtest.experiments.report import COLUMNS, shown
from loadtest.experiments.rows import Row, write_jsonl, write_parquet
from loadtest.experiments.run import Spec
from loadtest.experiments.scenario import Event, Kill, Restart, Slow
from loadtest.experiments.sweep import check_jobs, progress, run_all

MAX_EXPERIMENTS = 100_000


def add_command(commands: Any) -> None:
    """Mount the command on an argparse sub-parser group."""
    parser = commands.add_parser(
        "simulate", help="try policies on simulated pods, in virtual time", description=__doc__, allow_abbrev=False
    )
    parser.add_argument(
        "--assignments", default="1P_3D", metavar="π,π", help="like 1P_3D,2P_2D,1P_1D_2pD (default 1P_3D)"
    )
    parser.add_argument("--policies", default="pd,local,ppd", metavar="NAME,NAME", help="default pd,local,ppd")
    parser.add_argument(
        "--weights", default="balanced", metavar="W", help="of ppd; several: 'ttft=1,tpot=1 ttft=1,tpot=6'"
    )
    parser.add_argument(
        "--workload", action="append", metavar="NAME", help=f"{sources.HELP} (default chat); may be given several times"
    )
    parser.add_argument("--rates", default="1,2,4,8", metavar="R,R", help="conversations that begin per second")
    parser.add_argument(
        "--event", action="append", default=[], metavar="E", help="'30 slow d0 2', '30 kill d1', '60 rate 9', …"
    )
    parser.add_argument("--no-replicas", action="store_true", help="leave out as many plain replicas as there are pods")
    options.add_traffic(parser)
    options.add_pods(parser)
    options.add_output(parser)
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Returns the exit status. Raises ConfigError, TableError."""
    jobs = check_jobs(given.jobs)
    specs = specs_of(given)
    specs = options.with_tables(specs, given)
    with progress(len(specs), "simulate", quiet=given.quiet) as on_row:
        rows = run_all(specs, jobs, on_row)
    print(table(rows))
    if given.out is not None:
        print(f"\n{save(rows, given.out, 'Simulated policies', given.event)}")
    return 0


def specs_of(given: argparse.Namespace) -> list[Spec]:
    """All experiments, without tables."""
    names = list(dict.fromkeys(given.assignments.split(",")))
    clusters = {name: assignments.parse(name) for name in names}
    if not given.no_replicas:
        for count in sorted({cluster.num_pods for cluster in clusters.values()}):
            clusters.setdefault(f"{count}R", assignments.parse(f"{count}R"))
    events = [scenario.parse(text) for text in given.event]
    weights = options.weights(given.weights)
    specs: list[Spec] = []
    for workload in options.workloads(given.workload or ["chat"]):
        base = options.base(given, workload, events)
        rates: list[float | None] = [None] if options.traced(workload) else [*options.rates(given.rates)]
        for rate in rates:
            for name, cluster in clusters.items():
                for policy in options.policies(given.policies) if cluster.prefill else ["pd"]:
                    specs += _seeded(given, options.at_rate(base, rate), name, policy, weights)
    if len(specs) > MAX_EXPERIMENTS:
        raise ExperimentError(f"{len(specs)} experiments are more than {MAX_EXPERIMENTS}")
    return specs


def _seeded(given: argparse.Namespace, base: Spec, name: str, policy: str, weights: Sequence[Any]) -> list[Spec]:
    several = len(weights) > 1
    weighted = weights if policy not in options.WITHOUT_TABLE else weights[:1]
    pods = {pod.url for pod in assignments.parse(name).pods()}
    return [
        replace(
            base,
            assignment=name,
            policy=policy,
            seed=seed,
            knobs=replace(base.knobs, weights=each),
            events=_for(base.events, pods),
            labels=(("weights", text),) if several and policy not in options.WITHOUT_TABLE else (),
        )
        for text, each in weighted
        for seed in options.seeds(given)
    ]


def _for(events: Sequence[Event], pods: set[str]) -> tuple[Event, ...]:
    """An event names a pod by its place: on a cluster without such a pod, the pod at the same place of all."""
    order = sorted(pods)
    found: list[Event] = []
    for event in events:
        if not isinstance(event, Slow | Kill | Restart) or event.pod in pods:
            found.append(event)
        elif event.pod[:1] in "rpd" and event.pod[1:].isdigit():
            found.append(replace(event, pod=order[int(event.pod[1:]) % len(order)]))
        else:
            scenario.check([event], order)
    return tuple(found)


def table(rows: Sequence[Row]) -> str:
    """For the terminal."""
    book = Book(rows)
    lines = []
    for place in book.places:
        lines.append(f"{place}")
        head = [_short(metric) for metric in COLUMNS]
        lines.append(f"  {'':<22}" + "".join(f"{name:>17}" for name in head))
        for configuration in book.configurations(place):
            lines.append(_line(book, place, configuration))
        lines.append("")
    return "\n".join(lines).rstrip()


def _line(book: Book, place: Any, configuration: Configuration) -> str:
    cells = [shown(metric, book.value(place, configuration, metric)) for metric in COLUMNS]
    return f"  {configuration!s:<22}" + "".join(f"{cell:>17}" for cell in cells)


def _short(metric: str) -> str:
    return NAMES[metric].replace("turn 2+", "T2+").replace("turn 1", "T1").replace("goodput under the SLO", "goodput %")


def save(rows: Sequence[Row], folder: Path, title: str, events: Sequence[str] = ()) -> str:
    """Write results, report and plots; says where. Raises ExperimentError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_jsonl(rows, folder / "results.jsonl")
        write_parquet(rows, folder / "results.parquet")
        notes = [f"Events: {'; '.join(events)} (seconds)."] if events else []
        return f"{report.write(rows, folder, title, notes)}"
    except OSError as error:
        raise ExperimentError(f"--out {folder}: {error.strerror}") from None
