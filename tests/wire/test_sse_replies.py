"""What the tap learns of the reply: its head, by which the next turn is recognised, and whether there was reasoning."""

from __future__ import annotations

import re

import pytest

from gateway.wire.prompts import message_head, reply_head
from gateway.wire.sse import StreamTap
from tests.wire.streams import CASES, DONE, FINISH, HELLO, ROLE, THINKING, USAGE, recorded, through

# The head of the reply


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("chat", "tools remobuiltins / contains signature"),
        ("chat_logprobs", "tools remobuiltins / contains signature"),
        ("completions", "asltarestEXifydescription"),
        ("completions_echo", "The seaasltarestEXifydescription"),
    ],
)
@pytest.mark.parametrize("wish", ["with", "without"])
@pytest.mark.parametrize("strip", [True, False])
def test_the_reply_head_is_that_of_the_text(case: str, text: str, wish: str, strip: bool) -> None:
    tap = StreamTap(strip_usage=strip)
    through(tap, [recorded(case, wish)])
    assert tap.reply_head == reply_head(text)


@pytest.mark.parametrize("wish", ["with", "without"])
def test_the_head_of_a_reply_that_only_calls_a_tool_is_that_of_its_call(wish: str) -> None:
    stream = recorded("chat_tools", wish)
    pieces = [
        piece.encode().decode("unicode_escape") for piece in re.findall(r'"arguments":"([^"]*)"', stream.decode())
    ]
    assert len(pieces) > 5
    tap = StreamTap(strip_usage=False)
    through(tap, [stream])
    assert tap.reply_head == message_head("", "weather" + "".join(pieces))


def test_of_several_calls_the_first_is_the_head() -> None:
    def call(index: int, said: bytes) -> bytes:
        delta = b'{"tool_calls":[{"index":%d,"function":%s}]}' % (index, said)
        return b'data: {"choices":[{"index":0,"delta":' + delta + b',"finish_reason":null}]}\n\n'

    tap = StreamTap(strip_usage=True)
    named, other = call(0, b'{"name":"f"}'), call(1, b'{"name":"g","arguments":"{}"}')
    through(tap, [ROLE, THINKING, named, call(0, b'{"arguments":"{\\"a\\""}'), other, call(0, b'{"arguments":":1}"}')])
    assert tap.reply_head == message_head("", 'f{"a":1}')


def test_the_reply_head_is_that_of_the_first_choice() -> None:
    other = HELLO.replace(b'"index":0', b'"index":1').replace(b"Hello", b"Goodbye")
    tap = StreamTap(strip_usage=True)
    through(tap, [other, HELLO, other, DONE])
    assert tap.reply_head == reply_head("Hello")


def test_the_reply_head_is_right_when_usage_comes_with_every_chunk() -> None:
    tap = StreamTap(strip_usage=False, continuous=True)
    through(tap, [recorded("chat", "continuous")])
    assert tap.reply_head == reply_head("tools remobuiltins / contains signature")


def test_a_long_reply_is_known_by_its_beginning() -> None:
    tap = StreamTap(strip_usage=True)
    through(tap, [HELLO] * 5000 + [FINISH, USAGE, DONE])
    assert tap.reply_head == reply_head("Hello" * 5000)


@pytest.mark.parametrize("last", [FINISH, FINISH.replace(b"!", b"")], ids=["ends with text", "ends without"])
def test_a_reply_behind_a_long_reasoning_is_known_by_its_text(last: bytes) -> None:
    """Else no later turn of a reasoning model is recognised as the next one: each becomes a branch."""
    tap = StreamTap(strip_usage=True)
    through(tap, [ROLE, *[THINKING] * 500, HELLO, last, USAGE, DONE])
    assert tap.reply_head == reply_head("Hello!" if b"!" in last else "Hello")
    assert tap.reasoned


REASONED = b'"completion_tokens":2,"completion_tokens_details":{"reasoning_tokens":%d},'


@pytest.mark.parametrize(
    ("said", "reasoned"),
    [
        ([ROLE, THINKING, HELLO], True),
        ([ROLE, THINKING.replace(b"reasoning", b"reasoning_content"), HELLO], True),
        ([ROLE, HELLO, USAGE.replace(b'"completion_tokens":2,', REASONED % 5)], True),
        ([ROLE, HELLO, USAGE.replace(b'"completion_tokens":2,', REASONED % 0)], False),
        ([ROLE, HELLO, USAGE], False),
        ([ROLE, THINKING.replace(b'"hm"', b"null"), HELLO], False),
        ([ROLE, THINKING.replace(b'"hm"', b'""'), HELLO], False),
        ([HELLO.replace(b"Hello", rb"the \"reasoning\":\"hm\" is")], False),
    ],
    ids=["shown", "old name", "counted", "counted none", "no details", "null", "empty", "quoted"],
)
@pytest.mark.parametrize("strip", [True, False])
def test_a_reply_with_reasoning_is_known_as_one(said: list[bytes], reasoned: bool, strip: bool) -> None:
    tap = StreamTap(strip_usage=strip)
    through(tap, said)
    assert tap.reasoned is reasoned


@pytest.mark.parametrize("case", CASES)
def test_no_recorded_reply_had_reasoning(case: str) -> None:
    tap = StreamTap(strip_usage=True)
    through(tap, [recorded(case, "with")])
    assert not tap.reasoned


def text(words: bytes) -> bytes:
    return HELLO.replace(b"Hello", words)


@pytest.mark.parametrize("start", [[b"<think>"], [b"\\n<th", b"ink>"]], ids=["at once", "in two"])
@pytest.mark.parametrize("end", [[b"</think>", b"\\n\\nHello"], [b"so.</think>Hello"], [b"</think>", b"Hel", b"lo"]])
def test_reasoning_fenced_in_the_text_is_not_the_head(start: list[bytes], end: list[bytes]) -> None:
    tap = StreamTap(strip_usage=True)
    through(tap, [ROLE, *map(text, start), *[text(b"hm ")] * 500, *map(text, end), USAGE, DONE])
    assert tap.reply_head == reply_head("Hello")
    assert tap.reasoned


def test_a_reply_that_never_came_to_the_end_of_its_reasoning_has_no_head() -> None:
    tap = StreamTap(strip_usage=True)
    through(tap, [ROLE, text(b"<think>"), text(b"hm"), USAGE, DONE])
    assert (tap.reply_head, tap.reasoned) == (None, True)


def test_in_a_completion_the_fence_is_text_like_any_other() -> None:
    tap = StreamTap(strip_usage=True)
    through(tap, [b'data: {"choices":[{"index":0,"text":"<think>hm</think>"}]}\n\n', DONE])
    assert (tap.reply_head, tap.reasoned) == (reply_head("<think>hm</think>"), False)
