"""What the demo does, in order.

Rule of this room: no details. Whatever is started here is ended by the `async with` it was started in.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.console import Console

from loadtest import conversations
from loadtest.conversations import PlayedTurn, Script, TurnFailedError
from loadtest.demo import cluster as clusters
from loadtest.demo import counters, lateness, report, screen, traffic
from loadtest.demo.children import Children, DemoError
from loadtest.demo.cluster import Cluster
from loadtest.demo.options import Options
from loadtest.demo.record import Ledger, Row
from loadtest.demo.summary import Run, Summary, change, run_of, same_traffic

LOG_S = 10.0
"""How long the gateway's line of a request may lag behind its answer."""
TITLES = {
    "ppd": "Policy ppd: turn 1 through P, later turns as the table measured on simulated pods says",
    "pd": "Policy pd: the same conversations with every turn through P, on a gateway and pods of their own",
}


class LateLogError(Exception):
    """A request is missing in the gateway's log."""


@dataclass(frozen=True, slots=True)
class Played:
    """A run and what was said in it."""

    run: Run
    turns: Sequence[PlayedTurn]


class Story:
    """`told` is true once the summary is out: from then on, being interrupted is the proper end."""

    def __init__(self, options: Options, console: Console) -> None:
        self.told = False
        self._options = options
        self._console = console
        self._began_s = time.monotonic()

    async def tell(self) -> None:
        """Everything. Raises DemoError when it cannot go on."""
        options, console = self._options, self._console
        scripts = traffic.build(options.conversations, options.turns)
        report.introduction(console, options.conversations, options.turns)
        async with Children() as children:
            cluster = await self._start(children, "ppd", options.port)
            ppd = await children.guard(self._play(cluster, scripts))
            async with Children() as others:
                other = await self._start(others, "pd", 0)
                pd = await others.guard(self._play(other, scripts))
            self._conclude(self._sum_up(ppd, pd))
            if not options.once:
                report.going_on(console, cluster)
                cluster.log.on_entry = lambda entry: report.visitor(console, cluster, entry)
                await children.guard(asyncio.Event().wait())

    async def _start(self, children: Children, policy: str, port: int) -> Cluster:
        report.starting(self._console, policy)
        return await clusters.start(children, policy, port)

    async def _play(self, cluster: Cluster, scripts: Sequence[Script]) -> Played:
        """One run. What goes wrong in it is told with the gateway's last lines."""
        self._console.print()
        try:
            with screen.board(self._console, TITLES[cluster.policy]) as board:
                ledger = Ledger(board, cluster.name_of)
                cluster.log.on_entry = ledger.heard
                async with conversations.connect(cluster.url) as client, lateness.watched() as late:
                    turns = await conversations.play_all(client, clusters.MODEL, scripts, cluster.request_id, ledger)
                rows = await _within(LOG_S, ledger.complete(len(turns)))
            counted = await counters.read(cluster.urls("prefill"), cluster.urls("decode"))
        except (TurnFailedError, counters.CountersError, LateLogError) as error:
            raise DemoError(f"policy {cluster.policy}: {error}", cluster.gateway.lines) from error
        self._console.print()
        return Played(run_of(cluster.policy, cluster.url, dict(cluster.pods), rows, counted, late.p95_ms), turns)

    def _conclude(self, summary: Summary) -> None:
        report.comparison(self._console, summary)
        if self._options.json is not None:
            _write(self._options.json, summary)
            report.text(self._console, f"Written to {self._options.json}.")
        report.text(self._console, f"The demo took {summary.duration_s:.1f} s.")
        self.told = True

    def _sum_up(self, ppd: Played, pd: Played) -> Summary:
        return Summary(
            simulated=True,
            profile=clusters.PROFILE,
            note=report.NOTE,
            same_traffic=same_traffic(ppd.turns, pd.turns),
            ppd=ppd.run,
            pd=pd.run,
            change_percent=change(pd.run, ppd.run),
            duration_s=time.monotonic() - self._began_s,
        )


async def _within(limit_s: float, rows: Awaitable[list[Row]]) -> list[Row]:
    try:
        async with asyncio.timeout(limit_s):
            return await rows
    except TimeoutError:
        raise LateLogError(f"the gateway's log lacks a request that was answered {limit_s:g} s ago") from None


def _write(path: Path, summary: Summary) -> None:
    text = msgspec.json.format(msgspec.json.encode(summary), indent=2)
    try:
        path.write_bytes(text + b"\n")
    except OSError as error:
        raise DemoError(f"cannot write {path}: {error.strerror}") from error
