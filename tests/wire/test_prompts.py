"""Prompts as digests: what must not matter does not, what matters does."""

from __future__ import annotations

import msgspec
import pytest
import xxhash

from gateway.wire.endpoints import ENDPOINTS
from gateway.wire.fields import parse
from gateway.wire.prompts import (
    MessagesPrompt,
    TextPrompt,
    begins_with_reply,
    read_messages,
    read_prompt,
    reply_head,
)


def messages(*each: str) -> MessagesPrompt:
    prompt = read_messages(parse(b'{"messages":[' + ",".join(each).encode() + b"]}"))
    assert prompt is not None
    return prompt


def digest(message: str) -> bytes:
    return messages(message).digests[0]


USER = '{"role":"user","content":"h\u00e9 llo"}'


@pytest.mark.parametrize(
    "same",
    [
        '{"content":"h\u00e9 llo","role":"user"}',
        '{ "role" :\n"user",\t"content": "h\u00e9 llo" }',
        '{"role":"user","content":"h\\u00e9\\u0020llo"}',
        '{"r\\u006fle":"user","content":"h\u00e9 llo"}',
    ],
    ids=["key order", "white space", "escapes", "escaped key"],
)
def test_how_a_message_is_written_does_not_matter(same: str) -> None:
    assert digest(same) == digest(USER)


@pytest.mark.parametrize(
    "other",
    [
        '{"role":"user","content":"h\u00e9  llo"}',
        '{"role":"user","content":"h\u00e9 llo "}',
        '{"role":"assistant","content":"h\u00e9 llo"}',
        '{"role":"user","content":"h\u00e9 llo","name":"bob"}',
        '{"role":"user","content":[{"type":"text","text":"h\u00e9 llo"}]}',
        '{"role":"user","content":null}',
        '{"role":"user"}',
        '{"role":1,"content":"h\u00e9 llo"}',
        '{"content":"h\u00e9 llo"}',
    ],
)
def test_what_a_message_says_matters(other: str) -> None:
    assert digest(other) != digest(USER)


def test_role_and_content_do_not_run_into_each_other() -> None:
    assert digest('{"role":"a","content":"bc"}') != digest('{"role":"ab","content":"c"}')


def test_order_inside_parts_and_tool_calls_does_not_matter() -> None:
    one = '{"role":"user","content":[{"type":"text","text":"a","x":{"p":1,"q":2}}]}'
    two = '{"content":[{"x":{"q":2,"p":1},"text":"a","type":"text"}],"role":"user"}'
    assert digest(one) == digest(two)
    assert digest(one) != digest(one.replace('"q":2', '"q":3'))


def test_a_developer_is_a_system_message() -> None:
    for rest in ('"content":"be brief"', '"content":"be brief","name":"ops"'):
        assert digest('{"role":"developer",' + rest + "}") == digest('{"role":"system",' + rest + "}")


def test_a_digest_has_sixteen_bytes_and_there_is_one_per_message() -> None:
    prompt = messages(USER, '{"role":"assistant","content":"x"}', USER)
    assert [len(one) for one in prompt.digests] == [16, 16, 16]
    assert prompt.digests[0] == prompt.digests[2]
    assert [head is not None for head in prompt.reply_heads] == [False, True, False]


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"messages":null}',
        b'{"messages":"hi"}',
        b'{"messages":{"role":"user"}}',
        b'{"messages":["hi"]}',
        b'{"messages":[{"role":"user"},null]}',
    ],
)
def test_messages_that_are_none_are_the_pods_to_judge(body: bytes) -> None:
    assert read_messages(parse(body)) is None


def test_no_messages_are_an_empty_prompt() -> None:
    assert read_messages(parse(b'{"messages":[]}')) == MessagesPrompt((), ())


def test_messages_nested_deeper_than_python_goes_are_not_read() -> None:
    deep = msgspec.Raw(b'[{"role":"user","content":' + b"[" * 50_000 + b"]" * 50_000 + b"}]")
    assert read_messages({"messages": deep}) is None


# Reply heads


def test_the_head_is_the_digest_of_96_non_white_characters_and_their_number() -> None:
    text = "\n the  answer\tis " + "x" * 200
    head = "theansweris" + "x" * 85
    assert reply_head(text) == xxhash.xxh3_64_digest(head.encode()) + bytes([96])


@pytest.mark.parametrize(("text", "count"), [("", 0), (" \n\t ", 0), ("a", 1), ("\u00e9 \U0001f600", 2)])
def test_a_short_reply_is_its_own_head(text: str, count: int) -> None:
    assert reply_head(text) == xxhash.xxh3_64_digest("".join(text.split()).encode()) + bytes([count])


def test_what_comes_after_the_head_does_not_matter() -> None:
    assert reply_head("x" * 96 + "one") == reply_head("x" * 96 + "other")
    assert reply_head("x" * 95 + "o") != reply_head("x" * 95 + "p")


def test_white_space_that_a_client_trims_does_not_matter() -> None:
    assert reply_head("  Hello,\n\nworld. ") == reply_head("Hello, world.")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ('"Hello there"', "Hello there"),
        ('[{"type":"text","text":"Hello "},{"type":"text","text":"there"}]', "Hello there"),
        ('[{"type":"image_url","image_url":{}},{"type":"text","text":"Hello"}]', "Hello"),
        ('[{"type":"text","text":null},"stray",{"type":"text","text":"Hello"}]', "Hello"),
        ("null", ""),
        ("[]", ""),
        ("7", ""),
    ],
)
def test_the_head_of_an_assistant_message_is_that_of_its_text(content: str, text: str) -> None:
    prompt = messages('{"role":"assistant","content":' + content + "}")
    assert prompt.reply_heads == (reply_head(text),)


def test_an_assistant_that_only_called_tools_has_the_head_of_nothing() -> None:
    prompt = messages('{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}')
    assert prompt.reply_heads == (reply_head(""),)


@pytest.mark.parametrize(
    ("text", "reply", "begins"),
    [
        ("Hello there. And then?", "Hello there.", True),
        (" Hello\nthere. And then?", "Hello there.", True),
        ("Hello", "Hello there.", False),
        ("Goodbye. And then?", "Hello there.", False),
        ("anything at all", "", True),
        ("", "", True),
        ("", "x", False),
        ("x" * 96 + " more", "x" * 96 + " other", True),
        ("x" * 95 + "y", "x" * 96, False),
    ],
)
def test_a_text_begins_with_a_reply_white_space_aside(text: str, reply: str, begins: bool) -> None:
    assert begins_with_reply(text, reply_head(reply)) is begins


# Completions


def test_a_text_prompt_is_its_utf8() -> None:
    assert read_prompt(parse(b'{"prompt":"h\\u00e9"}')) == TextPrompt(b"h\xc3\xa9", True)
    assert read_prompt(parse(b'{"prompt":""}')) == TextPrompt(b"", True)


def ids(*tokens: int) -> bytes:
    prompt = read_prompt(parse(b'{"prompt": ' + str(list(tokens)).encode() + b"}"))
    assert prompt is not None
    assert isinstance(prompt, TextPrompt)
    assert not prompt.is_text
    return prompt.data


def test_a_longer_list_of_token_ids_extends_a_shorter_one() -> None:
    assert ids(1, 20, 3, 44).startswith(ids(1, 20, 3))
    assert not ids(1, 20, 4, 44).startswith(ids(1, 20, 3))


def test_a_longer_token_extends_nothing() -> None:
    assert not ids(1, 20, 3).startswith(ids(1, 2))


@pytest.mark.parametrize(
    "value", [b'["a"]', b"[[1]]", b"[]", b"null", b"7", b"{}", b"[1,true]", b"[1,2.0]", b'[1,"a"]']
)
def test_anything_else_is_not_one_prompt(value: bytes) -> None:
    assert read_prompt(parse(b'{"prompt":' + value + b"}")) is None


def test_a_body_without_a_prompt_has_none() -> None:
    assert read_prompt(parse(b"{}")) is None


def test_each_endpoint_reads_its_own_dialect() -> None:
    fields = parse(b'{"messages":[{"role":"user","content":"a"}],"prompt":"a"}')
    assert isinstance(ENDPOINTS["/v1/chat/completions"].read_prompt(fields), MessagesPrompt)
    assert isinstance(ENDPOINTS["/v1/completions"].read_prompt(fields), TextPrompt)
    assert {path: row.prompt_field for path, row in ENDPOINTS.items()} == {
        "/v1/chat/completions": "messages",
        "/v1/completions": "prompt",
    }
