"""The command: what it prints, and its exit status."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.ops.cli import main
from gateway.ops.settings import SETTINGS
from gateway.version import VERSION


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may have a gateway of their own."""
    for setting in SETTINGS:
        monkeypatch.delenv(setting.variable, raising=False)


def refused(arguments: list[str]) -> int:
    """The status argparse exits with."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert isinstance(caught.value.code, int)
    return caught.value.code


def file(folder: Path, text: str) -> str:
    path = folder / "gateway.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_good_file_is_said_to_be_good(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = file(tmp_path, 'prefill = ["http://p:1"]\ndecode = ["http://d:1", "http://d:2"]\npolicy = "local"\n')
    assert main(["config", "check", path]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{path}: ok (policy local; pods: 1 prefill, 2 decode, 0 replica)\n"
    assert printed.err == ""


def test_a_file_without_prefill_pods_is_good_with_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = file(tmp_path, 'decode = ["http://d:1"]\n')
    assert main(["config", "check", path]) == 0
    assert capsys.readouterr().out.splitlines()[1] == (
        f"{path}: warning: no prefill pod: every turn runs whole on a decode or replica pod"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "decode: at least one decode pod is needed"),
        ('decode = ["http://d"]\nport = "x"', "port: must be a whole number, not 'x'"),
        ("decod = []", "decod: unknown key (did you mean decode?)"),
    ],
)
def test_a_bad_file_is_one_line_on_stderr_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    path = file(tmp_path, text)
    assert main(["config", "check", path]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"ppd-gateway: {path}: {said}\n"


def test_variables_count_for_a_check_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PPD_POLICY", "nonsense")
    assert main(["config", "check", file(tmp_path, 'decode = ["http://d"]')]) == 2
    assert "environment variable PPD_POLICY: policy: must be one of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve"], "ppd-gateway: the command line: decode: at least one decode pod is needed\n"),
        (["serve", "--decode", "d0"], "ppd-gateway: flag --decode: decode: 'd0' is not a URL like http://host:8000\n"),
        (["serve", "--config", "/none.toml"], "ppd-gateway: /none.toml: No such file or directory\n"),
        (
            ["serve", "--decode", "http://d", "--decode", "http://d"],
            "ppd-gateway: flag --decode: decode: http://d is already a decode pod\n",
        ),
        (
            ["explain", "--ctx", "1", "--new", "1", "--out", "1", "--qps", "1", "--weights", "ttft=x"],
            "ppd-gateway: flag --weights: the weight ttft must be a number\n",
        ),
    ],
)
def test_what_cannot_be_served_is_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err == said


def test_a_table_set_that_is_none_is_one_line_and_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["explain", "--ctx", "1", "--new", "1", "--out", "1", "--qps", "1", "--table", str(tmp_path)]
    assert main(asked) == 2
    line = capsys.readouterr().err
    assert line.startswith(f"ppd-gateway: {tmp_path}")
    assert line.count("\n") == 1


def test_policy_ppd_is_not_served_without_a_good_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["serve", "--decode", "http://127.0.0.1:9", "--policy", "ppd", "--table", str(tmp_path / "none")]
    assert main(asked) == 2
    line = capsys.readouterr().err
    assert line.startswith(f"ppd-gateway: {tmp_path}/none")
    assert line.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["sing"],
        ["config"],
        ["config", "check"],
        ["serve", "--no-such-flag"],
        ["serve", "--prefil", "http://p"],
        ["serve", "--port"],
        ["explain"],
    ],
)
def test_a_command_that_is_none_is_status_2(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert refused(arguments) == 2
    assert "usage: ppd-gateway" in capsys.readouterr().err


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(["--version"]) == 0
    assert capsys.readouterr().out == f"ppd-gateway {VERSION}\n"


def test_help_names_every_setting_its_meaning_and_its_default(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    assert refused(["serve", "--help"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for setting in SETTINGS:
        default = "" if setting.default in ((), None) else f" (default {setting.default})"
        assert f" {setting.flag} {setting.metavar} {setting.help}{default} " in printed + " ", setting.key


@pytest.mark.parametrize(
    "arguments", [["--help"], ["config", "--help"], ["config", "check", "--help"], ["explain", "-h"]]
)
def test_help_is_help_and_status_0(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert refused(arguments) == 0
    assert capsys.readouterr().out.startswith("usage: ppd-gateway")
