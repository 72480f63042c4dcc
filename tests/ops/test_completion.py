"""Completion scripts, run by the shells themselves."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from gateway.ops.cli import main
from gateway.ops.completion import SHELLS
from gateway.ops.extra_commands import EXTRA_COMMANDS
from gateway.ops.settings import SETTINGS

BASH = """source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
_ppd_gateway; printf '%s\\n' "${COMPREPLY[@]}" """
ZSH = """compdef() { : }
_describe() { print -l -- ${${(P)4}%%:*} }
_files() { print -l -- '*files*' }
compadd() { shift; print -l -- "$@" }
source "$1"; shift
words=("$@"); CURRENT=$#words
_ppd_gateway"""
"""Its completion system needs a terminal, so what the script calls is replaced by what it would be given."""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("completion")
    for shell in SHELLS:
        with pytest.MonkeyPatch.context() as patch:
            written: list[str] = []
            patch.setattr("builtins.print", lambda text, end="", into=written: into.append(text))
            assert main(["completion", shell]) == 0
        (folder / shell).write_text("".join(written), encoding="utf-8")
    return folder


def run(*argv: str) -> set[str]:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    assert done.stderr == ""
    return set(done.stdout.split("\n")) - {""}


def offered(shell: str, scripts: Path, *words: str) -> set[str]:
    """What the shell offers for the last of these words."""
    if shutil.which(shell) is None:
        pytest.skip(f"COMPLETION NOT TRIED: no {shell} on PATH")
    script = str(scripts / shell)
    if shell == "bash":
        return run("bash", "--norc", "-c", BASH, "bash", script, *words)
    if shell == "zsh":
        return run("zsh", "-f", "-c", ZSH, "zsh", script, *words)
    line = " ".join(words)
    found = run("fish", "--no-config", "-c", f"source {script}; complete -C '{line}'")
    return {each.partition("\t")[0] for each in found}


every_shell = pytest.mark.parametrize("shell", SHELLS)


@every_shell
def test_commands_and_their_sub_commands(shell: str, scripts: Path) -> None:
    everything = {"serve", "config", "doctor", "completion", *(extra.name for extra in EXTRA_COMMANDS)}
    assert everything <= offered(shell, scripts, "ppd-gateway", "")
    assert "check" in offered(shell, scripts, "ppd-gateway", "config", "")
    assert set(SHELLS) <= offered(shell, scripts, "ppd-gateway", "completion", "")


@every_shell
def test_every_setting_is_offered_to_serve_and_to_the_doctor(shell: str, scripts: Path) -> None:
    for command in ("serve", "doctor"):
        found = offered(shell, scripts, "ppd-gateway", command, "--")
        assert {setting.flag for setting in SETTINGS} <= found
        assert "--worker" not in found


@every_shell
def test_the_values_of_an_option(shell: str, scripts: Path) -> None:
    assert offered(shell, scripts, "ppd-gateway", "serve", "--insecure", "") == {"true", "false"}
    assert offered(shell, scripts, "ppd-gateway", "explain", "--table-lookup", "") == {"nearest", "interpolated"}


@every_shell
def test_options_of_a_command_that_lies_outside_the_gateway(shell: str, scripts: Path) -> None:
    assert "--policies" in offered(shell, scripts, "ppd-gateway", "simulate", "--")


def test_bash_offers_only_what_begins_so_and_files_where_one_is_wanted(scripts: Path, tmp_path: Path) -> None:
    assert offered("bash", scripts, "ppd-gateway", "se") == {"serve"}
    assert offered("bash", scripts, "ppd-gateway", "serve", "--port", "8000", "--pol") == {"--policy"}
    (tmp_path / "gateway.toml").touch()
    start = str(tmp_path / "gate")
    assert offered("bash", scripts, "ppd-gateway", "serve", "--config", start) == {str(tmp_path / "gateway.toml")}
    assert str(tmp_path / "gateway.toml") in offered("bash", scripts, "ppd-gateway", "config", "check", start)


def test_zsh_completes_files_where_one_is_wanted(scripts: Path) -> None:
    assert offered("zsh", scripts, "ppd-gateway", "serve", "--config", "") == {"*files*"}
