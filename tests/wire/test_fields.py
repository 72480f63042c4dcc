"""A body is split into raw fields and joined again without a byte of a value changed."""

from __future__ import annotations

import json

import pytest

from gateway.wire.errors import BadRequestError
from gateway.wire.fields import flag_of, given, integer_of, is_null, join, parse, raw, string_of, value_of

SECRET = b"hunter2"


def split(body: bytes) -> dict[str, bytes]:
    return {name: bytes(value) for name, value in parse(body).items()}


def complaint(body: bytes) -> str:
    with pytest.raises(BadRequestError) as caught:
        parse(body)
    assert caught.value.status == 400
    return caught.value.message


def test_fields_come_in_the_clients_order() -> None:
    assert list(parse(b'{"z":1,"a":2,"m":3}')) == ["z", "a", "m"]


@pytest.mark.parametrize(
    "value",
    [
        b"1.50e3",
        b"-0",
        b"-0.0",
        b"1E400",
        b"123456789012345678901234567890",
        b"0.1000000000000000055511151231257827",
        b"true",
        b"null",
        b'"\\u00e9\\/\\n\\ud83d\\ude00"',
        '"é😀"'.encode(),
        b'{ "b" : [ 1 ,\n\t2 ] , "a":{ } }',
        b'[\r\n {"x" :null} ]',
        b'{"same":1,"same":2}',
    ],
)
def test_a_value_passes_byte_for_byte(value: bytes) -> None:
    body = b'{"before":1,"it":' + value + b',"after":2}'
    assert split(body)["it"] == value
    assert join(parse(body)) == body


def test_white_space_around_top_level_values_is_all_that_changes() -> None:
    body = b' {\n  "a" : [1, 2] ,\t"b":\r{"x" : 1}\n} \n'
    assert split(body) == {"a": b"[1, 2]", "b": b'{"x" : 1}'}
    assert join(parse(body)) == b'{"a":[1, 2],"b":{"x" : 1}}'


def test_the_last_of_duplicate_keys_wins_as_in_pythons_json() -> None:
    body = b'{"a":1,"b":2,"a":3}'
    assert join(parse(body)) == b'{"a":3,"b":2}'
    assert json.loads(body) == json.loads(join(parse(body)))


def test_a_duplicate_may_hide_behind_an_escape() -> None:
    assert split(b'{"stream":false,"\\u0073tream":true}') == {"stream": b"true"}


def test_keys_are_read_through_their_escapes() -> None:
    body = b'{"m\\u0061x_tokens":1,"\\u00e9":2,"\\"":3,"":4}'
    assert split(body) == {"max_tokens": b"1", "é": b"2", '"': b"3", "": b"4"}
    assert json.loads(join(parse(body))) == json.loads(body)


def test_an_empty_object_is_a_body() -> None:
    assert join(parse(b"{}")) == b"{}"


@pytest.mark.parametrize("body", [b"[1]", b"null", b'"x"', b"1", b"true", b"[]"])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    assert complaint(body) == "The request body must be a JSON object."


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"  ",
        b"{",
        b'{"a":',
        b'{"a":1,}',
        b'{"a" 1}',
        b"{'a':1}",
        b'{"a":01}',
        b'{"a":tru}',
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":-Infinity}',
        b'{"a":1} {"b":2}',
        b'{"a":"\x01"}',
        b'{"a":"\\q"}',
        b'{"a":1}\x00',
        b'{"a":"half of a pair \\ud83d"}',
        '{"a":1}'.encode("utf-16"),
    ],
)
def test_a_body_that_is_no_json_is_refused(body: bytes) -> None:
    assert complaint(body).startswith("The request body is not valid JSON: ")


@pytest.mark.parametrize(
    ("body", "byte"),
    [(b'{"a":"\xff"}', 6), (b'{"a":["\xc3"]}', 7), (b'{"a":"\xed\xa0\x80"}', 6), (b'{"a":"ok \xc0\xaf"}', 9)],
)
def test_bytes_that_are_no_utf8_are_refused_although_the_value_stays_raw(body: bytes, byte: int) -> None:
    assert complaint(body) == f"The request body is not valid UTF-8 (byte {byte})."


def test_a_key_that_is_no_utf8_is_refused() -> None:
    assert complaint(b'{"\xff":1}').startswith("The request body is not valid")


@pytest.mark.parametrize("brackets", [(b"[", b"]"), (b'{"a":', b"}")])
def test_nesting_without_end_is_refused_and_not_a_crash(brackets: tuple[bytes, bytes]) -> None:
    opening, closing = brackets
    body = b'{"a":' + opening * 100_000 + b"1" + closing * 100_000 + b"}"
    assert complaint(body) == "The request body is nested too deeply."


def test_nesting_that_a_person_might_write_passes() -> None:
    body = b'{"a":' + b"[" * 200 + b"]" * 200 + b"}"
    assert join(parse(body)) == body


@pytest.mark.parametrize(
    "body",
    [
        b'["' + SECRET + b'"]',
        b'{"' + SECRET + b'" 1}',
        b'{"a":' + SECRET + b"}",
        b'{"a":"' + SECRET + b'\xff"}',
        b'{"' + SECRET + b'\xff":1}',
        b'{"a":"' + SECRET + b'"} trailing ' + SECRET,
        b'{"a":"' + SECRET + b'\\q"}',
        SECRET,
        b'"' + SECRET + b'"',
        b'{"a":"' + SECRET,
    ],
)
def test_a_complaint_never_quotes_the_body(body: bytes) -> None:
    with pytest.raises(BadRequestError) as caught:
        parse(body)
    assert SECRET.decode() not in str(caught.value)
    assert SECRET not in caught.value.body()
    assert caught.value.__suppress_context__


def test_our_own_values_are_encoded_without_white_space() -> None:
    assert bytes(raw({"include_usage": True, "n": [1, None]})) == b'{"include_usage":true,"n":[1,null]}'


def test_absent_and_null_are_the_same_and_nothing_else_is() -> None:
    fields = parse(b'{"null":null,"zero":0,"empty":"","word":"null","spaced": null }')
    assert is_null(fields.get("absent"))
    assert is_null(fields["null"])
    assert is_null(fields["spaced"])
    assert [name for name in ("zero", "empty", "word") if is_null(fields[name])] == []
    assert [name for name in (*fields, "absent") if given(fields, name) is None] == ["null", "spaced", "absent"]
    assert given(fields, "word") == fields["word"]


def test_values_are_read_as_what_they_are_or_not_at_all() -> None:
    fields = parse(b'{"text":"\\u00e9","whole":3,"none":null,"list":[1]}')
    assert [string_of(fields, name) for name in ("text", "whole", "none", "list", "absent")] == ["é", *[None] * 4]
    assert value_of(fields, "list") == [1]
    assert value_of(fields, "absent") is None


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (b"3", 3),
        (b"-1", -1),
        (b"3.0", 3),
        (b'"3"', 3),
        (b'"3.0"', 3),
        (b"true", 1),
        (b"false", 0),
        (b"3.5", None),
        (b'"three"', None),
        (b'"inf"', None),
        (b'"nan"', None),
        (b"1e400", None),
        (b"null", None),
        (b"[3]", None),
    ],
)
def test_an_integer_is_what_pydantic_takes_for_one(value: bytes, number: int | None) -> None:
    assert integer_of(parse(b'{"it":' + value + b"}"), "it") == number


@pytest.mark.parametrize(
    ("value", "is_so"),
    [
        (b"true", True),
        (b"false", False),
        (b"null", False),
        (b"1", True),
        (b"0", False),
        (b"1.0", True),
        (b"2", False),
        (b'"true"', True),
        (b'"True"', True),
        (b'"T"', True),
        (b'"yes"', True),
        (b'"y"', True),
        (b'"on"', True),
        (b'"1"', True),
        (b'"no"', False),
        (b'"maybe"', False),
        (b'""', False),
        (b"[]", False),
        (b"{}", False),
    ],
)
def test_a_flag_is_true_when_pydantic_takes_it_for_true(value: bytes, is_so: bool) -> None:
    assert flag_of(parse(b'{"it":' + value + b"}"), "it") is is_so


def test_a_flag_that_is_absent_is_not_set() -> None:
    assert flag_of({}, "it") is False
