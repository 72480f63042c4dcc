"""Flags, environment and file become one configuration, or one line that says what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.core.pods import Role
from gateway.core.weights import Weights
from gateway.net.settings import GatewaySettings
from gateway.ops.config import Config, load
from gateway.ops.layers import ConfigError
from gateway.ops.settings import BY_KEY, SETTINGS

DECODE: dict[str, Any] = {"decode": ["http://d0:8200"]}


def configured(
    file: str | None = None, environment: dict[str, str] | None = None, *, folder: Path | None = None, **flags: Any
) -> Config:
    """Load with a file of that text; keyword arguments are flags by key, with `__` for the dot."""
    path = None
    if file is not None:
        assert folder is not None
        path = folder / "gateway.toml"
        path.write_text(file, encoding="utf-8")
    given = {setting.key: None for setting in SETTINGS} | {
        key.replace("__", "."): value for key, value in flags.items()
    }
    return load(path, environment or {}, given)


def complaint(file: str | None = None, environment: dict[str, str] | None = None, **more: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        configured(file, environment, **more)
    line = str(caught.value)
    assert "\n" not in line
    return line


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


# URLs


@pytest.mark.parametrize(
    ("said", "url"),
    [
        ("http://host:8000", "http://host:8000"),
        ("http://host:8000/", "http://host:8000"),
        ("http://host", "http://host"),
        ("HTTPS://Host.Example:443", "https://host.example"),
        ("http://10.0.0.1:1", "http://10.0.0.1:1"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("http://[FE80::1]", "http://[fe80::1]"),
    ],
)
def test_a_url_is_normalised_to_scheme_host_and_port(said: str, url: str) -> None:
    assert configured(decode=[said]).pods == ((Role.DECODE, url),)


@pytest.mark.parametrize(
    "said",
    [
        "",
        "host",
        "host:8000",
        "//host:8000",
        "ftp://host",
        "http://",
        "http://:8000",
        "http:///path",
        "http://host:port",
        "http://host:99999",
        "http://host:-1",
        "http://host:8000/v1",
        "http://host:8000/?a=b",
        "http://host:8000?a=b",
        "http://host:8000/#x",
        "http://ho st:8000",
        "http://host:8000\n",
        " http://host:8000",
        "http://[::1",
        "http://user@host:8000",
        "http://user:secret@host:8000",
    ],
)
def test_a_bad_url_is_refused(said: str) -> None:
    line = complaint(decode=[said])
    assert line.startswith("flag --decode: decode: ")
    assert "secret" not in line


@pytest.mark.parametrize("said", ["http://user:secret@host:port", "ftp://user:secret@host", "http://user:secret@ host"])
def test_a_password_is_never_quoted(said: str) -> None:
    assert "secret" not in complaint(decode=[said])


def test_a_pod_given_twice_is_refused() -> None:
    assert complaint(decode=["http://d:1", "http://d:1"]) == (
        "flag --decode: decode: http://d:1 is already a decode pod"
    )


def test_a_pod_in_two_roles_is_refused() -> None:
    assert complaint(prefill=["http://a:1"], decode=["http://a:1"]) == (
        "flag --decode: decode: http://a:1 is already a prefill pod"
    )


def test_a_pod_given_twice_in_two_spellings_is_refused(tmp_path: Path) -> None:
    file = 'replica = ["http://HOST:1/"]\n'
    line = complaint(file, {"PPD_DECODE": "HTTP://host:1"}, folder=tmp_path)
    assert line == f"{tmp_path}/gateway.toml: replica: http://host:1 is already a decode pod"


@pytest.mark.parametrize("flags", [{}, {"prefill": ["http://p"]}, {"replica": ["http://r"]}, {"decode": []}])
def test_a_decode_pod_is_needed(flags: dict[str, Any]) -> None:
    assert complaint(**flags).endswith("decode: at least one decode pod is needed")


def test_a_missing_decode_pod_is_blamed_on_the_file_if_there_is_one(tmp_path: Path) -> None:
    assert complaint("port = 1\n", folder=tmp_path) == (
        f"{tmp_path}/gateway.toml: decode: at least one decode pod is needed"
    )
    assert complaint() == "the command line: decode: at least one decode pod is needed"


def test_no_prefill_pod_is_allowed_but_said() -> None:
    assert configured(**DECODE).warnings == ("no prefill pod: every turn runs whole on a decode or replica pod",)
    assert configured(prefill=["http://p"], **DECODE).warnings == ()


def test_pods_are_counted_by_role() -> None:
    config = configured(prefill=["http://p"], decode=["http://d:1", "http://d:2"], replica=["http://r"])
    assert [config.count(role) for role in Role] == [1, 2, 1]


# Weights


@pytest.mark.parametrize(
    ("flags", "weights"),
    [
        ({}, Weights(1, 1)),
        ({"weights": "throughput"}, Weights(1, 4)),
        ({"weights": "throughput", "w_ttft": "3"}, Weights(3, 4)),
        ({"w_ttft": "0", "w_tpot": "0.5"}, Weights(0, 0.5)),
    ],
)
def test_single_weights_replace_those_of_the_preset(flags: dict[str, Any], weights: Weights) -> None:
    assert configured(**DECODE, **flags).net.weights.default == weights


def test_a_bad_weight_behind_a_good_one_is_blamed_on_the_right_key() -> None:
    line = complaint(**DECODE, w_ttft="1", w_tpot="-1")
    assert line == "flag --w-tpot: w_tpot: the weight tpot must be a number of 0 or more, not -1.0"


def test_a_tenants_weights_are_found_by_the_hash_of_its_key() -> None:
    hashed = "0123456789abcdef" * 4
    spec = f"{hashed}:ttft=2,tpot=1"
    for config in (
        configured(**DECODE, tenant_weights=[spec]),
        configured(None, {"PPD_TENANT_WEIGHTS": f"{spec};"}, **DECODE),
    ):
        assert config.net.weights.tenants == {hashed: Weights(2, 1)}
    assert configured(**DECODE, tenant_weights=["bob:ttft=3"]).net.weights.tenants == {"bob": Weights(3, 1)}


# Who may reach it


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "localhost", "::ffff:127.0.0.1"])
def test_what_nobody_else_reaches_needs_no_keys(host: str) -> None:
    config = configured(**DECODE, prefill=["http://p0:8100"], host=host)
    assert config.warnings == ()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "2001:db8::1", "gateway.example", "::ffff:10.1.2.3"])
def test_what_others_reach_needs_keys_or_the_word_insecure(host: str, tmp_path: Path) -> None:
    assert complaint(**DECODE, host=host) == (
        f"flag --host: host: others reach {host}: give clients keys (api_keys, `ppd-gateway keys add NAME`), "
        "or say insecure = true where something in front checks them"
    )
    open_to_all = configured(**DECODE, prefill=["http://p0:8100"], host=host, insecure="true")
    assert open_to_all.warnings == (f"insecure: whoever reaches {host} may use the pods",)
    keys = tmp_path / "keys"
    keys.touch(0o600)
    assert configured(**DECODE, prefill=["http://p0:8100"], host=host, api_keys=str(keys)).warnings == ()
    keys.chmod(0o644)
    told = configured(**DECODE, prefill=["http://p0:8100"], host=host, api_keys=str(keys)).warnings
    assert told == (f"api_keys: every user of this machine can read {keys}",)


# Fields that P must not be kept from getting


@pytest.mark.parametrize("field", ["kv_transfer_params", "stream", "max_tokens"])
def test_a_field_that_makes_the_prefill_leg_cannot_be_kept(field: str) -> None:
    assert "prefill_keep_fields" in complaint(**DECODE, prefill_keep_fields=[field])


def test_a_number_beyond_all_bounds_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "g.toml"
    path.write_text(f'decode = ["http://d:1"]\ndrain_timeout_s = {10**400}\n')
    with pytest.raises(ConfigError, match="drain_timeout_s: must be a number of seconds"):
        load(path, {}, {})


def test_the_default_port_makes_no_second_pod() -> None:
    with pytest.raises(ConfigError, match="is already a"):
        load(None, {}, {"decode": ["http://a"], "prefill": ["http://a:80"]})
