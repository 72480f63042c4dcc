"""`python -m loadtest.soak [--minutes 10] [--rate 200] [--pods mock|simulated] [--json]`: see docs/performance.md.

Exit status 1 when something is wrong, 2 when it cannot begin.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from typing import Any

import uvloop

from loadtest.bench.proxy.build import CannotBuildError
from loadtest.soak.cluster import Cluster, pods_of
from loadtest.soak.ledger import Ledger
from loadtest.soak.pods import Pod
from loadtest.soak.report import Run, lines, report
from loadtest.soak.traffic import Traffic
from loadtest.soak.trouble import TroubleMaker
from loadtest.soak.watch import Spent, Watch, held_in_peace

RATE = 200.0
BOUND_KIB = 200.0
TTL_S = 10.0


async def tell(ledger: Ledger, cluster: Cluster, seconds: float) -> None:
    """A line a minute for whoever waits."""
    for minute in range(1, int(seconds / 60) + 1):
        await asyncio.sleep(60)
        said = f"{ledger.conversations:,} conversations, {sum(ledger.outcomes.values()):,} requests"
        said += f", {len(ledger.failures)} failed, {len(ledger.troubles)} troubles"
        print(f"minute {minute}: {said}, gateway {cluster.gateway.rss_kib / 1024:.1f} MiB", file=sys.stderr)


async def soak(pods: list[Pod], given: argparse.Namespace) -> dict[str, Any]:
    """Run it; the report."""
    seconds, ledger, watch = given.minutes * 60, Ledger(), Watch()
    async with Cluster(pods, given.ttl) as cluster:
        traffic = Traffic(cluster.url, pods[0], ledger, given.rate, given.seed)
        trouble = TroubleMaker(pods, ledger, given.seed)
        try:
            before = await held_in_peace(cluster, traffic)
            first = Spent.by(cluster)
            cluster.log.began_s = time.monotonic()
            await asyncio.gather(
                traffic.run(seconds),
                trouble.run(seconds),
                watch.run(cluster, seconds),
                tell(ledger, cluster, seconds),
            )
            last = Spent.by(cluster)
            routes = await cluster.metric_by("ppd_decisions_total", "route")
            after = await held_in_peace(cluster, traffic, before)
        finally:
            traffic.close()
        ledger.noticed, ledger.met = cluster.log.noticed, cluster.log.met
        run = Run(
            seconds=seconds,
            rate=given.rate,
            late_s=traffic.late_s,
            most_at_once=traffic.most_at_once,
            connections=traffic.opened,
            rss=watch.rss,
            table=watch.table,
            blocks=watch.blocks,
            before=before,
            after=after,
            spent=(first, last),
            bugs=cluster.log.bugs,
            routes=routes,
        )
    return report(ledger, run, given.max_slope)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=RATE, help="conversations that begin per second")
    parser.add_argument("--pods", choices=("mock", "simulated"), default="mock", help="mock: in C, at next to no cost")
    parser.add_argument("--max-slope", type=float, default=BOUND_KIB, help="KiB per minute that the gateway may grow")
    parser.add_argument("--ttl", type=float, default=TTL_S, help="seconds after which conversations are forgotten")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    try:
        pods = pods_of(given.pods)
    except CannotBuildError as error:
        print(f"soak: {error} (or give --pods simulated)", file=sys.stderr)
        return 2
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(soak(pods, given))
    print(json.dumps(found) if given.json else "\n".join(lines(found)))
    return 0 if found["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
