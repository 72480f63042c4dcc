"""`python -m loadtest.bench loadtest`: how many streams the load test holds on one core, and what it costs.

Rule of this room: the server is the C mock, which costs next to nothing and sends a token of each stream every so many
milliseconds, so that the gaps that the load test measures can be held against the truth.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from loadtest.bench.proxy import build
from loadtest.bench.proxy.processes import ProcessError, Processes
from loadtest.live.endpoint import endpoint_of
from loadtest.live.errors import LoadtestError
from loadtest.live.run import Wishes, allow_files, carry_out
from loadtest.live.schedule import Arrivals, Window
from loadtest.live.talks import Synthetic

RAMP_S = 4.0
"""In which all streams begin."""


class Row(msgspec.Struct, frozen=True):
    """One measurement. Times in ms; events_per_s: while all streams are open. ok: answers that ended well.

    waited_share: of the time, in which other processes had the cores.
    """

    streams: int
    gap_ms: float
    ok: int
    open_at_once: int
    events_per_s: float
    cpu_share: float
    busiest_share: float
    us_per_event: float
    itl_p50_ms: float
    itl_p99_ms: float
    late_p99_ms: float
    lag_p99_ms: float
    waited_share: float | None


def add_command(commands: Any) -> None:
    """Mount the benchmark."""
    parser = commands.add_parser("loadtest", help="what the load test costs per token event, by concurrent streams")
    parser.add_argument("--streams", default="500,1000,2000", metavar="N,…", help="(default 500,1000,2000)")
    parser.add_argument("--gap-ms", type=float, default=50.0, help="between two tokens of a stream (default 50)")
    parser.add_argument("--hold-s", type=float, default=6.0, help="with all streams open (default 6)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    try:
        counts = [int(part) for part in options.streams.split(",")]
        tools = build.tools()
        allow_files(2 * max(counts))  # the mock inherits it
        rows = [_measured(tools.mock, count, options.gap_ms, options.hold_s) for count in counts]
    except (ValueError, build.CannotBuildError, ProcessError, LoadtestError) as error:
        print(f"bench loadtest: {error}", file=sys.stderr)
        return 2
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f} after; a token every {options.gap_ms:g} ms per stream")
    print(_table(rows))
    if options.json:
        print(json.dumps({"cpus": os.cpu_count(), "rows": [msgspec.structs.asdict(row) for row in rows]}))
    return 0


def _measured(mock: Path, streams: int, gap_ms: float, hold_s: float) -> Row:
    with tempfile.TemporaryDirectory(prefix="ppd-bench-") as folder, Processes(Path(folder)) as processes:
        gap_us = str(round(gap_ms * 1000))
        port = processes.start("mock", [mock, "--gap-us", gap_us]).await_port(r"^(\d+)$")
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_measure(f"http://127.0.0.1:{port}", streams, gap_ms, hold_s))


async def _measure(url: str, streams: int, gap_ms: float, hold_s: float) -> Row:
    tokens = round((RAMP_S + hold_s) * 1000 / gap_ms)
    wishes = Wishes(
        endpoints=[endpoint_of(url)],
        make_source=lambda per_word: Synthetic(1, 256, 1, tokens, 0.0, seed=1, tokens_per_word=per_word, fixed=True),
        arrivals=Arrivals(streams / RAMP_S, poisson=False),
        window=Window(0.0, RAMP_S * (1 + 0.5 / streams)),
        shows=False,
    )
    result, book = await carry_out(wishes)
    seen, group = result.overhead, result.arms[0].groups["all turns"]
    whole = [book.tokens_per_s[0, second] for second in range(round(RAMP_S) + 1, round(RAMP_S + hold_s) - 1)]

    def ms(seconds: float | None) -> float:
        return round((seconds or 0.0) * 1e3, 2)

    return Row(
        streams=streams,
        gap_ms=gap_ms,
        ok=group.ok,
        open_at_once=seen.most_in_flight,
        events_per_s=round(sum(whole) / max(1, len(whole))),
        cpu_share=round(seen.cpu_share, 3),
        busiest_share=round(seen.cpu_busiest_share, 3),
        us_per_event=round(seen.us_per_event or 0.0, 2),
        itl_p50_ms=ms(group.itl.p50),
        itl_p99_ms=ms(group.itl.p99),
        late_p99_ms=ms(seen.late_p99_s),
        lag_p99_ms=ms(seen.lag_p99_s),
        waited_share=None if seen.waited_share is None else round(seen.waited_share, 3),
    )


def _table(rows: list[Row]) -> str:
    lines = [
        f"  {'streams':>8} {'ok':>6} {'at once':>8} {'events/s':>9} {'CPU':>6} {'busiest s':>10} {'us/event':>9} "
        f"{'ITL P50':>8} {'ITL P99':>8} {'late P99':>9} {'lag P99':>8} {'waited for a core':>18}  (ms)"
    ]
    lines += [
        f"  {row.streams:>8} {row.ok:>6} {row.open_at_once:>8} {row.events_per_s:>9.0f} {row.cpu_share:>6.0%} "
        f"{row.busiest_share:>10.0%} {row.us_per_event:>9.1f} {row.itl_p50_ms:>8.1f} {row.itl_p99_ms:>8.1f} "
        f"{row.late_p99_ms:>9.1f} {row.lag_p99_ms:>8.1f} "
        f"{'-' if row.waited_share is None else format(row.waited_share, '.0%'):>18}"
        for row in rows
    ]
    return "\n".join(lines)
