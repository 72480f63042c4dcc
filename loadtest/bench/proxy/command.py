"""`python -m loadtest.bench proxy`.

Rule of this room: what people and machines read is put together here, from figures that were made elsewhere.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
from typing import Any

from loadtest.bench.proxy import build, targets, workloads
from loadtest.bench.proxy.measure import Bench, Effort, Sample
from loadtest.bench.proxy.processes import ProcessError
from loadtest.bench.proxy.results import Figures, Table, for_json, goals, ratios, table_of
from loadtest.bench.proxy.targets import DIRECT, Target

_HEAD = (
    f"  {'':<12} {'CPU us':>8} {'CPU us':>8} {'added TTFT ms':>17} {'gap P99':>9} {'RSS':>6} {'req/s':>7} "
    f"{'failed':>6}  {'CPU: of':>9} {'of':>6}\n"
    f"  {'':<12} {'/request':>8} {'/event':>8} {'P50':>8} {'P99':>8} {'ms':>9} {'MB':>6} {'':>7} {'':>6}  "
    f"{'router':>9} {'floor':>6}"
)


def add_command(commands: Any) -> None:
    """Mount the benchmark."""
    parser = commands.add_parser("proxy", help="what a proxy costs per request and per event, ours beside others")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--workloads", default="W1,W2,W3,W4,W5,W6", metavar="W1,…", help="default: all")
    parser.add_argument(
        "--targets", default=",".join(target.name for target in targets.TARGETS), metavar="NAME,…", help="default: all"
    )
    parser.add_argument("--rounds", type=_at_least_one, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.set_defaults(run=_run)


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _run(options: argparse.Namespace) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    _allow_many_files()
    try:
        asked = workloads.chosen(options.workloads)
        wanted = targets.chosen(options.targets)
        tools = build.tools()
    except (ValueError, build.CannotBuildError) as error:
        print(f"bench proxy: {error}", file=sys.stderr)
        return 2
    available, skipped = _prepare(wanted)
    effort = Effort(rounds=options.rounds, seconds=options.seconds)
    _print_head(available, skipped, effort)
    bench = Bench(tools, effort, _tell)
    samples: list[Sample] = []
    try:
        for workload in asked:
            found = bench.run(workload, [DIRECT, *available])
            samples += found
            _tell("")
            _print_workload(workload, table_of(found))
    except ProcessError as error:
        _tell("")
        print(f"bench proxy: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        _tell("")
        print("bench proxy: interrupted; everything is ended", file=sys.stderr)
        return 130
    table = table_of(samples)
    _print_goals(table)
    if options.json:
        head = {"rounds": effort.rounds, "seconds": effort.seconds, "cpus": os.cpu_count(), "skipped": skipped}
        print(json.dumps(head | for_json(table)))
    return 0


def _allow_many_files() -> None:
    """A thousand clients are more files than many a shell allows; what is started inherits this."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _prepare(wanted: list[Target]) -> tuple[list[Target], dict[str, str]]:
    """Those that can be measured, and why the others cannot."""
    available, skipped = [], {}
    for target in wanted:
        try:
            target.prepare()
        except build.CannotBuildError as error:
            skipped[target.name] = str(error)
        else:
            available.append(target)
    return available, skipped


def _tell(line: str) -> None:
    """A line that the next one takes the place of, where someone looks on."""
    if sys.stderr.isatty():
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)


def _print_head(available: list[Target], skipped: dict[str, str], effort: Effort) -> None:
    load = os.getloadavg()[0]
    print(
        f"{os.cpu_count()} CPUs, load {load:.1f} before; medians of {effort.rounds} rounds of {effort.seconds:g} s each"
    )
    for target in (DIRECT, *available):
        print(f"  {target.name:<12} {target.words}")
    for name, why in skipped.items():
        print(f"  {name:<12} skipped: {why}")


def _print_workload(workload: workloads.Workload, table: Table) -> None:
    print(f"\n{workload.name}: {workload.words}\n{_HEAD}")
    beside = ratios(table).get(workload.name, {})
    for target, figures in table[workload.name].items():
        print(_line(target, figures, beside.get(target, {})))
    sys.stdout.flush()


def _line(target: str, figures: Figures, beside: dict[str, float | None]) -> str:
    direct = target == "direct"
    p50, p99 = (
        (figures.ttft_p50_ms, figures.ttft_p99_ms) if direct else (figures.added_ttft_p50_ms, figures.added_ttft_p99_ms)
    )
    router, floor = beside.get("cpu_to_vllm-router"), beside.get("cpu_to_floor")
    return (
        f"  {target:<12} {_shown(figures.us_per_request, 0):>8} {_shown(figures.us_per_event):>8} "
        f"{'=' if direct else '+'}{_shown(p50, 2):>7} {'=' if direct else '+'}{_shown(p99, 2):>7} "
        f"{_shown(figures.gap_p99_ms):>9} {_shown(figures.rss_mb, 0):>6} {figures.requests_per_s:>7.0f} "
        f"{figures.failed:>6}  {_shown(router, 2):>9} {_shown(floor, 2):>6}"
    )


def _shown(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _print_goals(table: Table) -> None:
    found = goals(table)
    if not found:
        return
    print("\ngoals of ours")
    for goal in found:
        verdict = {True: "met", False: "MISSED", None: "not measured"}[goal.met]
        print(f"  {goal.words:<52} {_shown(goal.measured, 2):>10}  (at most {goal.limit:.2f})  {verdict}")
