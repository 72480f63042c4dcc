"""Figure 5: slower links.

Rule of this room: only the bandwidth between pods changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from loadtest.experiments.book import value_of
from loadtest.experiments.client import Patience
from loadtest.experiments.paper.section import Findings, Picture, Scale, Section, labelled, percent
from loadtest.experiments.plots import Panel, Point
from loadtest.experiments.published_chats import PUBLISHED, PublishedChats
from loadtest.experiments.rows import Row
from loadtest.experiments.run import Hardware, Spec
from loadtest.experiments.statistics import Interval, interval, paired
from loadtest.experiments.traffic import Extent, Stream

LINKS = {"nvlink": 150e9, "ndr": 50e9, "hdr": 25e9, "100gbe": 10e9}
"""Bytes per second, as the paper has them."""

ARMS = {"pd": ("1P_3D", "pd"), "local": ("1P_3D", "ppd"), "4R": ("4R", "pd")}


def _specs(scale: Scale) -> list[Spec]:
    return [
        labelled(
            Spec(
                assignment=assignment,
                policy=policy,
                streams=(Stream(PublishedChats("wildchat", PUBLISHED["wildchat"]), 1.0),),
                extent=Extent(conversations=scale.conversations),
                seed=f"network/{seed}",
                hardware=replace(Hardware(), bandwidth=bandwidth),
                patience=Patience(slots=50, first_token_s=180.0, turn_s=180.0),
                tables=scale.tables.get(assignment) if policy == "ppd" else None,
            ),
            "network",
            link=link,
            arm=arm,
        )
        for link, bandwidth in LINKS.items()
        for arm, (assignment, policy) in ARMS.items()
        for seed in range(scale.seeds)
    ]


def _evaluate(rows: Sequence[Row]) -> Findings:
    found = Findings()
    values: dict[tuple[str, str, str], dict[str, float | None]] = {}
    metrics = {"ttft": "later.ttft_ok_ms", "tpot": "all.tpot_ok_ms"}
    for row in rows:
        for name, metric in metrics.items():
            values.setdefault((row.label("link"), row.label("arm"), name), {})[row.seed] = value_of(row, metric)

    def mean(link: str, arm: str, name: str) -> Interval:
        return interval(list(values[link, arm, name].values()))

    ours = found.ours
    for link in LINKS:
        ours[f"figure5.{link}.pd"] = mean(link, "pd", "ttft")
        ours[f"figure5.{link}.local"] = mean(link, "local", "ttft")
    fast, slow = "nvlink", "100gbe"
    ours["figure5.pd.rise"] = percent(paired(values[slow, "pd", "ttft"], values[fast, "pd", "ttft"], relative=True))
    ours["figure5.pd.tpot"] = percent(paired(values[slow, "pd", "tpot"], values[fast, "pd", "tpot"], relative=True))
    for link in (fast, slow):
        change = paired(values[link, "local", "ttft"], values[link, "pd", "ttft"], relative=True)
        ours[f"figure5.cut.{link}"] = percent(change)
    panels = []
    for name, title in (("ttft", "turn 2+ TTFT, mean (ms)"), ("tpot", "TPOT, mean (ms)")):
        series = {}
        for arm, label in (("pd", "1P_3D pd"), ("local", "1P_3D ppd"), ("4R", "4R")):
            points = []
            for link, bandwidth in LINKS.items():
                value = mean(link, arm, name)
                points.append(Point(bandwidth / 1e9, value.mean, value.bar))
            series[label] = points
        panels.append(Panel(title, "GB/s between pods", title, series, log_x=True))
    found.pictures = [Picture("network", "Slower links, WildChat-like conversations (figure 5)", panels)]
    return found


SECTION = Section(
    "network",
    "Network",
    "1P_3D, one conversation a second, 500 WildChat-like conversations, KV over links of four speeds.",
    _specs,
    _evaluate,
)
