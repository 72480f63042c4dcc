"""What the settings of the admin API and of the canary mean together."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.core.guard import GuardSettings
from gateway.ops import keys
from gateway.ops.config import Config, load
from gateway.ops.layers import ConfigError

DECODE = {"decode": ["http://d:1"], "prefill": ["http://p:1"]}


def configured(**flags: Any) -> Config:
    return load(None, {}, {**DECODE, **{key.replace("__", "."): value for key, value in flags.items()}})


def complaint(**flags: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        configured(**flags)
    return str(caught.value)


def test_by_default_there_is_no_admin_api_and_everything_is_the_canarys() -> None:
    config = configured()
    assert config.admin is None
    assert (config.canary.percent, config.canary.shadow, config.canary.passthrough) == (100.0, False, None)
    assert config.canary.guard == GuardSettings(), "the settings' defaults are those of the code"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_on_loopback_the_admin_api_needs_no_token(host: str) -> None:
    admin = configured(admin__host=host, admin__port="9901").admin
    assert admin is not None
    assert (admin.host, admin.port, admin.token_file) == (host, 9901, None)


def test_elsewhere_it_does(tmp_path: Path) -> None:
    assert complaint(admin__host="0.0.0.0", admin__port="1") == (
        "flag --admin-host: admin.host: others reach 0.0.0.0: give the admin API a token (admin.token_file)"
    )
    admin = configured(admin__host="0.0.0.0", admin__port="1", admin__token_file=str(tmp_path / "t")).admin
    assert admin is not None
    assert complaint(admin__token_file="/t") == "flag --admin-token-file: admin.token_file: it needs admin.port too"


def test_looking_without_the_token_is_for_this_machine_only(tmp_path: Path) -> None:
    token = str(tmp_path / "t")
    admin = configured(admin__port="1", admin__token_file=token, admin__view_without_token=True).admin
    assert admin is not None
    assert admin.view
    assert complaint(
        admin__host="0.0.0.0", admin__port="1", admin__token_file=token, admin__view_without_token=True
    ) == (
        "flag --admin-view-without-token: admin.view_without_token: others reach 0.0.0.0: they would see everything too"
    )


@pytest.mark.parametrize("content", [None, "", "two words", "\u00e4"])
def test_a_token_that_is_none_is_refused_before_anything_starts(content: str | None, tmp_path: Path) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError) as caught:
        keys.check(configured(admin__port="1", admin__token_file=str(file), policy="pd"))
    assert str(caught.value).startswith(f"{file}: admin.token_file: ")
    assert (content or "nothing") not in str(caught.value).removeprefix(str(file))


def test_a_token_that_everybody_can_read_is_warned_of(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.touch(0o644)
    [warning] = configured(admin__port="1", admin__token_file=str(file)).warnings
    assert warning == f"admin.token_file: every user of this machine can read {file}"


def test_a_pass_through_is_neither_a_pod_nor_for_a_shadow() -> None:
    assert "is one of the pods" in complaint(canary__passthrough="http://P:1/")
    assert "in shadow" in complaint(canary__passthrough="http://x:1", canary__shadow="true")
    assert configured(canary__passthrough="http://X:1/").canary.passthrough == "http://x:1"


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("canary__percent", "101", "between 0 and 100"),
        ("canary__percent", "nan", "between 0 and 100"),
        ("canary__quantile", "1", "between 0.5 and 0.999"),
        ("canary__error_margin", "-0.1", "between 0 and 1"),
        ("canary__false_alarms", "0", "between 1e-09 and 0.5"),
        ("canary__window_s", "0", "seconds above 0"),
        ("canary__passthrough", "file:///etc", "not a URL"),
        ("admin__port", "65536", "between 0 and 65535"),
        ("log_format", "xml", "one of auto, console, json"),
    ],
)
def test_what_is_out_of_range_is_refused(key: str, value: str, reason: str) -> None:
    assert reason in complaint(**{key: value})


def test_the_settings_become_the_guards() -> None:
    config = configured(
        canary__window_s="60",
        canary__look_s="5",
        canary__min_samples="30",
        canary__quantile="0.9",
        canary__latency_margin="0.1",
        canary__error_margin="0.02",
        canary__false_alarms="0.001",
        canary__guard="false",
    )
    assert config.canary.guard == GuardSettings(False, 60.0, 5.0, 30, 0.9, 0.1, 0.02, 0.001)


def test_every_setting_that_a_reload_changes_is_one() -> None:
    from gateway.ops.reload import AT_RUN_TIME
    from gateway.ops.settings import BY_KEY

    assert set(BY_KEY) >= AT_RUN_TIME


def test_without_the_admin_api_its_library_is_not_loaded() -> None:
    code = "import sys, gateway.ops.cli, gateway.ops.serve; print('aiohttp' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout == "False\n"
