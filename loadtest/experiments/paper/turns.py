"""Turn scaling: idle pods, conversations of 2 to 16 turns of 128 tokens in and out.

Rule of this room: nothing else runs, so what is left is the fixed cost of each way and the growth of the context.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadtest.experiments.paper.section import Findings, Picture, Scale, Section, labelled, percent
from loadtest.experiments.plots import Panel, Point
from loadtest.experiments.rows import Row
from loadtest.experiments.run import Spec
from loadtest.experiments.statistics import NOTHING, interval, paired
from loadtest.experiments.traffic import Extent, Stream
from loadtest.experiments.workloads import LongTurns

COUNTS = (2, 4, 8, 16)
RATE = 0.1
ARMS = {"pd": "2P_2D", "local": "2P_2pD", "4R": "4R"}


def _specs(scale: Scale) -> list[Spec]:
    return [
        labelled(
            Spec(
                assignment=assignment,
                policy="local" if arm == "local" else "pd",
                streams=(Stream(LongTurns(f"{count}_turns", count, 128, 128, 128), RATE),),
                extent=Extent(conversations=1),
                seed=f"turns/{seed}",
            ),
            "turns",
            arm=arm,
            turns=str(count),
        )
        for count in (*COUNTS, 15)
        for arm, assignment in ARMS.items()
        for seed in range(1)
    ]


def _evaluate(rows: Sequence[Row]) -> Findings:
    found = Findings()
    sums: dict[tuple[int, str], dict[str, float | None]] = {}
    for row in rows:
        sums.setdefault((int(row.label("turns")), row.label("arm")), {})[row.seed] = row.later.ttft_ok_ms
    for count in COUNTS:
        found.ours[f"turns.{count}"] = percent(paired(sums[count, "local"], sums[count, "pd"], relative=True))
    for arm in ("local", "pd"):
        # The last of 16 follow-ups: what 16 turns take in all, less what 15 take.
        last = [
            None if value is None or shorter is None else 15 * value - 14 * shorter
            for value, shorter in zip(sums[16, arm].values(), sums[15, arm].values(), strict=True)
        ]
        found.ours[f"turns.16.{arm}"] = interval(last) if last else NOTHING
    series = {
        arm if arm == "4R" else f"{ARMS[arm]} {arm}": [
            Point(count, interval(list(sums[count, arm].values())).mean) for count in COUNTS
        ]
        for arm in ARMS
    }
    panel = Panel("idle", "turns", "follow-up TTFT, mean (ms)", series)
    found.pictures = [Picture("turns", "Conversations of 2 to 16 turns, idle pods", [panel])]
    return found


SECTION = Section(
    "turns",
    "Long conversations",
    "One conversation on idle pods.",
    _specs,
    _evaluate,
)
