"""What pods, weights, addresses and fields may be said to be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.core.pods import Role
from gateway.core.weights import Weights
from gateway.ops.config import load
from gateway.ops.layers import ConfigError
from tests.ops.configured import DECODE, complaint, configured

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
