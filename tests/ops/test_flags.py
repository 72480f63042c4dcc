"""The settings as flags of `serve` and `doctor`."""

from __future__ import annotations

import argparse

import pytest

from gateway.ops import flags
from gateway.ops.cli import main
from gateway.ops.setting import Setting
from gateway.ops.settings import SETTINGS


@pytest.mark.parametrize("command", ["serve", "doctor"])
def test_help_names_every_setting(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    words = capsys.readouterr().out.split()
    assert {setting.flag for setting in SETTINGS} <= set(words)


def test_a_percent_sign_in_a_help_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = Setting("some.key", str, "50 %", "99 % of (all) of them", "X")
    monkeypatch.setattr(flags, "SETTINGS", (odd,))
    parser = argparse.ArgumentParser()
    flags.add_flags(parser)
    assert "99 % of (all) of them (default 50 %)" in " ".join(parser.format_help().split())
    assert flags.flags_of(parser.parse_args(["--some-key", "x"])) == {"some.key": "x"}
    assert flags.flags_of(parser.parse_args([])) == {"some.key": None}
