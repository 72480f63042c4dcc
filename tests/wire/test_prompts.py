"""Prompts as digests: what must not matter does not, what matters does."""

from __future__ import annotations

import msgspec
import pytest
import xxhash

from gateway.wire.endpoints import ENDPOINTS
from gateway.wire.fields import parse
from gateway.wire.prompts import (
    MessagesPrompt,
    ReplyHeads,
    TextPrompt,
    begins_with_reply,
    message_head,
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
        '{"role":"user","content":[{"type":"text","text":"h\u00e9 llo"}]}',
        '{"role":"user","content":[{"type":"text","text":"h\u00e9 llo","cache_control":{"type":"ephemeral"}}]}',
        '{"role":"user","content":"h\u00e9 llo","name":null,"tool_calls":null,"refusal":null,"annotations":[]}',
        '{"role":"user","content":"h\u00e9 llo","timestamp":1700000000,"id":"m1"}',
    ],
    ids=[
        "key order",
        "white space",
        "escapes",
        "escaped key",
        "one text part",
        "cache marker",
        "nulls",
        "fields that no template sees",
    ],
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
        '{"role":"user","content":[{"type":"text","text":"h\u00e9"},{"type":"text","text":" llo"}]}',
        '{"role":"user","content":[{"type":"image_url","image_url":{"url":"h\u00e9 llo"}}]}',
        '{"role":"user","content":"h\u00e9 llo","tool_call_id":"c"}',
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


def test_order_inside_parts_does_not_matter() -> None:
    one = '{"role":"user","content":[{"type":"audio","x":{"p":1,"q":2}},{"type":"text","text":"a"}]}'
    two = '{"content":[{"x":{"q":2,"p":1,"r":null},"type":"audio"},{"text":"a","type":"text"}],"role":"user"}'
    assert digest(one) == digest(two)
    assert digest(one) != digest(one.replace('"q":2', '"q":3'))


def with_call(arguments: str, name: str = "f", call_id: str = "c") -> bytes:
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    return digest(msgspec.json.encode({"role": "assistant", "tool_calls": [call]}).decode())


@pytest.mark.parametrize("same", ['{"a": 1, "b": ["\u00e9"]}', '{"b":["\\u00e9"],"a":1}', '{ "a":1,"b":[ "\u00e9" ] }'])
def test_how_arguments_are_written_does_not_matter(same: str) -> None:
    assert with_call(same) == with_call('{"a":1,"b":["\u00e9"]}')


def test_what_a_call_says_matters() -> None:
    calls = [with_call('{"a":1}'), with_call('{"a":2}'), with_call('{"a":1'), with_call('{"a":1}', "g")]
    calls.append(with_call('{"a":1}', call_id="d"))
    assert len(set(calls)) == len(calls)


@pytest.mark.parametrize("role", ["system", "developer"])
def test_the_billing_line_of_claude_code_does_not_matter(role: str) -> None:
    """vLLM takes it out of system messages (`renderers/chat_utils.py`)."""
    line = "x-anthropic-billing-header: cc_version=2; cch={};"
    plain = digest('{"role":"system","content":"be brief"}')
    for number in "12":
        header = line.format(number)
        assert digest('{"role":"' + role + '","content":"' + header + '\\nbe brief"}') == plain
        parts = '[{"type":"text","text":"' + header + '"},{"type":"text","text":"be brief"}]'
        assert digest('{"role":"' + role + '","content":' + parts + "}") == plain
    assert digest('{"role":"user","content":"' + line + '"}') != digest('{"role":"user","content":""}')


def image(letter: str, size: int = 256 * 1024) -> str:
    url = "data:image/png;base64," + letter * size
    picture = {"type": "image_url", "image_url": {"url": url, "detail": None}}
    return msgspec.json.encode({"role": "user", "content": [{"type": "text", "text": "what?"}, picture]}).decode()


def test_pictures_are_told_apart_by_their_last_byte() -> None:
    assert digest(image("A")) == digest(image("A"))
    assert digest(image("A")) != digest(image("A").replace('A","detail"', 'B","detail"'))
    assert digest(image("A")) != digest(image("A", 256 * 1024 + 4))


def test_a_cache_marker_on_a_picture_does_not_matter() -> None:
    marked = image("A").replace('"type":"image_url"', '"type":"image_url","cache_control":{"type":"ephemeral"}')
    assert marked != image("A")
    assert digest(marked) == digest(image("A"))


def test_white_space_around_an_answer_does_not_matter_around_a_question_it_does() -> None:
    for role, same in (("assistant", True), ("user", False), ("system", False)):
        one, two = (digest('{"role":"' + role + '","content":"' + text + '"}') for text in ("hello", " hello\\n"))
        assert (one == two) is same
        parts = digest('{"role":"' + role + '","content":[{"type":"text","text":" hello\\n"}]}')
        assert (parts == one) is same
        assert parts == two


def test_a_developer_is_a_system_message() -> None:
    for rest in ('"content":"be brief"', '"content":"be brief","name":"ops"'):
        assert digest('{"role":"developer",' + rest + "}") == digest('{"role":"system",' + rest + "}")


def test_a_digest_has_sixteen_bytes_and_there_is_one_per_message() -> None:
    prompt = messages(USER, '{"role":"assistant","content":"x"}', USER)
    assert [len(one) for one in prompt.digests] == [16, 16, 16]
    assert prompt.digests[0] == prompt.digests[2]
    assert [head is not None for head in prompt.reply_heads] == [False, True, False]
    assert prompt.answers == (False, True, False)
    assert len(prompt.reply_heads) == 3


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
    prompt = read_messages(parse(b'{"messages":[]}'))
    assert prompt is not None
    assert (prompt.digests, list(prompt.reply_heads), prompt.answers) == ((), [], ())


def test_messages_nested_deeper_than_python_goes_are_not_read() -> None:
    for depth in (50_000, 2_000):
        deep = msgspec.Raw(b'[{"role":"user","content":' + b"[" * depth + b"]" * depth + b"}]")
        assert read_messages({"messages": deep}) is None


JUNK = ["null", "7", "[]", "{}", '"x"', "[[]]", '{"type":[]}', '{"type":{}}', "1e300", "123456789012345678901234567890"]


@pytest.mark.parametrize("field", ["role", "content", "name", "tool_calls", "tool_call_id", "reasoning", "tools"])
@pytest.mark.parametrize(
    "junk", [*JUNK, *(f"[{junk}]" for junk in JUNK), '[{"function":[]}]', '[{"function":{"name":1}}]']
)
def test_a_field_that_is_nonsense_is_the_pods_to_judge(field: str, junk: str) -> None:
    prompt = messages('{"role":"assistant","' + field + '":' + junk + "}")
    assert len(prompt.digests[0]) == 16
    assert len(prompt.reply_heads) == 1
    list(prompt.reply_heads)


def test_thoughts_are_answers_with_their_reasoning_since_the_user_spoke_last() -> None:
    user, tool = '{"role":"user","content":"x"}', '{"role":"tool","content":"x"}'
    plain, with_thought = '{"role":"assistant","content":"x"}', '{"role":"assistant","content":"x","reasoning":"hm"}'
    old = '{"role":"assistant","content":"x","reasoning_content":"hm","reasoning":null}'
    assert messages(user, with_thought, tool, old, tool).thoughts == {1, 3}
    assert messages(user, with_thought, user, old, tool).thoughts == {3}
    assert messages(user, with_thought, user, plain).thoughts == frozenset()
    assert digest(plain) == digest(with_thought) == digest(old)


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
    assert list(prompt.reply_heads) == [reply_head(text)]


def head_of_call(arguments: str, content: str | None = None) -> bytes | None:
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    message = {"role": "assistant", "content": content, "tool_calls": [call]}
    return messages(msgspec.json.encode(message).decode()).reply_heads[0]


def test_an_assistant_that_only_called_a_tool_has_the_head_of_its_call() -> None:
    head = head_of_call('{"city": "R\u00f8ros \U0001f600"}')
    assert head == message_head("", 'weather{"city": "R\u00f8ros \U0001f600"}')
    assert head == head_of_call('{"city":"R\\u00f8ros \\ud83d\\ude00"}', " "), "written out again by the client"
    assert head != head_of_call('{"city":"Oslo"}')
    assert head_of_call("\\ud83d") == head_of_call("\\ud83d"), "half a character"


def test_what_an_assistant_says_goes_before_what_it_calls() -> None:
    assert head_of_call("{}", "I look.") == message_head("I look.") == reply_head("I look.")
    assert message_head("", 'weather{"a":1}') != message_head('weather{"a":1}')


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<think>hm</think>Hello", "Hello"),
        ("\n<think>\nhm\n</think>\n\nHello", "Hello"),
        ("<think>no end", ""),
        ("I <think>so</think>", "I <think>so</think>"),
        ("<think>hm</think> one </think> two", "one </think> two"),
    ],
)
def test_reasoning_in_the_text_is_not_part_of_the_head(text: str, said: str) -> None:
    assert message_head(text) == reply_head(said)


def test_heads_are_worked_out_only_when_asked_for() -> None:
    read: list[bytes] = []

    def head_of(raw: msgspec.Raw) -> bytes:
        read.append(bytes(raw))
        return bytes(raw)

    heads = ReplyHeads([False, True, True], msgspec.Raw(b'["a","b","c"]'), head_of)
    assert (heads[0], read) == (None, [])
    assert [heads[2], heads[2]] == [b'"c"'] * 2
    assert read == [b'"c"'], "and once"
    assert heads[-1:] == [b'"c"']


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
        "/v1/messages": "messages",
        "/v1/responses": "input",
    }
