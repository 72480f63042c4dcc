"""What is no event breaks a stream off, wherever the reads were cut and whatever came before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gateway.wire import framing
from gateway.wire.answers_messages import MessagesTap
from gateway.wire.answers_responses import ResponsesTap
from gateway.wire.framing import EventFramer, MalformedStreamError
from gateway.wire.sse import StreamTap
from tests.wire.streams import DONE, FINGERPRINT, FINISH, HELLO, ROLE

BLOCK = b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"text":"Hello"}}\n\n'
DELTA = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"Hello"}\n\n'
STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
DIALECTS: list[tuple[Callable[[], Any], bytes, bytes]] = [
    (lambda: StreamTap(strip_usage=True, fingerprint=FINGERPRINT), HELLO, DONE),
    (lambda: MessagesTap(None), BLOCK, STOP),
    (lambda: ResponsesTap(None), DELTA, b'event: response.completed\ndata: {"response":{}}\n\n'),
]
IDS = ["openai", "messages", "responses"]

BROKEN = [
    b'data: {"choices": [{"index"\n\n',
    b"data: not json\n\n",
    b"data: [1]\n\n",
    b'{"choices":[]}\n\n',
    b'choices":[]}\n\n',
    b"garbage\n\n",
    b'data: {"choices":[]}\ngarbage\n\n',
    b"HTTP/1.1 200 OK\n\n",
    b'\x00\xff\xfe{"a":1}\n\n',
]
FINE = [
    b": keep-alive\n\n",
    b":\n\n",
    b"\n\n",
    b"\n\n\n\n",
    b"event: ping\ndata: {}\n\n",
    b"event: ping\n\n",
    b"retry: 3000\n\n",
    b"id: 7\ndata: {}\n\n",
    b'data:{"choices":[]}\n\n',
    b'data: {"choices":\ndata: []}\n\n',
    b"data: \n\n",
]


@pytest.mark.parametrize("event", BROKEN)
@pytest.mark.parametrize(("make", "good", "last"), DIALECTS, ids=IDS)
def test_what_is_no_event_ends_it_and_what_came_before_is_for_the_client(
    make: Callable[[], Any], good: bytes, last: bytes, event: bytes
) -> None:
    tap = make()
    assert tap.feed(good * 3) == good * 3
    with pytest.raises(MalformedStreamError) as broken:
        tap.feed(good + good + event + good + last)
    assert broken.value.before == good + good
    assert not tap.done


@pytest.mark.parametrize("event", FINE)
@pytest.mark.parametrize(("make", "good", "last"), DIALECTS, ids=IDS)
def test_whatever_else_server_sent_events_allow_passes(
    make: Callable[[], Any], good: bytes, last: bytes, event: bytes
) -> None:
    tap = make()
    assert tap.feed(good) + tap.feed(event) + tap.feed(good + event + last) == good + event + good + event + last
    assert tap.done


@pytest.mark.parametrize("event", BROKEN)
@pytest.mark.parametrize(("make", "good", "last"), DIALECTS, ids=IDS)
def test_it_shows_however_the_reads_are_cut(make: Callable[[], Any], good: bytes, last: bytes, event: bytes) -> None:
    stream = good * 2 + event + good * 2 + last
    for size in (1, 2, 7, len(good), len(good) + 1, len(good) * 2, len(stream)):
        tap, out, broken = make(), b"", False
        try:
            for at in range(0, len(stream), size):
                out += tap.feed(stream[at : at + size])
        except MalformedStreamError as found:
            out += found.before
            broken = True
        assert (broken, out) == (True, good * 2), f"reads of {size}"


@pytest.mark.parametrize(("make", "good", "last"), DIALECTS, ids=IDS)
def test_after_the_last_word_nothing_is_looked_at(make: Callable[[], Any], good: bytes, last: bytes) -> None:
    tap = make()
    assert tap.feed(good + last) == good + last
    assert tap.feed(b"garbage\n\n") == b"garbage\n\n"
    assert tap.done


@pytest.mark.parametrize("whole", [True, False])
def test_lines_that_end_in_cr_lf_are_said_to_at_once(whole: bool) -> None:
    """Legal, but nothing that vLLM sends; it would pile up unread to the end."""
    odd = HELLO.replace(b"\n", b"\r\n")
    tap = StreamTap(strip_usage=True)
    with pytest.raises(MalformedStreamError, match="CR LF") as broken:
        tap.feed(ROLE + odd if whole else odd)
    assert broken.value.before == (ROLE if whole else b"")


def test_a_finish_that_is_held_back_is_not_given_out_before_a_broken_event() -> None:
    """Behind it the client would take the answer for whole."""
    tap = StreamTap(strip_usage=True)
    assert tap.feed(HELLO + FINISH) == HELLO
    with pytest.raises(MalformedStreamError) as broken:
        tap.feed(b"garbage\n\n")
    assert broken.value.before == b""


@pytest.mark.parametrize(("make", "good", "last"), DIALECTS, ids=IDS)
def test_a_word_of_the_gateways_begins_on_a_line_of_its_own(
    make: Callable[[], Any], good: bytes, last: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(framing, "MAX_EVENT_BYTES", 100)
    tap = make()
    tap.feed(good)
    assert not tap.error_event("It broke.", "upstream_error", 502).startswith(b"\n")
    half = b'data: {"choices":"' + b"x" * 200
    assert tap.feed(half) == half, "passed on in pieces"
    error = tap.error_event("It broke.", "upstream_error", 502)
    assert error.startswith((b"\n\ndata: {", b"\n\nevent: error\n"))
    assert error.endswith(b"}\n\n")


def test_what_comes_behind_an_oversized_event_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Plain(EventFramer):
        def _event(self, event: bytes) -> bytes:
            return event

    monkeypatch.setattr(framing, "MAX_EVENT_BYTES", 100)
    framer = Plain()
    half = b'data: {"choices":"' + b"x" * 200
    assert framer.feed(half) == half
    with pytest.raises(MalformedStreamError) as broken:
        framer.feed(b'"}\n\n' + HELLO + b"garbage\n\n" + HELLO)
    assert broken.value.before == b'"}\n\n' + HELLO
