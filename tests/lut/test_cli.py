"""`ppd-gateway lut …`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lut.cli import add_commands
from lut.plot import panels
from lut.publish import DraftTable, write_table_set
from lut.raw import RawPoint, RawWriter
from lut.table import Table, TableSet
from tests.lut.examples import ALL, AXES, BOTH, arm, dead, draft, filled, raw, written
from tests.lut.test_paper import read as read_grid


def lut(*arguments: object) -> int:
    parser = argparse.ArgumentParser(prog="ppd-gateway")
    add_commands(parser.add_subparsers(required=True))
    options = parser.parse_args(["lut", *map(str, arguments)])
    status: int = options.run(options)
    return status


def raw_file(path: Path, *points: RawPoint) -> Path:
    with RawWriter(path) as writer:
        for point in points:
            writer.append(point)
    return path


def both(**others: Any) -> list[RawPoint]:
    return [raw(arm="pd", **{"ttft_mean_s": 0.2, **others}), raw(arm="local", **others)]


def test_build_makes_a_set_of_several_raw_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = raw_file(tmp_path / "a.jsonl", *both())
    second = raw_file(tmp_path / "b.jsonl", *both(repeat=1), raw(assignment="2P_2D"))
    with second.open("ab") as file:
        file.write(b'{"torn')
    options = ("--gpu", "H100", "--network", "NVLink", "--model", "name", "--note", "by hand", "--note", "twice")
    assert lut("build", first, second, "-o", tmp_path / "set", *options) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith(
        f"{tmp_path}/set: SIMULATED name on H100 (NVLink): 1P_3D; 1 cells each, 100% measured"
    )
    assert f"{tmp_path}/set: no table for 2P_2D: local not measured\n" in printed.out
    assert printed.err == f"ppd-gateway: {second}:4: torn line of 6 bytes left out\n"
    tables = TableSet.open(tmp_path / "set")
    tables.verify()
    assert tables.manifest.notes[:3] == ("by hand", "twice", f"{second}:4: torn line of 6 bytes left out")
    assert tables.tables["1P_3D"].nearest(256, 64, 32, 2).pd.samples == 40


def test_import_makes_a_set_of_the_papers_grid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"1P_3{arm},w,2048,16,32,0.5,100,50,24,80,160,8,16" for arm in ("D", "pD")]
    assert lut("import", read_grid(tmp_path, *rows), "-o", tmp_path / "set", "--note", "mine") == 0
    assert "Llama-3.1-8B on 4x H100 80 GB HBM3 (paper)" in capsys.readouterr().out
    assert TableSet.open(tmp_path / "set").manifest.axes.rate == (1.0,)


def test_show_prints_axes_shares_degraded_cells_routes_and_provenance(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    points = (*both(rate=1.0), *both(rate=4.0), dead(arm="pd", rate=2.0), raw(arm="local", rate=2.0), raw(rate=8.0))
    lut("build", raw_file(tmp_path / "a.jsonl", *points), "-o", tmp_path / "set", "--note", "by hand")
    capsys.readouterr()
    assert lut("show", tmp_path / "set", "--weights", "2,1") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["rate", "4:", "1", "2", "4", "8"] in lines
    assert ["1P_3D", "pd", "100.0%", "0.0%", "0.0%", "4", "1", "80"] in lines
    assert ["1P_3D", "local", "75.0%", "0.0%", "25.0%", "3", "0", "60"] in lines
    assert ["1P_3D", "local", "3", "(100.0%);", "1", "of", "them", "by", "success"] in lines
    assert ["note:", "by", "hand"] in lines


def test_show_prints_one_json_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path / "set", "1P_3D", "2P_2D")
    assert lut("show", tmp_path / "set", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["manifest"]["axes"]["new_tokens"] == [16, 64]
    assert shown["arms"]["2P_2D"]["pd"]["measured_cells"] == 72
    # local is slower in every cell but the first, where pd has no TTFT to compare with
    assert shown["routes"]["1P_3D"] == {"cells": 72, "routes": {"pd": 71, "tie": 1}, "decided_by_success": 0}


def test_diff_names_the_cells_whose_route_changes_and_the_largest_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = filled(lambda name, *_: arm(0.4 if name == "pd" else 0.2))
    after = before.copy()
    after[1, 1, 2, 3, 1] = arm(0.8, 0.011)
    write_table_set(tmp_path / "a", draft({"1P_3D": DraftTable(BOTH, before), "2P_2D": DraftTable(BOTH, before)}))
    write_table_set(tmp_path / "b", draft({"1P_3D": DraftTable(BOTH, after)}, gpu="B200"))
    assert lut("diff", tmp_path / "a", tmp_path / "b", "--limit", 1) == 0
    assert capsys.readouterr().out.splitlines() == [
        "gpu: '' -> 'B200'",
        "2P_2D: only in the first set",
        "1P_3D: 1 of 72 points change their route",
        "  ctx=256 in=64 out=256 q=32: local S=+0.500 -> pd S=-1.100",
        "largest changes of latency",
        "  1P_3D local ttft_mean ctx=256 in=64 out=256 q=32: 200.00 -> 800.00 ms (+300%)",
        "  1P_3D local tpot_mean ctx=256 in=64 out=256 q=32: 10.00 -> 11.00 ms (+10%)",
    ]
    assert lut("diff", tmp_path / "a", tmp_path / "b", "--weights", "0,1") == 0
    assert "1P_3D: 1 of 72 points change their route" in capsys.readouterr().out


def test_sets_with_other_axes_are_compared_at_the_points_of_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, rates in (("a", (1.0, 4.0)), ("b", (1.0, 2.0))):
        points = [point for rate in rates for point in both(rate=rate)]
        lut("build", raw_file(tmp_path / f"{name}.jsonl", *points), "-o", tmp_path / name)
    capsys.readouterr()
    assert lut("diff", tmp_path / "a", tmp_path / "b") == 0
    printed = capsys.readouterr().out
    assert "the axes differ; both sets are asked at the points of both" in printed
    assert "1P_3D: 0 of 3 points change their route" in printed


def test_what_is_drawn_is_the_plane_nearest_to_the_output_and_rate_asked_for() -> None:
    data = filled(lambda name, context, *_: arm(0.4 if name == "pd" else 0.1 + context / 4096, origin=context == 0))
    content = panels(Table("1P_3D", AXES, BOTH, data), (1, 1), 40, 7)
    assert content.title == "1P_3D, out=32, 8 turns/s, w_ttft=1, w_tpot=1"
    assert content.dttft[:, 0] == pytest.approx([0.75, 0.59375, -0.5])
    assert content.s == pytest.approx(content.dttft)
    assert content.route.tolist() == [[2, 2], [2, 2], [0, 0]]
    assert content.filled.tolist() == [[True, True], [False, False], [False, False]]


def test_plot_writes_one_png_per_assignment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    three = filled(lambda name, *_: arm({"pd": 0.4, "local": 0.3, "readback": 0.2}[name]), arms=ALL)
    tables = {"1P_3D": DraftTable(ALL, three), "2P_2D": DraftTable(BOTH, np.ascontiguousarray(three[..., :2, :]))}
    write_table_set(tmp_path / "set", draft(tables))
    assert lut("plot", tmp_path / "set", "-o", tmp_path / "map.png", "--rate", "2", "--out", "32") == 0
    for name in ("map-1P_3D.png", "map-2P_2D.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG\r\n")
    assert "1P_3D, out=32, 2 turns/s" in capsys.readouterr().out
    assert lut("plot", tmp_path / "set", "-o", *(tmp_path / name for name in ("a", "b", "c"))) == 2
    assert lut("plot", tmp_path / "set", "-o", tmp_path / "none" / "map.png") == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "none"),
        ("diff", "none", "none"),
        ("plot", "none", "-o", "x.png"),
        ("build", "none.jsonl", "-o", "set"),
        ("build", "bad.jsonl", "-o", "set"),
        ("build", "empty.jsonl", "-o", "set"),
        ("build", "good.jsonl", "-o", "full"),
        ("import", "bad.jsonl", "-o", "set"),
    ],
)
def test_bad_input_is_one_line_and_exit_status_2(
    tmp_path: Path, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.jsonl").write_text("{}\n")
    Path("empty.jsonl").touch()
    raw_file(Path("good.jsonl"), *both())
    Path("full").mkdir()
    Path("full", "letter.txt").touch()
    assert lut(*arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("ppd-gateway: ")
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize("weights", ["1", "1,2,3", "a,b", "nan,1", "inf,1", "-1,1", "0,0"])
def test_weights_that_are_none_are_refused(weights: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        lut("show", "set", f"--weights={weights}")
    assert stopped.value.code == 2
    assert repr(weights) in capsys.readouterr().err
