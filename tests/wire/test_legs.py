"""The two legs carry the same prompt, and no client names blocks on a pod."""

from __future__ import annotations

import msgspec
import pytest

from gateway.wire.contract import Api
from gateway.wire.fields import parse
from gateway.wire.legs import (
    decode_body,
    prefill_body,
    wants_continuous_usage,
    wants_stream,
    wants_usage,
    without_handover,
    without_session,
)

PROMPT_FIELDS = ("model", "messages", "prompt", "tools", "chat_template_kwargs", "cache_salt", "truncate_prompt_tokens")
THEIRS = b'{"do_remote_prefill":true,"remote_engine_id":"e-1","remote_block_ids":[[7,8]],"remote_port":5}'


def cleaned(body: bytes) -> tuple[dict[str, bytes], tuple[str, ...]]:
    clean = without_handover(parse(body))
    return {name: bytes(value) for name, value in clean.fields.items()}, clean.removed


# Clients that name blocks


def test_an_honest_body_is_left_alone() -> None:
    fields = parse(b'{"model":"m","vllm_xargs":{"a" : 1}}')
    clean = without_handover(fields)
    assert clean.fields == fields
    assert clean.removed == ()


@pytest.mark.parametrize("name", ["kv_transfer_params", "ec_transfer_params"])
@pytest.mark.parametrize("value", [b'{"remote_block_ids":[1]}', b"null", b'"x"', b"[]"])
def test_a_clients_own_handover_is_taken_out(name: str, value: bytes) -> None:
    fields, removed = cleaned(b'{"model":"m","' + name.encode() + b'":' + value + b',"n":1}')
    assert fields == {"model": b'"m"', "n": b"1"}
    assert removed == (name,)


def test_escapes_in_the_name_do_not_hide_it() -> None:
    fields, removed = cleaned(b'{"\\u006bv_transfer_params":{},"ec\\u005ftransfer_params":{},"a":1}')
    assert fields == {"a": b"1"}
    assert removed == ("kv_transfer_params", "ec_transfer_params")


def test_a_second_of_two_does_not_slip_through() -> None:
    fields, _ = cleaned(b'{"kv_transfer_params":null,"a":1,"kv_transfer_params":{"remote_block_ids":[1]}}')
    assert fields == {"a": b"1"}


def test_vllm_xargs_is_the_same_door() -> None:
    fields, removed = cleaned(b'{"vllm_xargs":{"kv_transfer_params":{},"keep":1.50,"ec_transfer_params":{}},"a":1}')
    assert fields == {"vllm_xargs": b'{"keep":1.50}', "a": b"1"}
    assert removed == ("vllm_xargs",)


def test_escapes_inside_vllm_xargs_do_not_hide_it_either() -> None:
    fields, removed = cleaned(b'{"vllm_xargs": { "kv\\u005Ftransfer_params" : {} } }')
    assert fields == {"vllm_xargs": b"{}"}
    assert removed == ("vllm_xargs",)


def test_the_name_deeper_inside_is_only_data() -> None:
    body = b'{"vllm_xargs":{"a":{"kv_transfer_params":1}},"metadata":{"kv_transfer_params":1}}'
    fields, removed = cleaned(body)
    assert fields["vllm_xargs"] == b'{"a":{"kv_transfer_params":1}}'
    assert fields["metadata"] == b'{"kv_transfer_params":1}'
    assert removed == ()


@pytest.mark.parametrize("value", [b"null", b"[]", b'"{\\"kv_transfer_params\\":{}}"', b"1"])
def test_a_vllm_xargs_that_is_no_object_is_the_pods_to_judge(value: bytes) -> None:
    fields, removed = cleaned(b'{"vllm_xargs":' + value + b"}")
    assert fields == {"vllm_xargs": value}
    assert removed == ()


def test_all_doors_at_once_are_all_reported() -> None:
    body = b'{"kv_transfer_params":1,"ec_transfer_params":2,"vllm_xargs":{"kv_transfer_params":3}}'
    fields, removed = cleaned(body)
    assert fields == {"vllm_xargs": b"{}"}
    assert removed == ("kv_transfer_params", "ec_transfer_params", "vllm_xargs")


def test_the_clients_session_id_ends_at_the_gateway() -> None:
    fields = parse(b'{"a":1,"s\\u0065ssion_id":"theirs","conversation_id":"c","b":2}')
    assert list(without_session(fields)) == ["a", "conversation_id", "b"]


@pytest.mark.parametrize("body", [b'{"a":1}', b'{"session_id":null}', b'{"session_id":7}'])
def test_a_session_id_that_is_no_text_is_the_pods_to_judge(body: bytes) -> None:
    assert without_session(parse(body)) == parse(body)


# The decode leg


def decoded(body: bytes, handover: bytes | None = None, *, ask_usage: bool = True) -> bytes:
    return decode_body(parse(body), None if handover is None else msgspec.Raw(handover), ask_usage=ask_usage)


def test_a_request_that_does_not_stream_goes_to_d_as_it_came() -> None:
    body = b'{"model":"m","messages":[{"role" : "user"}],"stream":false,"stream_options":{"x":1},"stop":["a"]}'
    assert decoded(body) == body


def test_the_handover_reaches_d_unread_and_unchanged() -> None:
    odd = b'{ "remote_block_ids" : [[1,2]], "new_in_vllm_99":1.50 }'
    assert decoded(b'{"model":"m"}', odd) == b'{"model":"m","kv_transfer_params":' + odd + b"}"


@pytest.mark.parametrize(
    ("options", "on_d"),
    [
        (b"", b'{"include_usage":true}'),
        (b"null", b'{"include_usage":true}'),
        (b"{}", b'{"include_usage":true}'),
        (b'{"include_usage":false}', b'{"include_usage":true}'),
        (b'{"include_usage":null}', b'{"include_usage":true}'),
        (b'{"include_usage":true}', b'{"include_usage":true}'),
        (b'{ "include_usage" : true }', b'{"include_usage":true}'),
        (b'{"new":1.0,"include_usage":false,"x":[ ]}', b'{"new":1.0,"include_usage":true,"x":[ ]}'),
        (
            b'{"include_usage":true,"continuous_usage_stats":true}',
            b'{"include_usage":true,"continuous_usage_stats":true}',
        ),
        (b'{"continuous_usage_stats":true}', b'{"continuous_usage_stats":false,"include_usage":true}'),
        (
            b'{"include_usage":false,"continuous_usage_stats":true}',
            b'{"include_usage":true,"continuous_usage_stats":false}',
        ),
        (b'"nonsense"', b'"nonsense"'),
        (b"[1]", b"[1]"),
    ],
)
def test_a_stream_is_asked_for_its_usage_and_for_nothing_else(options: bytes, on_d: bytes) -> None:
    sent = b'{"stream":true,"stream_options":' + options + b"}" if options else b'{"stream":true}'
    assert decoded(sent) == b'{"stream":true,"stream_options":' + on_d + b"}"


@pytest.mark.parametrize(
    "options", [b"", b',"stream_options":null', b',"stream_options":{"continuous_usage_stats":true}']
)
def test_a_stream_that_is_not_to_be_asked_goes_as_it_came(options: bytes) -> None:
    body = b'{"stream":true' + options + b"}"
    assert decoded(body, ask_usage=False) == body


def test_the_clients_body_itself_is_not_touched() -> None:
    fields = parse(b'{"stream":true}')
    decode_body(fields, msgspec.Raw(b"{}"), ask_usage=True)
    assert list(fields) == ["stream"]


@pytest.mark.parametrize(
    ("value", "streams"), [(b"true", True), (b"false", False), (b"null", False), (b"1", True), (b'"on"', True)]
)
def test_a_stream_is_asked_for_by_whatever_pydantic_takes_for_true(value: bytes, streams: bool) -> None:
    assert wants_stream(parse(b'{"stream":' + value + b"}")) is streams


def test_a_request_that_does_not_say_does_not_stream() -> None:
    assert wants_stream(parse(b"{}")) is False


@pytest.mark.parametrize(
    ("options", "usage", "continuous"),
    [
        (b"null", False, False),
        (b"{}", False, False),
        (b'{"include_usage":true}', True, False),
        (b'{"include_usage":false}', False, False),
        (b'{"include_usage":true,"continuous_usage_stats":true}', True, True),
        (b'{"include_usage":true,"continuous_usage_stats":false}', True, False),
        (b'{"include_usage":false,"continuous_usage_stats":true}', False, False),
        (b'{"continuous_usage_stats":true}', False, False),
        (b"[true]", False, False),
    ],
)
def test_what_a_client_wants_to_know_about_usage(options: bytes, usage: bool, continuous: bool) -> None:
    """As vLLM reads it (`serve/utils/api_utils.py`, should_include_usage)."""
    fields = parse(b'{"stream":true,"stream_options":' + options + b"}")
    assert (wants_usage(fields), wants_continuous_usage(fields)) == (usage, continuous)


def test_a_client_without_options_wants_no_usage() -> None:
    fields = parse(b'{"stream":true}')
    assert (wants_usage(fields), wants_continuous_usage(fields)) == (False, False)


@pytest.mark.parametrize("word", [b"1", b'"true"', b"1.0", b'"Yes"'])
def test_usage_is_wanted_by_whatever_pydantic_takes_for_true(word: bytes) -> None:
    """Seen on a real vLLM 0.32: `include_usage: 1` brings the usage chunk."""
    options = b'{"include_usage":' + word + b',"continuous_usage_stats":' + word + b"}"
    body = b'{"stream":true,"stream_options":' + options + b"}"
    assert wants_usage(parse(body))
    assert wants_continuous_usage(parse(body))
    assert decoded(body) == body


# Both legs


@pytest.mark.parametrize("api", Api)
def test_both_legs_show_the_same_prompt_byte_for_byte(api: Api) -> None:
    body = (
        b'{"model":"m","messages":[ {"content" : "\\u0068i","role":"user","x":1.50e3} ],"prompt":"a  b","n":1,'
        b'"tools":[{"z":1.0,"a":2}],"chat_template_kwargs":{"k":[ ]},"cache_salt":"s","truncate_prompt_tokens":9,'
        b'"stream":true,"max_tokens":7,"stop":["x"],"kv_transfer_params":{"remote_block_ids":[9]}}'
    )
    fields = without_handover(parse(body)).fields
    p = parse(prefill_body(api, fields))
    d = parse(decode_body(fields, msgspec.Raw(THEIRS), ask_usage=True))
    for name in PROMPT_FIELDS:
        assert bytes(p[name]) == bytes(d[name]) == bytes(fields[name]), name
    assert bytes(d["kv_transfer_params"]) == THEIRS
    assert bytes(d["max_tokens"]) == b"7"
    assert b'remote_block_ids":[9]' not in prefill_body(api, fields)


def test_options_that_are_nested_without_end_are_left_to_the_pod() -> None:
    deep = msgspec.Raw(b'{"include_usage":' + b"[" * 2000 + b"]" * 2000 + b"}")
    fields = {"stream": msgspec.Raw(b"true"), "stream_options": deep, "vllm_xargs": deep}
    assert bytes(deep) in decode_body(without_handover(fields).fields, None, ask_usage=True)
