"""The paper's report: its classes, and a tiny run of all of it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.experiments import plots
from loadtest.experiments.paper import document
from loadtest.experiments.paper.__main__ import SECTIONS, experiments, findings, main
from loadtest.experiments.paper.claims import Claim, Kind, Verdict, claims, judge
from loadtest.experiments.paper.section import Scale
from loadtest.experiments.rows import write_jsonl
from loadtest.experiments.statistics import NOTHING, Interval

TABLES = Path(__file__).parents[3] / "lut" / "simulated-h100-llama3.1-8b"
TINY = Scale(
    seeds=1,
    conversations=6,
    workloads=1,
    rates=1,
    burst_s=3.0,
    tables=dict.fromkeys(("1P_3D", "2P_2D", "3P_1D"), TABLES),
)


def exactly(value: float) -> Interval:
    return Interval(value, math.nan, 1)


def change(value: float) -> Claim:
    return Claim("k", "s", "w", "p", value, Kind.CHANGE, "kv-transfer")


@pytest.mark.parametrize(
    ("published", "ours", "verdict"),
    [
        (-57.8, -63.5, Verdict.WITHIN),
        (-57.8, -64.0, Verdict.DIRECTION),
        (2.0, 2.9, Verdict.WITHIN),
        (2.0, 3.1, Verdict.DIRECTION),
        (2.0, -0.5, Verdict.NOT),
        (48.0, 1.0, Verdict.DIRECTION),
        (48.0, math.nan, Verdict.NOT),
    ],
)
def test_changes_are_judged_by_a_tenth_or_a_point_then_by_sign(published: float, ours: float, verdict: Verdict) -> None:
    assert judge(change(published), exactly(ours), {"k": exactly(ours)}) is verdict


def test_a_value_is_judged_by_the_side_of_the_value_beside_it() -> None:
    claim = claims()["figure5.nvlink.pd"]
    assert claim.against == "figure5.nvlink.local"
    ours = {claim.key: NOTHING}
    low, high = ours | {claim.against: exactly(10.0)}, ours | {claim.against: exactly(900.0)}
    assert judge(claim, exactly(claim.value * 1.05), high) is Verdict.WITHIN
    assert judge(claim, exactly(claim.value * 2), low) is Verdict.DIRECTION
    assert judge(claim, exactly(claim.value * 2), high) is Verdict.NOT
    assert judge(claim, exactly(claim.value * 2), ours) is Verdict.NOT
    assert judge(claim, NOTHING, {}) is Verdict.MISSING
    assert judge(claim, NOTHING, low) is Verdict.NOT


def test_every_claim_has_a_section_a_role_and_something_to_be_beside() -> None:
    names = {section.name for section in SECTIONS}
    for key, claim in claims().items():
        assert claim.section in names, key
        assert claim.role in ("calibration", "partly", "given", "prediction")
        assert not claim.against or claim.against in claims()


def test_the_headlines_are_among_the_claims() -> None:
    known = {(claim.value, claim.section) for claim in claims().values()}
    assert {
        (48, "interference"),
        (2, "interference"),
        (57, "interference"),
        (21, "interference"),
        (-57.8, "grid"),
        (-24.9, "grid"),
        (92.2, "grid"),
        (143.7, "network"),
        (170.6, "network"),
        (-96, "frontier"),
        (-75, "chats"),
    } <= known


def test_a_tiny_run_writes_the_whole_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scale = replace(TINY)
    rows = experiments(scale, 1, quiet=True)
    counts = document.write(findings(rows), rows, tmp_path)
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert sum(counts.values()) == len(claims())
    for section in SECTIONS:
        assert f"## {section.title}\n" in text
    for claim in claims().values():
        assert f"| {claim.what} | {claim.place} |" in text
    assert len(list(tmp_path.glob("*.png"))) == text.count("![")
    assert "made up" in text

    write_jsonl(rows, tmp_path / "rows.jsonl")
    again = tmp_path / "again"
    monkeypatch.setattr(plots, "available", lambda: False)
    assert main(["-o", str(again), "--rows", str(tmp_path / "rows.jsonl"), "--again", "--seeds", "1"]) == 0
    assert "within 10 %" in capsys.readouterr().out
    tables = [line for line in text.splitlines() if line.startswith("| ")]
    assert tables == [line for line in (again / "README.md").read_text("utf-8").splitlines() if line.startswith("| ")]


def test_the_interference_of_a_shared_prefix_is_explained_not_assumed() -> None:
    """The profile was set elsewhere; reading one prefix once for all gives the published order of the four numbers."""
    (section,) = [section for section in SECTIONS if section.name == "interference"]
    ours = {key: value.mean for key, value in section.evaluate([]).ours.items()}
    assert ours["figure2.full.1"] > 10 * ours["figure2.append.1"]
    assert ours["figure2.full.4"] > ours["figure2.append.4"] > ours["figure2.append.1"]
