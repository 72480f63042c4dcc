"""HTTP chunks of one event each are taken as they stand; anything else is left alone."""

from __future__ import annotations

import pytest

from gateway.wire.even import LONGEST_CHUNK, EvenChunks, is_one_chunk
from gateway.wire.mould import mould_of
from gateway.wire.sse import StreamTap
from tests.wire.test_mould import event, fed


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def even(texts: list[bytes] | None = None) -> EvenChunks:
    mould = mould_of(event("a"))
    assert mould is not None
    return EvenChunks(mould, texts)


def test_chunks_of_every_length_are_taken_up_to_the_longest() -> None:
    chunks, shortest = even(), len(chunk(event("")))
    for length in range(2000):
        one = chunk(event("x" * length))
        assert chunks.takes(one) is (len(one) <= LONGEST_CHUNK)
    assert shortest < 200 < LONGEST_CHUNK, "both sides were seen, and sizes of two and three digits"


@pytest.mark.parametrize(
    "read",
    [
        chunk(event("b"))[:-1],
        chunk(event("b"))[1:],
        chunk(event("b")) + b"0\r\n\r\n",
        chunk(event("b")) + chunk(event("c")),
        chunk(event("b") + event("c")),
        chunk(event("b", created=1)),
        chunk(event('"')),
        chunk(event("b").replace(b'"b"', b'"b\n\ndata: c"')),
        chunk(event("b")).replace(b"\r\n", b";x=1\r\n", 1),
        b"0" + chunk(event("b")),
        chunk(event("b")).upper(),
        b"%x\r\n%b\r\n" % (len(event("b")) - 1, event("b")),
        b"%x\r\n%b\r\n" % (len(event("b")) + 1, event("b")),
        event("b"),
        b"",
        b"\n",
    ],
)
def test_what_is_not_one_even_event_is_left_alone(read: bytes) -> None:
    texts: list[bytes] = []
    assert not even(texts).takes(read)
    assert texts == []


def test_texts_are_kept_until_they_have_to_be_looked_at() -> None:
    texts: list[bytes] = []
    chunks = even(texts)
    assert [chunks.takes(chunk(event(f"{number}"))) for number in range(20)] == [True] * 16 + [False] * 4
    assert texts == [b"%d" % number for number in range(16)]


@pytest.mark.parametrize(
    ("data", "one"),
    [
        (chunk(b"hello"), True),
        (chunk(b"a" * 70_000), True),
        (b"05\r\nhello\r\n", False),
        (b"5;x\r\nhello\r\n", False),
        (b"5\r\nhello", False),
        (b"5\r\nhello\r\n1\r\n", False),
        (b"ello\r\n5\r\nhello", False),
        (b"\r\n5\r\nhello", False),
    ],
)
def test_what_is_one_chunk(data: bytes, one: bool) -> None:
    assert is_one_chunk(data, b"a" * 70_000 if len(data) > 1000 else b"hello") is one


def come(tap: StreamTap, *texts: str) -> int:
    """Events that come in chunks of their own; how many of them passed as they were."""
    passed, chunks = 0, None
    for text in texts:
        if chunks is not None and chunks.takes(chunk(event(text))):
            passed += 1
        else:
            assert tap.feed(event(text)) == event(text)
            chunks = tap.even_chunks()
    return passed


@pytest.mark.parametrize("count", [1, 15, 16, 17, 18, 60])
def test_a_reply_is_recognised_however_its_events_came(count: int) -> None:
    texts = [f"w{number} " for number in range(count)]
    tap = fed(event("a"), event("b"))
    assert come(tap, *texts) >= count - 4
    assert tap.reply_head == fed(event("ab" + "".join(texts))).reply_head


def test_a_thought_that_chunks_bring_is_seen() -> None:
    tap = StreamTap(strip_usage=True)
    assert come(tap, " ", " ", "<thi", "nk>", *["so"] * 40) == 16, "until the texts were looked at"
    assert come(tap, "so", "</think>yes") == 0
    assert tap.reply_head == fed(event("yes")).reply_head


def test_there_are_none_before_an_even_event_and_after_another_one() -> None:
    tap = StreamTap(strip_usage=True)
    assert tap.even_chunks() is None
    tap.feed(event("a"))
    tap.feed(event("b"))
    assert tap.even_chunks() is not None
    tap.feed(event("", usage={"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}))
    assert tap.even_chunks() is None
