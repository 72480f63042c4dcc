"""`ppd-gateway simulate` and `advise`, as they are typed."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.ops.cli import main
from loadtest.experiments.rows import read_jsonl

QUICK = ["--seeds", "2", "--conversations", "4", "--jobs", "1", "--quiet"]


def simulate(*arguments: str) -> int:
    return main(["simulate", *QUICK, *arguments])


def test_simulate_prints_a_table_and_writes_report_results_and_plots(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    status = simulate("--policies", "pd,local", "--workload", "small_tiny", "--rates", "1,2", "--out", str(out))
    printed = capsys.readouterr().out
    assert status == 0
    assert "small_tiny at 1/s" in printed
    assert "1P_3D local" in printed
    assert "4R" in printed, "replicas stand beside every split"
    report = (out / "report.md").read_text(encoding="utf-8")
    assert "synthetic, as in the paper" in report
    assert "## Differences" in report
    assert len(read_jsonl(out / "results.jsonl")) == 2 * 3 * 2
    assert {path.name for path in out.glob("*.png")} == {"rate_small_tiny.png", "pareto_small_tiny.png"}


def test_made_up_data_sets_are_called_that(tmp_path: Path) -> None:
    simulate("--policies", "local", "--workload", "wildchat", "--rates", "1", "--no-replicas", "--out", str(tmp_path))
    assert "MADE UP" in (tmp_path / "report.md").read_text(encoding="utf-8")


def test_weights_and_events_and_mixes_are_taken(capsys: pytest.CaptureFixture[str]) -> None:
    table = str(Path(__file__).parents[3] / "lut" / "simulated-h100-llama3.1-8b")
    weights = "ttft=1,tpot=1 ttft=1,tpot=64"
    more = [
        "--table",
        table,
        "--weights",
        weights,
        "--event",
        "1 slow d0 2",
        "--workload",
        "0.5*small_tiny+0.5*large_tiny",
    ]
    assert simulate("--policies", "ppd", "--rates", "1", *more) == 0
    printed = capsys.readouterr().out
    assert "1P_3D ppd ttft=1,tpot=64" in printed


def test_a_trace_brings_its_own_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"at_s": 1, "conversation": "a", "new_tokens": 70, "output_tokens": 5}\n', encoding="utf-8")
    assert main(["simulate", "--policies", "local", "--workload", f"trace:{trace}", "--quiet", "--jobs", "1"]) == 0
    assert capsys.readouterr().out.startswith("trace\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policies", "magic"], "--policies: unknown policy 'magic'"),
        (["--assignments", "3D"], "node assignment '3D'"),
        (["--workload", "magic"], "unknown workload 'magic'"),
        (["--workload", "sharegpt:/nowhere"], "/nowhere: cannot be read"),
        (["--workload", "x*chat"], "mix: 'x*chat' is not like"),
        (["--rates", "1,x"], "--rates: '1,x' is not a list"),
        (["--rates", "0"], "--rates: must be above 0"),
        (["--event", "soon"], "event 'soon': write it like"),
        (["--event", "1 kill x9"], "there is no pod 'x9'"),
        (["--weights", "heavy"], "--weights: weights are written"),
        (["--slo", "ttft=fast"], "--slo: 'ttft=fast' is not like"),
        (["--profile", "abacus"], "profile 'abacus'"),
        (["--patience-s", "0"], "--patience-s: must be above 0"),
        (["--seeds", "0"], "--seeds: must be 1 to 1000"),
        (["--jobs", "0"], "--jobs: must be 1 to 1024"),
        (["--handover-ms", "-1"], "--handover-ms: must be 0 or more"),
        (["--think-s", "-1"], "--think-s: must be 0 or more"),
        (["--policies", "ppd", "--table", "/nowhere"], "/nowhere"),
    ],
)
def test_what_is_wrong_is_one_line_and_status_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(*arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("ppd-gateway: ")
    assert message in error
    assert error.count("\n") == 1


def advise(*arguments: str) -> int:
    table = str(Path(__file__).parents[3] / "lut" / "simulated-h100-llama3.1-8b")
    return main(["advise", *QUICK, "--table", table, "--pods", "3", *arguments])


def test_advise_recommends_and_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert advise("--workload", "steady", "--rate", "2", "--out", str(tmp_path)) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("# ")
    assert "- Next best split:" in printed
    assert "## Goodput over the traffic" in printed
    for name in ("3R", "1P_2D ppd", "2P_1D ppd"):
        assert f"| {name} |" in printed
    assert {path.name for path in tmp_path.iterdir()} >= {"advice.md", "advice.png", "results.jsonl"}


def test_advise_says_when_nothing_will_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert advise("--workload", "steady", "--rate", "2", "--slo", "ttft=1ms,tpot=1ms") == 0
    assert "No choice meets the target" in capsys.readouterr().out


def test_advise_plays_a_trace_faster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f'{{"at_s": {at_s}, "conversation": "{at_s}", "new_tokens": 70, "output_tokens": 5}}' for at_s in range(4)]
    (tmp_path / "t.jsonl").write_text("\n".join(lines), encoding="utf-8")
    assert advise("--trace", str(tmp_path / "t.jsonl")) == 0
    assert "| | 0.5× | 1× |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workload", "chat"], "--rate: say how many"),
        (["--trace", "/nowhere", "--rate", "1"], "--rate: a trace has its own times"),
        (["--trace", "/nowhere"], "/nowhere: cannot be read"),
        (["--workload", "chat", "--rate", "1", "--pods", "1"], "--pods: must be 2 to 64"),
    ],
)
def test_what_advise_cannot_do_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert advise(*arguments) == 2
    assert message in capsys.readouterr().err
