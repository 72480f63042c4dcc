"""The tap on a stream: recorded streams of a real vLLM 0.32 go in, what the client should get comes out, at once."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gateway.wire.prompts import reply_head
from gateway.wire.sse import StreamTap
from gateway.wire.usage import PrefillDetails
from tests.wire.streams import (
    CASES,
    CONTINUOUS,
    DONE,
    FINGERPRINT,
    FINISH,
    HELLO,
    ONE_CHOICE,
    RECORDED,
    ROLE,
    TWO_CHOICES,
    USAGE,
    events,
    learned,
    recorded,
    through,
)


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
