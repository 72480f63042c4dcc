"""Bytes of streamed answers, as vLLM and others write them."""

import orjson
import pytest

from loadtest.live.sse import MAX_EVENT_BYTES, EventScanner, MalformedError


def chunk(**delta: object) -> bytes:
    return event({"choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}]})


def event(data: object) -> bytes:
    return b"data: " + orjson.dumps(data) + b"\n\n"


FINISH = event({"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "stop"}]})
USAGE = event(
    {
        "choices": [],
        "usage": {"prompt_tokens": 11, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 8}},
    }
)
DONE = b"data: [DONE]\n\n"


def scanned(*pieces: bytes) -> EventScanner:
    """Fed piece by piece, one second apart."""
    scanner = EventScanner(keep_text=True)
    for second, piece in enumerate(pieces, start=1):
        scanner.feed(piece, float(second))
    return scanner


def test_the_role_is_no_token_and_text_is() -> None:
    seen = scanned(chunk(role="assistant", content=""), chunk(content="Hel"), chunk(content="lo"), FINISH, USAGE, DONE)
    assert (seen.times, seen.text) == ([2.0, 3.0], "Hello")
    assert (seen.finished, seen.done, seen.error) == (True, True, None)
    assert seen.usage is not None
    assert (seen.usage.prompt_tokens, seen.usage.completion_tokens, seen.usage.cached_tokens) == (11, 3, 8)


def test_several_events_in_one_read_share_its_time() -> None:
    assert scanned(chunk(content="a") + chunk(content="b"), chunk(content="c")).times == [1.0, 1.0, 2.0]


def test_every_cut_of_the_bytes_gives_the_same() -> None:
    whole = chunk(role="assistant", content="") + chunk(content='say "hi"\n\\ ünï') + FINISH + USAGE + DONE
    for cut in range(1, len(whole)):
        seen = scanned(whole[:cut], whole[cut:])
        assert (len(seen.times), seen.text, seen.done) == (1, 'say "hi"\n\\ ünï', True), cut
        assert seen.usage is not None


def test_carriage_returns_and_spaces_are_read_too() -> None:
    body = b'data: {"choices": [{"delta": {"content": "a"}, "finish_reason": null}]}\r\n\r\ndata: [DONE]\r\n\r\n'
    for cut in range(1, len(body)):
        seen = scanned(body[:cut], body[cut:])
        assert (seen.text, seen.done) == ("a", True), cut


def test_a_finish_reason_behind_the_last_text_is_seen() -> None:
    seen = scanned(event({"choices": [{"index": 0, "text": " b", "logprobs": None, "finish_reason": "length"}]}))
    assert (seen.text, seen.finished, seen.done) == (" b", True, False)


def test_text_that_looks_like_a_field_stays_text() -> None:
    words = '"content":"x","finish_reason":"stop","usage":{"prompt_tokens":1}'
    seen = scanned(chunk(content=words))
    assert (seen.text, seen.finished, seen.usage, len(seen.times)) == (words, False, None, 1)


def test_reasoning_and_calls_are_tokens_but_not_what_was_said() -> None:
    call = {"index": 0, "function": {"arguments": '{"a"'}}
    seen = scanned(chunk(reasoning="hm"), chunk(reasoning_content="hm"), chunk(tool_calls=[call]), chunk(content="b"))
    assert (seen.times, seen.text) == ([1.0, 2.0, 3.0, 4.0], "b")


def test_a_surrogate_pair_over_two_events_is_one_letter_and_half_of_one_is_replaced() -> None:
    first, second = (b'data: {"choices":[{"delta":{"content":"%s"}}]}\n\n' % half for half in (b"\\ud83d", b"\\ude00"))
    assert scanned(first, second).text == "😀"
    assert scanned(first).text == "\ufffd"


def test_an_error_event_is_known_by_its_type_without_its_message() -> None:
    error = {"error": {"message": 'prompt "secret"', "type": "InternalServerError", "code": 500}}
    assert scanned(chunk(content="a"), event(error), DONE).error == "InternalServerError"
    assert scanned(event({"error": "secret words"})).error == "unnamed"


def test_comments_are_nothing() -> None:
    seen = scanned(b": keep-alive\n\n", chunk(content="a"))
    assert seen.times == [2.0]


@pytest.mark.parametrize("body", [b"data: {nonsense\n\n", b"data: nonsense\n\n", b"<html></html>\n\n"])
def test_what_is_no_event_is_malformed(body: bytes) -> None:
    with pytest.raises(MalformedError):
        scanned(body)


def test_an_event_without_end_is_not_kept_for_ever() -> None:
    with pytest.raises(MalformedError, match="without an end"):
        scanned(b"data: " + b"x" * MAX_EVENT_BYTES)
