"""Flags, environment and file become one configuration, or one line that says what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.core.pods import Role
from gateway.net.settings import GatewaySettings
from gateway.ops.config import load
from gateway.ops.layers import ConfigError
from gateway.ops.settings import BY_KEY, SETTINGS
from tests.ops.configured import DECODE, complaint, configured

# Where values come from


def test_nothing_but_a_decode_pod_is_needed() -> None:
    config = configured(**DECODE)
    assert config.pods == ((Role.DECODE, "http://d0:8200"),)
    assert (config.policy, config.host, config.port, config.log_level) == ("ppd", "127.0.0.1", 8000, "info")
    assert (config.max_conversations, config.conversation_ttl_s) == (200_000, 3600.0)
    assert config.net == GatewaySettings(), "the table's defaults are those of the code"


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = 'decode = ["http://file:1"]\nport = 1001\nhost = "127.0.0.2"\nlog_level = "error"\n'
    environment = {"PPD_PORT": "1002", "PPD_HOST": "127.0.0.3"}
    config = configured(file, environment, folder=tmp_path, port="1003")
    assert (config.port, config.host, config.log_level) == (1003, "127.0.0.3", "error")


def test_lists_are_replaced_and_not_added_to(tmp_path: Path) -> None:
    file = 'decode = ["http://file:1", "http://file:2"]\nprefill = ["http://file:3"]\n'
    config = configured(file, {"PPD_DECODE": "http://variable:1"}, folder=tmp_path)
    assert config.pods == ((Role.PREFILL, "http://file:3"), (Role.DECODE, "http://variable:1"))


def test_a_value_that_loses_is_checked_all_the_same(tmp_path: Path) -> None:
    line = complaint('decode = ["http://d"]\nport = "x"\n', folder=tmp_path, port="1003")
    assert line == f"{tmp_path}/gateway.toml: port: must be a whole number, not 'x'"


def test_tables_of_the_file_hold_the_keys_with_a_dot(tmp_path: Path) -> None:
    file = 'decode = ["http://d"]\n[timeouts]\nprefill_s = 7\n[health]\nfailures = 9\n[conversations]\nmax = 5\n'
    config = configured(file, folder=tmp_path)
    assert (config.net.timeouts.prefill_s, config.net.health.failures, config.max_conversations) == (7.0, 9, 5)
    assert config.net.timeouts.connect_s == 5.0


def test_every_key_has_a_flag_and_a_variable_of_the_same_name() -> None:
    setting = BY_KEY["timeouts.connect_s"]
    assert (setting.flag, setting.variable) == ("--timeouts-connect-s", "PPD_TIMEOUTS_CONNECT_S")
    assert (
        len({setting.flag for setting in SETTINGS}) == len({setting.variable for setting in SETTINGS}) == len(SETTINGS)
    )


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_every_default_passes_its_own_check(setting: Any) -> None:
    if setting.default is not None:
        value = list(setting.default) if setting.repeatable else setting.default
        assert setting.check(value) == setting.default


CHANGED: dict[str, tuple[str, object]] = {
    "prefill": ("http://p:1,http://p:2", ("http://p:1", "http://p:2")),
    "decode": ("http://d:1", ("http://d:1",)),
    "replica": ("http://r:1", ("http://r:1",)),
    "policy": ("local", "local"),
    "host": ("::1", "::1"),
    "port": ("0", 0),
    "max_body_bytes": ("1000", 1000),
    "prefill_keep_fields": ("response_format, tool_choice", ("response_format", "tool_choice")),
    "log_level": ("debug", "debug"),
    "drain_timeout_s": ("0.5", 0.5),
    "table": ("/tables/now", "/tables/now"),
    "table_lookup": ("interpolated", "interpolated"),
    "weights": ("ttft=2,tpot=1", "ttft=2,tpot=1"),
    "w_ttft": ("2", 2.0),
    "w_tpot": ("0", 0.0),
    "allow_request_weights": ("true", True),
    "threshold_tokens": ("0", 0),
    "decode_max_in_flight": ("16", 16),
    "expose_decisions": ("TRUE", True),
    "conversations.max": ("1", 1),
}
"""What a variable may say, and what is made of it."""


@pytest.mark.parametrize(("key", "said", "value"), [(key, *pair) for key, pair in CHANGED.items()])
def test_a_variable_is_read_as_what_its_key_is(key: str, said: str, value: object) -> None:
    assert BY_KEY[key].check(said) == value


@pytest.mark.parametrize("key", [setting.key for setting in SETTINGS if setting.key.endswith("_s")])
def test_every_time_takes_fractions_and_nothing_that_is_not_above_0(key: str) -> None:
    check = BY_KEY[key].check
    assert [check(value) for value in ("0.25", 3, 2.5)] == [0.25, 3.0, 2.5]
    for bad in (0, -1, "0", "nan", "inf", "-inf", float("nan"), "1e400", 1e9, True, "", "5s", None, [5]):
        with pytest.raises(ValueError, match=r"^must be a number of seconds"):
            check(bad)


@pytest.mark.parametrize(("said", "interpolated"), [("nearest", False), ("interpolated", True)])
def test_how_the_table_is_read(said: str, interpolated: bool) -> None:
    assert configured(**DECODE, table_lookup=said).interpolate is interpolated


# Lines that say what is wrong


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ({"port": "70000"}, "flag --port: port: must be between 0 and 65535"),
        ({"port": "-1"}, "flag --port: port: must be between 0 and 65535"),
        ({"port": "http"}, "flag --port: port: must be a whole number, not 'http'"),
        ({"port": "80.5"}, "flag --port: port: must be a whole number, not '80.5'"),
        ({"max_body_bytes": "0"}, "flag --max-body-bytes: max_body_bytes: must be between 1 and 1099511627776"),
        ({"host": ""}, "flag --host: host: must be a non-empty string"),
        (
            {"log_level": "loud"},
            "flag --log-level: log_level: must be one of debug, info, warning, error",
        ),
        ({"policy": "best"}, "flag --policy: policy: must be one of pd, local, readback, threshold, queue, ppd"),
        ({"table_lookup": "x"}, "flag --table-lookup: table_lookup: must be one of nearest, interpolated"),
        (
            {"allow_request_weights": "yes"},
            "flag --allow-request-weights: allow_request_weights: must be true or false",
        ),
        ({"weights": "fast"}, "flag --weights: weights: weights are written ttft=2,tpot=1 or as one of "),
        ({"w_ttft": "-1"}, "flag --w-ttft: w_ttft: the weight ttft must be a number of 0 or more, not -1.0"),
        ({"timeouts__connect_s": "soon"}, "flag --timeouts-connect-s: timeouts.connect_s: must be a number of seconds"),
        ({"health__failures": "0"}, "flag --health-failures: health.failures: must be between 1 and 1000"),
        ({"prefill": ["p0:8000"]}, "flag --prefill: prefill: 'p0:8000' is not a URL like http://host:8000"),
        (
            {"tenant_weights": ["no/name:ttft=2"]},
            "flag --tenant-weights: tenant_weights: is written WHO:ttft=2,tpot=1; WHO is ",
        ),
    ],
)
def test_a_bad_flag_is_one_line_with_its_name_and_its_key(flags: dict[str, Any], line: str) -> None:
    assert complaint(**DECODE, **flags).startswith(line)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("port = 'x'", "port: must be a whole number, not 'x'"),
        ("port = 80.0", "port: must be a whole number"),
        ("port = true", "port: must be a whole number"),
        ("port = [1]", "port: must be a whole number"),
        ("host = 5", "host: must be a non-empty string"),
        ("decode = 5", "decode: must be a list"),
        ("decode = [5]", "decode: must be a URL like http://host:8000"),
        ("timeouts = 5", "timeouts: unknown key"),
        ("[timeouts]\nconnect_s = -1", "timeouts.connect_s: must be a number of seconds above 0"),
        ("expose_decisions = 1", "expose_decisions: must be true or false"),
    ],
)
def test_a_bad_file_is_one_line_with_the_file_and_the_key(tmp_path: Path, text: str, line: str) -> None:
    assert complaint(text, folder=tmp_path).startswith(f"{tmp_path}/gateway.toml: {line}")


def test_a_bad_variable_is_one_line_with_the_variable_and_the_key() -> None:
    line = complaint(None, {"PPD_HEALTH_INTERVAL_S": "x", "PPD_DECODE": "http://d"})
    assert line == (
        "environment variable PPD_HEALTH_INTERVAL_S: health.interval_s: must be a number of seconds, not 'x'"
    )


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("prefil = []", "prefil: unknown key (did you mean prefill?)"),
        ("[timeouts]\nprefil_s = 3", "timeouts.prefil_s: unknown key (did you mean timeouts.prefill_s?)"),
        ("[timeout]\nprefill_s = 3", "timeout: unknown key"),
        ("zzz = 1", "zzz: unknown key"),
    ],
)
def test_an_unknown_key_is_refused_with_a_hint(tmp_path: Path, text: str, line: str) -> None:
    assert complaint(text, folder=tmp_path).startswith(f"{tmp_path}/gateway.toml: {line}")


def test_an_unknown_variable_is_refused_with_a_hint() -> None:
    assert complaint(None, {"PPD_PREFIL": "x"}) == (
        "environment variable PPD_PREFIL: unknown key (did you mean PPD_PREFILL?)"
    )


def test_variables_of_others_are_none_of_our_business() -> None:
    assert configured(None, {"PATH": "/bin", "XPPD_PORT": "x", "ppd_port": "x"}, **DECODE).port == 8000


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "none.toml", {}, {})
    assert str(caught.value) == f"{tmp_path}/none.toml: No such file or directory"


def test_a_file_that_is_no_toml_is_one_line(tmp_path: Path) -> None:
    assert complaint("port = \n", folder=tmp_path).startswith(f"{tmp_path}/gateway.toml: not valid TOML: ")


def test_a_file_that_is_no_text_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "gateway.toml"
    path.write_bytes(b"host = '\xff'")
    with pytest.raises(ConfigError, match=r"not UTF-8 text$"):
        load(path, {}, {})


# Kubernetes


SERVICE_LINKS = {
    "{}_SERVICE_HOST": "10.0.0.1",
    "{}_SERVICE_PORT": "8000",
    "{}_SERVICE_PORT_HTTP": "8000",
    "{}_PORT": "tcp://10.0.0.1:8000",
    "{}_PORT_8000_TCP": "tcp://10.0.0.1:8000",
    "{}_PORT_8000_TCP_PROTO": "tcp",
    "{}_PORT_8000_TCP_PORT": "8000",
    "{}_PORT_8000_TCP_ADDR": "10.0.0.1",
}
"""What Kubernetes puts into every pod's environment for a Service (kubernetes.io, service environment variables)."""


def service_links(service: str) -> dict[str, str]:
    return {name.format(service.upper().replace("-", "_")): value for name, value in SERVICE_LINKS.items()}


@pytest.mark.parametrize("service", ["ppd-gateway", "ppd-decode", "ppd-prefill", "ppd-a-b"])
def test_what_kubernetes_makes_up_for_our_services_is_ignored(service: str) -> None:
    config = configured(None, {**service_links(service), "PPD_DECODE": "http://d:1", "PPD_PORT": "9000"})
    assert (config.pods, config.port) == (((Role.DECODE, "http://d:1"),), 9000)


def test_a_service_may_be_called_just_ppd() -> None:
    assert configured(None, service_links("ppd"), **DECODE).port == 8000


def test_a_port_that_is_no_service_link_still_counts() -> None:
    assert "port: must be a whole number" in complaint(None, {"PPD_PORT": "eighty"}, **DECODE)
