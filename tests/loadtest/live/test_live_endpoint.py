"""Addresses, headers and keys."""

from pathlib import Path

import pytest

from loadtest.live.endpoint import endpoint_of, header_of, key_of, trust
from loadtest.live.errors import LoadtestError


@pytest.mark.parametrize(
    ("url", "shown", "host", "port", "target"),
    [
        ("http://h:8000", "http://h:8000", "h", 8000, "/v1/models"),
        ("http://h:8000/v1/", "http://h:8000", "h", 8000, "/v1/models"),
        ("http://h", "http://h", "h", 80, "/v1/models"),
        ("https://h/openai/v1", "https://h/openai", "h", 443, "/openai/v1/models"),
        ("http://[::1]:9", "http://[::1]:9", "::1", 9, "/v1/models"),
    ],
)
def test_an_address_with_or_without_v1(url: str, shown: str, host: str, port: int, target: str) -> None:
    found = endpoint_of(url)
    assert (found.url, found.host, found.port) == (shown, host, port)
    assert found.head("GET", "/v1/models").startswith(f"GET {target} HTTP/1.1\r\nHost: ".encode())
    assert (found.tls is not None) == url.startswith("https")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("h:8000", "not a URL"),
        ("ftp://h", "not a URL"),
        ("http://", "not a URL"),
        ("http://h:99999", "Port"),
        ("http://h/v1?x=1", "ends with its path"),
        ("http://h/a b", "ends with its path"),
        ("http://user:secret@h", "a user or a password"),
    ],
)
def test_what_is_no_address_is_one_line(url: str, why: str) -> None:
    with pytest.raises(LoadtestError, match=why) as error:
        endpoint_of(url)
    assert "secret" not in str(error.value)


def test_a_key_is_sent_and_not_shown() -> None:
    found = endpoint_of("http://h", headers=[("X-A", "b")], key="sk-secret")
    head = found.head("POST", "/v1/completions")
    assert b"X-A: b\r\nAuthorization: Bearer sk-secret\r\nContent-Type: application/json\r\n" in head
    assert "secret" not in repr(found)


def test_a_header_is_a_name_and_a_value() -> None:
    assert header_of("X-Tenant:  a b ") == ("X-Tenant", "a b")
    for line, why in (("nonsense", "must be"), ("X-A: b\r\nX-C: d", "must be"), ("Host: x", "sets this one itself")):
        with pytest.raises(LoadtestError, match=why):
            header_of(line)


def test_a_bad_key_is_not_repeated() -> None:
    with pytest.raises(LoadtestError, match="--api-key-file k: holds no key") as error:
        key_of("--api-key-file k", "two words")
    assert "words" not in str(error.value)


def test_a_ca_file_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(LoadtestError, match="nowhere"):
        trust(tmp_path / "nowhere")
    empty = tmp_path / "empty.pem"
    empty.touch()
    with pytest.raises(LoadtestError, match=r"empty\.pem"):
        trust(empty)
