"""The file of client keys."""

from __future__ import annotations

import pytest

from gateway.core.keys import Caller, KeyFileError, hash_of, read_keys

ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
"""SHA-256 of "abc" (FIPS 180-2, appendix B.1)."""

OTHER = "0" * 64


def test_a_key_is_found_by_its_hash() -> None:
    ring = read_keys(f"# keys\n\n  {ABC}\talice   laptop of Alice\r\n{OTHER} bob\n")
    assert hash_of("abc") == ABC
    assert ring.find("abc") == Caller("alice", ABC)
    assert ring.find("abC") is None
    assert ring.find("") is None
    assert ring.find("ключ") is None
    assert ring.find(ABC) is None, "the file itself opens nothing"
    assert len(ring) == 2
    assert ring.describe() == "2 keys of 2 tenants"


def test_a_tenant_may_have_several_keys() -> None:
    ring = read_keys(f"{ABC} alice\n{OTHER} alice\n")
    assert ring.describe() == "2 keys of 1 tenants"


def test_nothing_that_shows_a_ring_shows_its_keys() -> None:
    ring = read_keys(f"{ABC} alice")
    assert "alice" not in repr(ring)
    assert ABC not in repr(ring)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there is no key in it"),
        ("# nothing\n", "there is no key in it"),
        ("\nsk-secret alice\n", "line 2 does not begin with a SHA-256 in lower-case hex"),
        (f"{ABC.upper()} alice", "line 1 does not begin with a SHA-256 in lower-case hex"),
        (f"{ABC}", "line 1 names no tenant (letters, digits and _.@-, up to 64)"),
        (f"{ABC} sk-sécret", "line 1 names no tenant (letters, digits and _.@-, up to 64)"),
        (f"{ABC} {'a' * 65}", "line 1 names no tenant (letters, digits and _.@-, up to 64)"),
        (f"{ABC} alice\n{ABC} bob", "line 2 repeats a key"),
    ],
)
def test_a_bad_file_is_refused_in_words_that_quote_nothing(text: str, said: str) -> None:
    with pytest.raises(KeyFileError) as caught:
        read_keys(text)
    assert str(caught.value) == said


@pytest.mark.parametrize("key", ["", "a b", "a\n", "ключ", "a\x7f"])
def test_what_no_header_can_carry_is_no_key(key: str) -> None:
    with pytest.raises(ValueError, match="visible ASCII"):
        hash_of(key)
