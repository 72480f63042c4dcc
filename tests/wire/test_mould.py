"""Events that are alike but for their text pass without being looked into; all others are."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.wire.mould import mould_of
from gateway.wire.sse import StreamTap


def event(text: str, **changes: Any) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None, "token_ids": None}
    chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [choice]} | changes
    return b"data: " + json.dumps(chunk, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def fed(*events: bytes) -> StreamTap:
    tap = StreamTap(strip_usage=True)
    for each in events:
        assert tap.feed(each) == each
    return tap


def test_a_mould_is_an_event_without_its_text() -> None:
    mould = mould_of(event("river"))
    assert mould is not None
    begins, ends, start, stop, joint, is_reply = mould
    assert begins + b"river" + ends == event("river")
    assert event("a longer text")[start:stop] == b"a longer text"
    assert begins + b"a" + joint + b"b" + ends == event("a") + event("b")
    assert is_reply


@pytest.mark.parametrize("text", ["", 'a "word"', "a \\ b", "line\n"])
def test_no_mould_is_made_of_a_text_that_has_no_plain_end(text: str) -> None:
    assert mould_of(event(text)) is None


def test_no_mould_is_made_of_an_event_without_text() -> None:
    assert mould_of(b'data: {"choices":[]}\n\n') is None


@pytest.mark.parametrize(
    "text", ["", "x", ' "quoted" ', "\\", "}\n\ndata: {", '"usage":{"prompt_tokens":1}', "señal", "data: [DONE]"]
)
def test_any_text_passes_as_it_came(text: str) -> None:
    assert fed(event("a"), event("b"), event(text), event("c")).reply_head == fed(event("ab" + text + "c")).reply_head


def usage_in(at: int) -> list[bytes]:
    events = [event(f"w{n} ") for n in range(40)]
    events[at] = event("w ", usage={"prompt_tokens": 9, "completion_tokens": at, "total_tokens": 9 + at})
    return events


@pytest.mark.parametrize("at_once", [1, 2, 8])
def test_alike_events_are_not_looked_into(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tap = fed(event("a"), event("b"))

    def looked_into(*_: object) -> bytes:
        raise AssertionError

    monkeypatch.setattr(tap, "_plain", False)
    monkeypatch.setattr(tap, "_event", looked_into)
    read = event(" more") * at_once
    assert tap.feed(read) == read
    with pytest.raises(AssertionError):
        tap.feed(event("c", created=1))


@pytest.mark.parametrize("between", [event('say "c"'), event("c") + event("d", created=1)])
def test_a_mould_is_kept_through_what_does_not_fit_it(between: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    tap = fed(event("a"), event("b"), between)

    def looked_into(*_: object) -> bytes:
        raise AssertionError

    monkeypatch.setattr(tap, "_plain", False)
    monkeypatch.setattr(tap, "_event", looked_into)
    assert tap.feed(event("e")) == event("e")


def test_a_thought_that_begins_in_a_text_with_quotes_is_no_reply() -> None:
    tap = fed(event(" "), event(" "), event('<think>"so"'), event(" on"))
    assert tap.reply_head is None
    tap.feed(event("</think>yes"))
    assert tap.reply_head == fed(event("yes")).reply_head


@pytest.mark.parametrize("at", [0, 1, 2, 17, 39])
def test_usage_is_seen_wherever_it_comes(at: int) -> None:
    tap = StreamTap(strip_usage=True)
    for each in usage_in(at):
        tap.feed(each)
    assert tap.usage is not None
    assert (tap.usage.prompt_tokens, tap.usage.output_tokens) == (9, at)


def test_an_error_between_alike_events_is_seen() -> None:
    tap = fed(event("a"), event("b"), event("c"))
    tap.feed(b'data: {"error":{"message":"no","type":"x","code":500}}\n\n')
    assert tap.error is not None


@pytest.mark.parametrize("at_once", [2, 3, 8])
def test_several_alike_events_in_one_read_pass_and_are_read(at_once: int) -> None:
    texts = [f"w{n} " for n in range(48)]
    reads = [b"".join(map(event, texts[at : at + at_once])) for at in range(0, len(texts), at_once)]
    assert fed(event("a"), *reads).reply_head == fed(event("a" + "".join(texts))).reply_head


@pytest.mark.parametrize("text", ['"', "\\", '"usage":{', "x\n\ny"])
def test_several_events_in_one_read_may_hold_any_text(text: str) -> None:
    assert fed(event("a"), event("b") + event(text) + event("c")).reply_head == fed(event("ab" + text + "c")).reply_head


def test_another_event_between_alike_ones_is_seen() -> None:
    tap = fed(event("a"), event("b"))
    finish = event("", usage={"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7})
    tap.feed(event("c") + finish + event("d"))
    assert tap.usage is not None


def test_an_event_cut_in_two_is_held_until_it_is_whole() -> None:
    tap = fed(event("a"), event("b"))
    whole = event("c")
    assert tap.feed(whole[:30]) == b""
    assert tap.feed(whole[30:]) == whole


@pytest.mark.parametrize("size", [1, 3, 7])
def test_a_reply_in_pieces_has_the_head_of_the_whole(size: int) -> None:
    text = "".join(f"word{n} " for n in range(60))
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    assert fed(*map(event, pieces)).reply_head == fed(event(text)).reply_head


def test_a_thought_that_begins_in_alike_events_is_no_reply() -> None:
    pieces = ["\n", "<th", "ink", ">", "hm", " well", "</think>", "Yes", " it", " is."]
    tap = fed(*map(event, pieces))
    assert tap.reasoned
    assert tap.reply_head == fed(event("Yes it is.")).reply_head


def test_another_choice_is_no_reply() -> None:
    second = [event(text).replace(b'"index":0', b'"index":1') for text in ("not", " this")]
    tap = fed(event("a"), second[0], second[1], second[0], event("b"), event("c"))
    assert tap.reply_head == fed(event("abc")).reply_head


def test_reasoning_is_no_reply() -> None:
    thoughts = [event(text).replace(b'"content"', b'"reasoning"') for text in ("let", " me", " see")]
    tap = fed(*thoughts, event("a"), event("b"))
    assert tap.reasoned
    assert tap.reply_head == fed(event("ab")).reply_head


def test_a_text_with_escapes_is_read_as_json() -> None:
    pieces = ["first", " line\n", "a\ttab", " \\ ", "é", "😀 end"]
    assert fed(*map(event, pieces)).reply_head == fed(event("".join(pieces))).reply_head


def test_a_text_that_is_no_json_is_no_reply() -> None:
    tap = fed(event("a"), event("b"), event("c").replace(b'"c"', b'"\\q"'))
    assert tap.reply_head == fed(event("ab")).reply_head
