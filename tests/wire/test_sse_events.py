"""What the tap makes of single events: ends, errors, comments, look-alikes, and events that do not end."""

from __future__ import annotations

import msgspec
import pytest

from gateway.wire import framing
from gateway.wire.prompts import reply_head
from gateway.wire.sse import StreamTap
from tests.wire.streams import CASES, DONE, ERROR, FINGERPRINT, FINISH, HELLO, ROLE, USAGE, events, recorded, through

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
