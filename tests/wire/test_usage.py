"""`usage` is what the client is billed by: P's cached-token details, everything else D's."""

from __future__ import annotations

import json

import msgspec
import pytest

from gateway.wire.usage import PrefillDetails, read_usage

REAL = b'{"cached_tokens":12,"created_cache_tokens":0,"multimodal_tokens":null}'
"""As a vLLM 0.32 pod spells details in a whole answer."""


def usage(details: bytes | None) -> msgspec.Raw:
    """D's usage, with prompt_tokens_details as given (None: absent)."""
    middle = b"" if details is None else b',"prompt_tokens_details":' + details
    return msgspec.Raw(
        b'{"prompt_tokens":20,"total_tokens":25,"completion_tokens":5' + middle + b',"completion_tokens_details":null}'
    )


def details_after(p: bytes | None, d: bytes | None, *, keep_null: bool) -> bytes | None:
    """What becomes of prompt_tokens_details; checks on the way that nothing else moved."""
    before = usage(d)
    after = PrefillDetails.of(usage(p)).put_into(before, keep_null=keep_null)
    fields = msgspec.json.decode(after, type=dict[str, msgspec.Raw])
    details = fields.pop("prompt_tokens_details", None)
    untouched = {name: value for name, value in json.loads(bytes(before)).items() if name != "prompt_tokens_details"}
    assert {name: json.loads(bytes(value)) for name, value in fields.items()} == untouched
    return None if details is None else bytes(details)


D_SAYS = [None, b"null", b'{"cached_tokens":99}', b"{}"]


@pytest.mark.parametrize("d", D_SAYS)
def test_in_a_whole_answer_ps_details_stand_as_p_wrote_them(d: bytes | None) -> None:
    assert details_after(REAL, d, keep_null=True) == REAL


@pytest.mark.parametrize("d", D_SAYS)
def test_in_a_stream_nulls_are_left_out_as_vllm_does(d: bytes | None) -> None:
    assert details_after(REAL, d, keep_null=False) == b'{"cached_tokens":12,"created_cache_tokens":0}'


@pytest.mark.parametrize("p", [None, b"null"])
@pytest.mark.parametrize(
    ("d", "whole"),
    [(None, None), (b"null", b"null"), (b'{"cached_tokens":99}', b"null"), (b"{}", b"null")],
)
def test_where_p_says_nothing_ds_numbers_do_not_stand(p: bytes | None, d: bytes | None, whole: bytes | None) -> None:
    assert details_after(p, d, keep_null=True) == whole
    assert details_after(p, d, keep_null=False) is None


def test_zero_cached_tokens_are_something_said() -> None:
    p = b'{"cached_tokens":0}'
    assert details_after(p, b'{"cached_tokens":19}', keep_null=True) == p
    assert details_after(p, b'{"cached_tokens":19}', keep_null=False) == p


def test_details_take_the_place_they_had() -> None:
    after = PrefillDetails.of(usage(b'{"cached_tokens":1}')).put_into(usage(b"null"), keep_null=True)
    assert bytes(after) == (
        b'{"prompt_tokens":20,"total_tokens":25,"completion_tokens":5,'
        b'"prompt_tokens_details":{"cached_tokens":1},"completion_tokens_details":null}'
    )


@pytest.mark.parametrize("p", [None, msgspec.Raw(b"null"), msgspec.Raw(b"[]"), msgspec.Raw(b'"x"')])
def test_a_p_without_usage_has_no_details(p: msgspec.Raw | None) -> None:
    assert PrefillDetails.of(p).raw is None


@pytest.mark.parametrize(
    ("value", "cached"),
    [
        (b'{"prompt_tokens":20,"prompt_tokens_details":{"cached_tokens":16}}', 16),
        (b'{"prompt_tokens":20,"prompt_tokens_details":{"cached_tokens":0}}', 0),
        (b'{"prompt_tokens":20,"prompt_tokens_details":{"cached_tokens":null}}', 0),
        (b'{"prompt_tokens":20,"prompt_tokens_details":{}}', 0),
        (b'{"prompt_tokens":20,"prompt_tokens_details":null}', 0),
        (b'{"prompt_tokens":20}', 0),
        (b'{"prompt_tokens":20,"prompt_tokens_details":{"cached_tokens":21}}', 20),
    ],
)
def test_cached_tokens_are_zero_where_nothing_is_said_and_never_more_than_the_prompt(value: bytes, cached: int) -> None:
    read = read_usage(msgspec.Raw(value))
    assert read is not None
    assert read.cached_tokens == cached


def test_counts_are_read() -> None:
    read = read_usage(msgspec.Raw(b'{"prompt_tokens":20,"total_tokens":25,"completion_tokens":5,"new":[1]}'))
    assert read is not None
    assert (read.prompt_tokens, read.output_tokens) == (20, 5)


def test_a_null_completion_count_is_zero() -> None:
    read = read_usage(msgspec.Raw(b'{"prompt_tokens":20,"completion_tokens":null}'))
    assert read is not None
    assert read.output_tokens == 0


@pytest.mark.parametrize("value", [None, b"null", b"[]", b'"x"', b'{"prompt_tokens":"20"}', b'{"prompt_tokens":2.5}'])
def test_a_usage_that_is_none_or_odd_reads_as_none(value: bytes | None) -> None:
    assert read_usage(None if value is None else msgspec.Raw(value)) is None
