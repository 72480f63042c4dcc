"""Commands whose code lies outside the gateway."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gateway.ops import extra_commands
from gateway.ops.cli import main
from gateway.ops.extra_commands import EXTRA_COMMANDS, ExtraCommand


def test_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    printed = capsys.readouterr().out
    for command in EXTRA_COMMANDS:
        assert f"    {command.name} " in printed


@pytest.mark.parametrize("command", EXTRA_COMMANDS, ids=lambda command: command.name)
def test_each_has_a_parser_of_that_name(command: ExtraCommand, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([command.name, "--help"])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: ppd-gateway {command.name} ")


def test_a_command_that_is_not_installed_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = ExtraCommand("simulate", "", "loadtest.nowhere.command")
    monkeypatch.setattr(extra_commands, "EXTRA_COMMANDS", (missing,))
    assert main(["simulate"]) == 2
    assert capsys.readouterr().err == "ppd-gateway: simulate: the module loadtest.nowhere is not installed\n"


@pytest.mark.parametrize("command", [["config", "check", "/nowhere"], ["serve", "--port", "x"]])
def test_other_commands_import_none_of_them(command: list[str]) -> None:
    program = (
        "import sys\nfrom gateway.ops.cli import main\n"
        f"try:\n    main({command!r})\nexcept SystemExit:\n    pass\n"
        "print([name for name in sys.modules if name.startswith('loadtest')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
