"""The tap on a stream: recorded streams of a real vLLM 0.32 go in, what the client should get comes out.

`recorded/<case>.with.sse` is what the pod sends to a client that asks for usage, `.without` to one that does not,
`.continuous` with usage on every chunk. A pod started with --enable-force-include-usage was seen to send the bytes
of `.continuous` to everyone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.wire import framing
from gateway.wire.prompts import message_head, reply_head
from gateway.wire.sse import StreamTap
from gateway.wire.usage import PrefillDetails

RECORDED = Path(__file__).parent / "recorded"
CASES = sorted(path.name.removesuffix(".with.sse") for path in RECORDED.glob("*.with.sse"))
ONE_CHOICE = [case for case in CASES if not case.endswith("_n2")]
TWO_CHOICES = [case for case in CASES if case.endswith("_n2")]
CONTINUOUS = sorted(path.name.removesuffix(".continuous.sse") for path in RECORDED.glob("*.continuous.sse"))
FINGERPRINT = msgspec.Raw(b'"vllm-0.32.0-cf911bc9"')
DONE = b"data: [DONE]\n\n"
HELLO = b'data: {"choices":[{"index":0,"delta":{"content":"Hello"},"finish_reason":null}]}\n\n'
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
THINKING = b'data: {"choices":[{"index":0,"delta":{"reasoning":"hm"},"finish_reason":null}]}\n\n'
FINISH = b'data: {"choices":[{"index":0,"delta":{"content":"!"},"finish_reason":"stop"}]}\n\n'
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":9,"total_tokens":11,"completion_tokens":2,'
    b'"prompt_tokens_details":{"cached_tokens":8}},"system_fingerprint":"fp-1"}\n\n'
)
ERROR = b'data: {"error": {"message": "engine died", "type": "Internal", "param": null, "code": 500}}\n\n'


def recorded(case: str, wish: str) -> bytes:
    return (RECORDED / f"{case}.{wish}.sse").read_bytes()


def events(stream: bytes) -> list[bytes]:
    return [event + b"\n\n" for event in stream.removesuffix(b"\n\n").split(b"\n\n")]


def through(tap: StreamTap, pieces: Iterable[bytes]) -> bytes:
    return b"".join([tap.feed(piece) for piece in pieces]) + tap.finish()


def learned(tap: StreamTap) -> tuple[Any, ...]:
    fingerprint = None if tap.fingerprint is None else bytes(tap.fingerprint)
    return tap.usage, tap.reply_head, fingerprint, tap.done, tap.error, tap.said_something


def test_the_recordings_are_there() -> None:
    assert len(ONE_CHOICE) == 7
    assert TWO_CHOICES == ["chat_n2", "completions_n2"]
    assert CONTINUOUS == ["chat", "chat_n2", "completions"]


# A client that did not ask for usage, behind a pod that was asked


@pytest.mark.parametrize("case", ONE_CHOICE)
def test_without_usage_the_client_gets_byte_for_byte_what_a_plain_pod_sends(case: str) -> None:
    tap = StreamTap(strip_usage=True)
    assert through(tap, [recorded(case, "with")]) == recorded(case, "without")


@pytest.mark.parametrize("case", CASES)
def test_with_a_known_fingerprint_this_holds_for_several_choices_too(case: str) -> None:
    tap = StreamTap(strip_usage=True, fingerprint=FINGERPRINT)
    assert through(tap, [recorded(case, "with")]) == recorded(case, "without")


@pytest.mark.parametrize("case", CASES)
def test_a_pod_that_was_not_asked_for_usage_is_passed_as_it_is(case: str) -> None:
    assert through(StreamTap(strip_usage=True), [recorded(case, "without")]) == recorded(case, "without")


@pytest.mark.parametrize("case", CASES)
def test_usage_is_learned_although_it_is_stripped(case: str) -> None:
    tap = StreamTap(strip_usage=True)
    through(tap, [recorded(case, "with")])
    assert tap.usage is not None
    assert tap.usage.prompt_tokens > 0
    assert tap.usage.output_tokens == {"chat_n2": 12, "completions_n2": 12, "chat_tools": 30}.get(case, 6)


@pytest.mark.parametrize("case", CASES)
def test_the_fingerprint_is_learned_from_the_usage_chunk(case: str) -> None:
    tap = StreamTap(strip_usage=True)
    through(tap, [recorded(case, "with")])
    assert tap.fingerprint == FINGERPRINT


@pytest.mark.parametrize("case", TWO_CHOICES)
def test_the_fingerprint_is_learned_from_a_pod_that_was_not_asked_for_usage(case: str) -> None:
    """Else a gateway that sees only n=2 streams never gets to know their usage."""
    tap = StreamTap(strip_usage=True)
    through(tap, [recorded(case, "without")])
    assert tap.fingerprint == FINGERPRINT


def test_an_older_vllm_without_fingerprints_only_loses_its_usage_chunk() -> None:
    usage = USAGE.replace(b',"system_fingerprint":"fp-1"', b"")
    tap = StreamTap(strip_usage=True)
    assert through(tap, [ROLE, HELLO, FINISH, usage, DONE]) == ROLE + HELLO + FINISH + DONE
    assert tap.fingerprint is None


def test_a_changed_fingerprint_is_learned_anew() -> None:
    tap = StreamTap(strip_usage=True, fingerprint=msgspec.Raw(b'"old"'))
    through(tap, [HELLO, FINISH, USAGE, DONE])
    assert tap.fingerprint == msgspec.Raw(b'"fp-1"')


# A client that asked


@pytest.mark.parametrize("case", CASES)
def test_a_client_that_asked_gets_the_pods_bytes(case: str) -> None:
    tap = StreamTap(strip_usage=False)
    assert through(tap, [recorded(case, "with")]) == recorded(case, "with")
    assert tap.fingerprint == FINGERPRINT


@pytest.mark.parametrize("case", CONTINUOUS)
def test_a_client_that_asked_for_usage_on_every_chunk_gets_it(case: str) -> None:
    tap = StreamTap(strip_usage=False, continuous=True)
    assert through(tap, [recorded(case, "continuous")]) == recorded(case, "continuous")


@pytest.mark.parametrize("case", CONTINUOUS)
def test_a_pod_that_forces_usage_on_everyone_is_passed_as_it_is(case: str) -> None:
    tap = StreamTap(strip_usage=True)
    assert through(tap, [recorded(case, "continuous")]) == recorded(case, "continuous")
    assert tap.usage is not None
    assert tap.usage.output_tokens == (12 if case == "chat_n2" else 6)


@pytest.mark.parametrize("case", CONTINUOUS)
def test_a_pod_that_forces_usage_needs_no_stamp_of_a_known_fingerprint(case: str) -> None:
    tap = StreamTap(strip_usage=True, fingerprint=FINGERPRINT)
    assert through(tap, [recorded(case, "continuous")]) == recorded(case, "continuous")


@pytest.mark.parametrize("case", CONTINUOUS)
def test_the_last_usage_is_the_one_that_counts(case: str) -> None:
    once, every = StreamTap(strip_usage=False), StreamTap(strip_usage=False, continuous=True)
    through(once, [recorded(case, "with")])
    through(every, [recorded(case, "continuous")])
    assert once.usage == every.usage


# P's details


@pytest.mark.parametrize(
    ("details", "in_the_stream"),
    [
        (
            b'{"cached_tokens":5,"created_cache_tokens":0,"multimodal_tokens":null}',
            b'{"cached_tokens":5,"created_cache_tokens":0}',
        ),
        (b'{"cached_tokens":0}', b'{"cached_tokens":0}'),
        (None, None),
    ],
)
def test_ps_details_replace_ds_in_the_usage_chunk(details: bytes | None, in_the_stream: bytes | None) -> None:
    prefill = PrefillDetails(None if details is None else msgspec.Raw(details))
    tap = StreamTap(strip_usage=False, prefill=prefill)
    expected = USAGE.replace(
        b',"prompt_tokens_details":{"cached_tokens":8}',
        b"" if in_the_stream is None else b',"prompt_tokens_details":' + in_the_stream,
    )
    assert through(tap, [HELLO, FINISH, USAGE, DONE]) == HELLO + FINISH + expected + DONE
    assert tap.usage is not None
    assert tap.usage.cached_tokens == 8, "what is learned is D's own count"


def test_ps_details_leave_the_usage_of_single_chunks_alone() -> None:
    tap = StreamTap(strip_usage=False, continuous=True, prefill=PrefillDetails(msgspec.Raw(b'{"cached_tokens":5}')))
    sent = events(recorded("chat", "continuous"))
    got = events(through(tap, sent))
    assert got[:-2] == sent[:-2]
    assert b'"prompt_tokens_details":{"cached_tokens":5}},"system_fingerprint"' in got[-2]


# Any cut


@pytest.mark.parametrize("strip", [True, False], ids=["strip", "keep"])
@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.sse")), ids=lambda path: path.name)
def test_a_cut_at_any_byte_changes_nothing(path: Path, strip: bool) -> None:
    stream = path.read_bytes()
    whole = StreamTap(strip_usage=strip)
    expected = through(whole, [stream])
    for cut in range(len(stream) + 1):
        tap = StreamTap(strip_usage=strip)
        assert through(tap, [stream[:cut], stream[cut:]]) == expected, f"cut at {cut}"
        assert learned(tap) == learned(whole), f"cut at {cut}"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000])
@pytest.mark.parametrize("case", CASES)
def test_any_size_of_pieces_gives_the_same_bytes(case: str, size: int) -> None:
    stream = recorded(case, "with")
    tap = StreamTap(strip_usage=True, fingerprint=FINGERPRINT)
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
    assert through(tap, pieces) == recorded(case, "without")


def test_characters_of_several_bytes_may_be_cut() -> None:
    stream = 'data: {"choices":[{"index":0,"delta":{"content":"\u00e9\U0001f600"}}]}\n\n'.encode()
    for cut in range(len(stream)):
        tap = StreamTap(strip_usage=True)
        assert through(tap, [stream[:cut], stream[cut:]]) == stream
        assert tap.reply_head == reply_head("\u00e9\U0001f600")


def test_an_empty_read_is_nothing() -> None:
    tap = StreamTap(strip_usage=True)
    assert tap.feed(b"") == b""
    assert tap.feed(HELLO) == HELLO


# At once


@pytest.mark.parametrize("case", CASES)
def test_every_event_leaves_in_the_read_that_completed_it(case: str) -> None:
    """With a known fingerprint nothing waits; without, only the finish chunk does, for the usage chunk behind it."""
    sent = events(recorded(case, "with"))
    tap = StreamTap(strip_usage=True, fingerprint=FINGERPRINT)
    out = [tap.feed(event) for event in sent]
    assert [piece == b"" for piece in out] == [b'"choices":[]' in event for event in sent]


@pytest.mark.parametrize("case", ONE_CHOICE)
def test_only_the_finish_chunk_waits_when_the_fingerprint_is_unknown(case: str) -> None:
    sent = events(recorded(case, "with"))
    tap = StreamTap(strip_usage=True)
    out = [tap.feed(event) for event in sent]
    assert out[:-3] == sent[:-3]
    assert out[-3] == b""
    assert b'"finish_reason":"length"' in out[-2]
    assert out[-1] == DONE


def test_a_client_that_asked_waits_for_nothing() -> None:
    tap = StreamTap(strip_usage=False)
    sent = [ROLE, HELLO, FINISH, USAGE, DONE]
    assert [tap.feed(event) for event in sent] == sent


def test_an_event_waits_until_it_is_whole() -> None:
    tap = StreamTap(strip_usage=True)
    assert tap.feed(HELLO[:-1]) == b""
    assert tap.feed(HELLO[-1:] + ROLE[:5]) == HELLO
    assert tap.feed(ROLE[5:]) == ROLE


# Ends


def test_done_is_seen() -> None:
    tap = StreamTap(strip_usage=True)
    tap.feed(HELLO)
    assert not tap.done
    tap.feed(DONE)
    assert tap.done


def test_a_reply_that_speaks_of_done_is_not_done() -> None:
    tap = StreamTap(strip_usage=True)
    tap.feed(HELLO.replace(b"Hello", b"data: [DONE]\\n\\n"))
    assert not tap.done


def test_what_still_waits_is_given_out_at_the_end() -> None:
    tap = StreamTap(strip_usage=True)
    assert tap.feed(HELLO + FINISH + b"data: cut of") == HELLO
    assert tap.finish() == FINISH + b"data: cut of"
    assert tap.finish() == b""


@pytest.mark.parametrize("behind", [DONE, ERROR, HELLO, b": ping\n\n"])
def test_a_finish_chunk_that_no_usage_follows_keeps_its_place(behind: bytes) -> None:
    tap = StreamTap(strip_usage=True)
    assert tap.feed(HELLO + FINISH) == HELLO
    assert tap.feed(behind) == FINISH + behind


# Errors and comments


@pytest.mark.parametrize("error", [ERROR, b'data: {"error":{"message":"x","code":400}}\n\n'])
def test_an_error_event_is_noticed_and_passed(error: bytes) -> None:
    tap = StreamTap(strip_usage=True)
    assert through(tap, [HELLO, error, DONE]) == HELLO + error + DONE
    assert tap.error is not None
    assert "engine died" not in tap.error
    assert tap.done


def test_a_reply_that_speaks_of_an_error_is_none() -> None:
    tap = StreamTap(strip_usage=True)
    through(tap, [HELLO.replace(b"Hello", b'data: {\\"error\\": 1}'), DONE])
    assert tap.error is None


def test_keep_alive_comments_pass_in_their_place() -> None:
    tap = StreamTap(strip_usage=True)
    assert through(tap, [b": ping\n\n", ROLE, b":\n\n", HELLO, DONE]) == b": ping\n\n" + ROLE + b":\n\n" + HELLO + DONE
    assert tap.reply_head == reply_head("Hello")


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"choices":[{"index":0,"delta":{"content":"\\"usage\\":{\\"prompt_tokens\\":1}"}}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"content":"\\"finish_reason\\":\\"stop\\""}}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"content":"\\"kv_transfer_params\\":{"}}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"function":{"arguments":"{\\"usage\\":{}}"}}]}}]}\n\n',
        b"data: not json\n\n",
        b'data: {"choices":"odd"}\n\n',
        b"event: ping\ndata: {}\n\n",
        b"data: {}\n\n",
        b"\n\n",
    ],
)
def test_what_only_looks_like_something_passes_untouched_and_at_once(event: bytes) -> None:
    tap = StreamTap(strip_usage=True, fingerprint=FINGERPRINT)
    assert tap.feed(HELLO + event) == HELLO + event
    assert (tap.usage, tap.error, tap.done) == (None, None, False)


def test_a_usage_that_is_not_the_streams_own_does_not_make_the_pod_one_that_forces_usage() -> None:
    """`_usage_event` is for the top-level field; this one is somewhere inside a delta."""
    nested = b'data: {"choices":[{"index":0,"delta":{"tool":{"usage":{"prompt_tokens":1}}},"finish_reason":null}]}\n\n'
    tap = StreamTap(strip_usage=True, fingerprint=msgspec.Raw(b'"fp-1"'))
    finish = FINISH.replace(b'"stop"}]}', b'"stop"}],"system_fingerprint":"fp-1"}')
    assert through(tap, [nested, FINISH, USAGE, DONE]) == nested + finish + DONE
    assert tap.usage is not None
    assert tap.usage.prompt_tokens == 9


def test_a_handover_on_a_chunk_becomes_null() -> None:
    tap = StreamTap(strip_usage=False)
    leaking = HELLO.replace(b'"choices"', b'"kv_transfer_params":{"remote_block_ids":[1]},"choices"')
    assert tap.feed(leaking) == HELLO.replace(b'"choices"', b'"kv_transfer_params":null,"choices"')
    assert tap.reply_head == reply_head("Hello")


# Who has spoken


@pytest.mark.parametrize(
    ("event", "spoke"),
    [
        (ROLE, False),
        (ROLE + ROLE.replace(b'"index":0', b'"index":1'), False),
        (HELLO, True),
        (b": ping\n\n", True),
        (ERROR, True),
        (FINISH, True),
        (b'data: {"choices":[{"index":0,"delta":{"reasoning":"hm"},"finish_reason":null}]}\n\n', True),
        (b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0}]},"finish_reason":null}]}\n\n', True),
        (b'data: {"choices":[{"index":0,"delta":{"content":""},"finish_reason":null}]}\n\n', True),
        (b'data: {"choices":[{"index":1,"text":"x","finish_reason":null}]}\n\n', True),
        (b'data: {"choices":[{"index":0,"text":"","finish_reason":null}]}\n\n', True),
        (USAGE, True),
        (HELLO[:-1], False),
        (b"", False),
    ],
)
def test_the_assistants_role_alone_says_nothing_yet(event: bytes, spoke: bool) -> None:
    tap = StreamTap(strip_usage=True)
    tap.feed(event)
    assert tap.said_something is spoke


@pytest.mark.parametrize("case", CASES)
def test_a_recorded_stream_speaks_with_its_first_event_behind_the_roles(case: str) -> None:
    tap = StreamTap(strip_usage=True)
    heard = []
    for event in events(recorded(case, "with")):
        tap.feed(event)
        heard.append(tap.said_something)
    roles = {"chat_n2": 2}.get(case, 1 if case.startswith("chat") else 0)
    assert heard == [False] * roles + [True] * (len(heard) - roles)


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


# Events that do not end


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(framing, "MAX_EVENT_BYTES", 1000)
    return 1000


def test_an_event_of_any_size_never_keeps_more_than_the_limit(small_limit: int) -> None:
    tap = StreamTap(strip_usage=True)
    sent = got = b""
    for piece in [b"data: "] + [b"x" * 100] * 100:
        sent += piece
        got += tap.feed(piece)
        assert sent.startswith(got)
        assert len(sent) - len(got) <= small_limit
    assert len(got) > 9000
    assert got + tap.finish() == sent


def test_behind_an_oversized_event_the_stream_is_read_again(small_limit: int) -> None:
    tap = StreamTap(strip_usage=True)
    big = b"data: " + b"x" * 3000 + b"\n\n"
    pieces = [HELLO, big[:1500], big[1500:2500], big[2500:] + FINISH, USAGE, DONE]
    finish = FINISH.replace(b'"stop"}]}', b'"stop"}],"system_fingerprint":"fp-1"}')
    assert through(tap, pieces) == HELLO + big + finish + DONE
    assert tap.done
    assert tap.usage is not None


def test_a_finish_chunk_that_waits_leaves_before_an_oversized_event(small_limit: int) -> None:
    tap = StreamTap(strip_usage=True)
    assert tap.feed(FINISH) == b""
    assert tap.feed(b"data: " + b"x" * 2000) == FINISH + b"data: " + b"x" * 2000


def test_an_event_within_the_limit_is_read_however_it_comes(small_limit: int) -> None:
    tap = StreamTap(strip_usage=True)
    text = b"y" * 900
    event = HELLO.replace(b"Hello", text)
    assert len(event) < small_limit
    assert through(tap, [event[:5], event[5:990], event[990:], DONE]) == event + DONE
    assert tap.reply_head == reply_head(text.decode())


def test_an_oversized_event_may_be_cut_anywhere(small_limit: int) -> None:
    big = b"data: " + b"x" * 2000 + b"\n\n"
    for cut in range(1500, len(big) + 1):
        tap = StreamTap(strip_usage=True)
        assert through(tap, [big[:1200], big[1200:cut], big[cut:] + DONE]) == big + DONE
        assert tap.done, f"cut at {cut}"


def test_an_oversized_event_may_be_cut_inside_its_end_in_the_very_read_that_made_it_oversized(small_limit: int) -> None:
    big = b"data: " + b"x" * 2000 + b"\n\n"
    tap = StreamTap(strip_usage=True)
    assert through(tap, [big[:-1], big[-1:] + DONE]) == big + DONE
    assert tap.done


def test_an_oversized_event_may_have_several_lines(small_limit: int) -> None:
    tap = StreamTap(strip_usage=True)
    assert tap.feed(b"data: " + b"x" * 2000 + b"\n") == b"data: " + b"x" * 2000 + b"\n"
    assert tap.feed(b"data: y") == b"data: y"
    assert tap.feed(b"\n" + b"\n" + DONE) == b"\n\n" + DONE
    assert tap.done


def test_the_real_limit_is_four_mebibytes() -> None:
    """Far above any chunk a pod sends (logprobs of a token are some kilobytes), far below what would hurt."""
    assert framing.MAX_EVENT_BYTES == 4 << 20


def test_a_usage_chunk_gives_no_handover_parameters_away() -> None:
    chunk = b'data: {"choices":[],"usage":{"prompt_tokens":3},"kv_transfer_params":{"remote_host":"10.0.0.7"}}\n\n'
    told = StreamTap(strip_usage=False).feed(chunk)
    assert told == b'data: {"choices":[],"usage":{"prompt_tokens":3},"kv_transfer_params":null}\n\n'


def test_a_role_that_carries_usage_is_still_only_a_role() -> None:
    role = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"usage":{"prompt_tokens":3}}\n\n'
    tap = StreamTap(strip_usage=False, continuous=True)
    assert tap.feed(role) == role
    assert not tap.said_something
    tap.feed(b'data: {"choices":[{"index":0,"delta":{"content":"a"}}],"usage":{"prompt_tokens":3}}\n\n')
    assert tap.said_something
