"""The settings of the state that outlives a process, checked before anything is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.ops.cli import main
from gateway.ops.config import Config, load
from gateway.ops.layers import ConfigError
from gateway.ops.settings import SETTINGS
from gateway.ops.state import shown


def configured(**flags: Any) -> Config:
    return load(None, {}, {"decode": ["http://d:1"], "prefill": ["http://p:1"], **flags})


def test_nothing_is_kept_unless_it_is_asked_for() -> None:
    config = configured()
    assert (config.state, config.state_file, config.workers) == (None, None, 1)
    assert (config.state_timeout_s, config.state_interval_s, config.state_namespace) == (0.005, 30.0, "default")


@pytest.mark.parametrize(
    "url",
    ["redis://host", "redis://host:6379/3", "rediss://user:pass@host:6380/0", "redis://[::1]:6379", "rediss://h/0?x=y"],
)
def test_urls_of_a_server(url: str) -> None:
    assert configured(state=url).state == url


@pytest.mark.parametrize(
    "url",
    [
        "host:6379",
        "http://host",
        "redis://",
        "redis://host/name",
        "redis://host:0",
        "redis://:secret@h:x",
        "redis://h h",
    ],
)
def test_what_is_no_url_of_a_server_is_not_quoted_for_it_may_hold_a_password(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configured(state=url)
    line = "flag --state: state: must be a URL like redis://host:6379/0 or rediss://user:password@host:6379/0"
    assert str(caught.value) == line


@pytest.mark.parametrize("name", ["", "a b", "a:b", "x" * 65, "*"])
def test_a_namespace_is_one_plain_word(name: str) -> None:
    with pytest.raises(ConfigError, match="state_namespace: must be up to 64 letters"):
        configured(state_namespace=name)


def test_a_password_is_shown_nowhere() -> None:
    config = configured(state="redis://user:secret@host:6379/2")
    assert "secret" not in repr(config)
    assert shown("rediss://user:secret@[::1]:6379/2?ssl_ca_path=/x") == "rediss://[::1]:6379/2"
    assert shown("redis://host") == "redis://host"


def test_several_workers_need_a_state_to_share() -> None:
    with pytest.raises(ConfigError, match="flag --workers: workers: more than one needs state = "):
        configured(workers="2")
    assert configured(workers="2", state="redis://host").workers == 2
    assert configured(workers="1").workers == 1


def test_config_check_knows_them(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in SETTINGS:
        monkeypatch.delenv(setting.variable, raising=False)
    path = tmp_path / "gateway.toml"
    pods = 'policy = "local"\nprefill = ["http://p:1"]\ndecode = ["http://d:1"]\n'
    path.write_text(f'{pods}state = "redis://h"\nworkers = 4\nstate_file = "{tmp_path}/nowhere/state"\n')
    assert main(["config", "check", str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        f"{path}: warning: state_file: nothing can be written in {tmp_path}/nowhere"
    ]
    path.write_text(f"{pods}workers = 4\n")
    assert main(["config", "check", str(path)]) == 2
    assert capsys.readouterr().err == (
        f'ppd-gateway: {path}: workers: more than one needs state = "redis://…", which they share\n'
    )
