"""docs/paper/README.md: every published number beside ours.

Rule of this room: the table is made from `claims` and findings; nothing here knows a number.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from loadtest.experiments import plots
from loadtest.experiments.paper.claims import Claim, Kind, Verdict, claims, judge
from loadtest.experiments.paper.section import SECTION, Findings, Section
from loadtest.experiments.rows import Row
from loadtest.experiments.statistics import FEWEST, NOTHING, Interval
from loadtest.experiments.workloads import PAPER

_HEAD = """# The paper's numbers, from this gateway's own decisions

Made by `make paper`; do not edit. Published: arXiv 2603.13358 and its raw results (figures digitised, about 1 % of the
axis range). Ours: simulated pods in virtual time ([simulation.md](../simulation.md), calibration in
[engine.md](engine.md)) under the shipped `gateway.core`, which makes every decision.

- **within 10 %**: off by a tenth of the published number at most, or, for changes and shares in percent, by one point.
- **same direction**: the change has the same sign, or the value lies on the same side of the one that it is published
  beside.
- **not reproduced**: neither, with the reason where one is known.
- *calibration*: the published number moved a parameter of the engine model; *partly*: an average over numbers of which
  some did; *given*: taken over; *prediction*: it had no say.
- ± is half of a 95 % interval over seeds, where there are three or more. Policies are compared on the same traffic.
  Plain replicas (4R) stand in every figure.
- **The conversations of ShareGPT and WildChat are made up** after what is published about those data sets.
"""


def write(sections: Sequence[tuple[Section, Findings]], rows: Sequence[Row], folder: Path) -> Mapping[Verdict, int]:
    """Write the document and its plots into `folder`, which exists. Returns how many numbers came out how."""
    ours = {key: value for _, findings in sections for key, value in findings.ours.items()}
    verdicts = {key: judge(claim, ours.get(key, NOTHING), ours) for key, claim in claims().items()}
    lines = [*_HEAD.splitlines(), "", *_summary(sections, verdicts), *_effort(rows)]
    for section, findings in sections:
        lines += _section(section, findings, ours, verdicts, folder)
    (folder / "README.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    return Counter(verdicts.values())


def _summary(sections: Sequence[tuple[Section, Findings]], verdicts: Mapping[str, Verdict]) -> list[str]:
    lines = [f"| section | {' | '.join(Verdict)} |", "|---|" + "---:|" * len(Verdict)]
    total: Counter[Verdict] = Counter()
    for section, _ in sections:
        counts = Counter(verdicts[key] for key, claim in claims().items() if claim.section == section.name)
        total += counts
        lines.append(f"| [{section.title}](#{_anchor(section.title)}) | {_counts(counts)} |")
    return [*lines, f"| all | {_counts(total)} |", ""]


def _counts(counts: Mapping[Verdict, int]) -> str:
    return " | ".join(str(counts.get(verdict, 0)) for verdict in Verdict)


def _effort(rows: Sequence[Row]) -> list[str]:
    turns = sum(row.simulated_turns for row in rows)
    grid = {row.workload for row in rows if row.label(SECTION) == "grid"}
    seeds: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        seeds[row.label(SECTION)].add(row.seed)
    counts = ", ".join(f"{name} {len(each)}" for name, each in seeds.items())
    return [
        f"{len(rows):,} experiments, {turns:,} simulated turns; {len(grid)} of the grid's {len(PAPER)} workloads; "
        f"seeds: {counts}. Run your own: [experiments.md](../experiments.md).",
        "",
    ]


def _section(
    section: Section,
    findings: Findings,
    ours: Mapping[str, Interval],
    verdicts: Mapping[str, Verdict],
    folder: Path,
) -> list[str]:
    lines = [f"## {section.title}", "", section.about, ""]
    lines += [f"![{picture.title}]({picture.name}.png)\n" for picture in findings.pictures]
    lines += ["| number | place | published | ours | | role |", "|---|---|---:|---:|---|---|"]
    reasons: dict[str, int] = {}
    for key, claim in claims().items():
        if claim.section == section.name:
            lines.append(_row(claim, ours.get(key, NOTHING), verdicts[key], reasons))
    lines.append("")
    lines += [f"{number}. {reason}" for reason, number in reasons.items()]
    lines += ["", *findings.text]
    if plots.available():
        for picture in findings.pictures:
            plots.draw(folder / f"{picture.name}.png", picture.title, picture.panels, columns=picture.columns)
    return lines


def _row(claim: Claim, ours: Interval, verdict: Verdict, reasons: dict[str, int]) -> str:
    note = ""
    if verdict is not Verdict.WITHIN and claim.reason:
        note = f" ({reasons.setdefault(claim.reason, len(reasons) + 1)})"
    published = _number(claim, Interval(claim.value, math.nan, 1))
    mark = f"**{verdict}**" if verdict in (Verdict.NOT, Verdict.MISSING) else str(verdict)
    return f"| {claim.what} | {claim.place} | {published} | {_number(claim, ours)} | {mark}{note} | {claim.role} |"


def _number(claim: Claim, value: Interval) -> str:
    if math.isnan(value.mean):
        return "–"
    sign = "+" if claim.kind is Kind.CHANGE else ""
    small = claim.kind is not Kind.VALUE or (claim.unit == "ms" and abs(value.mean) < 200)
    digits = 1 if small else 0
    text = f"{value.mean:{sign}.{digits}f} {claim.unit}"
    return f"{text} ± {value.half:.{digits}f}" if value.runs >= FEWEST else text


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")
