"""Answers in the words of Anthropic's and OpenAI's agent APIs, as a plain vLLM 0.32 was heard to give them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.wire.answers_messages import ANTHROPIC
from gateway.wire.answers_responses import RESPONSES
from gateway.wire.dialects import Dialect
from gateway.wire.fields import parse
from gateway.wire.prompts_anthropic import read_anthropic
from gateway.wire.prompts_responses import read_responses
from gateway.wire.usage import PrefillDetails

RECORDED = Path(__file__).parent / "recorded" / "dialects"
CASES: list[tuple[str, Dialect]] = [
    ("messages.text", ANTHROPIC),
    ("messages.call", ANTHROPIC),
    ("responses.text", RESPONSES),
    ("responses.call", RESPONSES),
]
PARAMS = b'{"do_remote_decode":true,"remote_engine_id":"e-1"}'


def recorded(name: str) -> bytes:
    return (RECORDED / name).read_bytes()


def fed(dialect: Dialect, stream: bytes, size: int, prefill: PrefillDetails | None = None) -> tuple[bytes, Any]:
    tap = dialect.tap({}, prefill, None)
    out = b"".join(tap.feed(stream[at : at + size]) for at in range(0, len(stream), size))
    return out + tap.finish(), tap


@pytest.mark.parametrize(("case", "dialect"), CASES)
@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_a_stream_passes_byte_for_byte_and_ends_with_its_last_word(case: str, dialect: Dialect, size: int) -> None:
    stream = recorded(f"{case}.sse")
    out, tap = fed(dialect, stream, size)
    assert out == stream
    assert tap.done
    assert tap.error is None
    assert not tap.reasoned


@pytest.mark.parametrize(("case", "dialect"), CASES)
def test_a_stream_and_a_whole_answer_tell_the_same(case: str, dialect: Dialect) -> None:
    _, tap = fed(dialect, recorded(f"{case}.sse"), 50)
    body = recorded(f"{case}.json")
    whole = dialect.rewrite(body, None)
    assert whole.body is body
    assert tap.usage is not None
    assert whole.usage is not None
    assert (tap.usage.prompt_tokens, tap.usage.output_tokens) == (whole.usage.prompt_tokens, whole.usage.output_tokens)
    if case != "messages.call":  # cut by the limit, vLLM gives it as text unstreamed
        assert tap.reply_head == whole.reply_head


def test_the_counts_are_those_vllm_said() -> None:
    """212 prompt tokens: 20 computed and not a whole block, 96 new in the cache, 96 found there."""
    _, tap = fed(ANTHROPIC, recorded("messages.call.sse"), 1000)
    assert (tap.usage.prompt_tokens, tap.usage.cached_tokens, tap.usage.output_tokens) == (212, 96, 30)
    _, tap = fed(RESPONSES, recorded("responses.text.sse"), 1000)
    last = msgspec.json.decode(recorded("responses.text.sse").rstrip().rpartition(b"data: ")[2])["response"]
    assert tap.usage.prompt_tokens == last["usage"]["input_tokens"]
    assert tap.usage.cached_tokens == last["usage"]["input_tokens_details"]["cached_tokens"]
    assert tap.response_id == last["id"]


@pytest.mark.parametrize(("api", "dialect"), [("messages", ANTHROPIC), ("responses", RESPONSES)])
def test_ps_answer_is_read(api: str, dialect: Dialect) -> None:
    prefilled = dialect.read_prefill(recorded(f"{api}.prefill.json"))
    assert prefilled.handover is not None
    assert b'"do_remote_prefill":true' in bytes(prefilled.handover)
    assert prefilled.finish_reason == "length"
    assert prefilled.usage is not None
    assert prefilled.usage.output_tokens == 1
    assert prefilled.details.raw is not None


@pytest.mark.parametrize("dialect", [ANTHROPIC, RESPONSES])
@pytest.mark.parametrize(
    "body", [b"", b"oops", b"[]", b"{}", b'{"usage":1,"output":2,"content":3,"status":4}', b"[" * 9999]
)
def test_a_body_that_is_no_answer_passes_as_it_came(dialect: Dialect, body: bytes) -> None:
    prefilled = dialect.read_prefill(body)
    assert (prefilled.handover, prefilled.usage, prefilled.finish_reason) == (None, None, None)
    assert dialect.rewrite(body, prefilled.details).body == body


# Usage is what one plain pod would have said


def test_messages_get_ps_counts_of_the_prompt() -> None:
    p = PrefillDetails(
        msgspec.Raw(
            b'{"input_tokens":18,"output_tokens":1,"cache_creation_input_tokens":64,"cache_read_input_tokens":192}'
        )
    )
    usage = b'{"input_tokens":274,"output_tokens":6,"cache_creation_input_tokens":0,"cache_read_input_tokens":0}'
    expected = (
        b'"usage":{"input_tokens":18,"output_tokens":6,"cache_creation_input_tokens":64,"cache_read_input_tokens":192}'
    )
    whole = ANTHROPIC.rewrite(b'{"id":"x","content":[],"usage":' + usage + b"}", p)
    assert whole.body == b'{"id":"x","content":[],' + expected + b"}"
    event = b'event: message_delta\ndata: {"type":"message_delta","delta":{},"usage":' + usage + b"}\n\n"
    out, _ = fed(ANTHROPIC, event, 9, p)
    assert out == b'event: message_delta\ndata: {"type":"message_delta","delta":{},' + expected + b"}\n\n"


def test_responses_get_ps_details() -> None:
    p = PrefillDetails(msgspec.Raw(b'{"cached_tokens":192,"cache_write_tokens":64}'))
    body = (
        b'{"id":"r","usage":{"input_tokens":274,"input_tokens_details":{"cached_tokens":0,"cache_write_tokens":0},'
        b'"output_tokens":6},"kv_transfer_params":null}'
    )
    expected = body.replace(
        b'{"cached_tokens":0,"cache_write_tokens":0}', b'{"cached_tokens":192,"cache_write_tokens":64}'
    )
    assert RESPONSES.rewrite(body, p).body == expected
    event = b'event: response.completed\ndata: {"response":' + body + b',"sequence_number":9}\n\n'
    out, _ = fed(RESPONSES, event, 9, p)
    assert out == event.replace(body, expected)


# Hand-overs do not leak


def test_a_hand_over_leaves_messages_with_its_name_and_responses_as_null() -> None:
    whole = ANTHROPIC.rewrite(b'{"id":"x","content":[],"kv_transfer_params":' + PARAMS + b"}", None)
    assert whole.body == b'{"id":"x","content":[]}'
    assert bytes(whole.offer or b"") == PARAMS
    body = b'{"id":"r","output":[],"kv_transfer_params":' + PARAMS + b',"ec_transfer_params":null}'
    plain = b'{"id":"r","output":[],"kv_transfer_params":null,"ec_transfer_params":null}'
    told = RESPONSES.rewrite(body, None)
    assert told.body == plain
    assert bytes(told.offer or b"") == PARAMS
    event = b'event: response.completed\ndata: {"response":' + body + b',"sequence_number":9}\n\n'
    out, tap = fed(RESPONSES, event, 5)
    assert out == event.replace(body, plain)
    assert bytes(tap.offer) == PARAMS


# The beginning and the end of a stream


@pytest.mark.parametrize(
    ("dialect", "announcement", "word"),
    [
        (ANTHROPIC, b"event: message_start\ndata: {}\n\n", b"event: content_block_start\ndata: {}\n\n"),
        (RESPONSES, b"event: response.created\ndata: {}\n\n", b"event: response.output_item.added\ndata: {}\n\n"),
        (RESPONSES, b"event: response.in_progress\ndata: {}\n\n", b"event: response.failed\ndata: {}\n\n"),
        (ANTHROPIC, b"event: message_start\ndata: {}\n\n", b"event: error\ndata: {}\n\n"),
        (ANTHROPIC, b"event: message_start\ndata: {}\n\n", b": keep-alive\n\n"),
    ],
)
def test_an_announcement_says_nothing_yet(dialect: Dialect, announcement: bytes, word: bytes) -> None:
    tap = dialect.tap({}, None, None)
    assert tap.feed(announcement) == announcement
    assert not tap.said_something
    assert tap.feed(word) == word
    assert tap.said_something


@pytest.mark.parametrize("dialect", [ANTHROPIC, RESPONSES])
def test_an_error_event_is_the_end_and_the_pods_fault(dialect: Dialect) -> None:
    event = b'event: error\ndata: {"type":"error","error":{"type":"internal_error","message":"x"}}\n\n'
    out, tap = fed(dialect, event, 4)
    assert out == event
    assert tap.done
    assert tap.error
    assert dialect.blames_the_pod(event)
    assert not dialect.blames_the_pod(b"event: message_start\ndata: {}\n\n")


def test_a_broken_stream_ends_in_words_of_its_dialect() -> None:
    assert ANTHROPIC.tap({}, None, None).error_event("broke", "upstream_error", 502) == (
        b'event: error\ndata: {"type":"error","error":{"type":"upstream_error","message":"broke"}}\n\n'
    )
    event = RESPONSES.tap({}, None, None).error_event("broke", "upstream_error", 502)
    assert event.startswith(
        b'event: error\ndata: {"type":"error","code":"502","message":"broke","param":null,"error":{'
    )
    assert event.endswith(b"}}\n\n")


# The next turn's prompt shows the reply


def test_the_head_of_a_call_is_found_in_the_next_prompt() -> None:
    item = msgspec.json.decode(recorded("responses.call.json"))["output"][0]
    _, tap = fed(RESPONSES, recorded("responses.call.sse"), 64)
    prompt = read_responses(parse(msgspec.json.encode({"input": [{"role": "user", "content": "hi"}, item]})))
    assert prompt is not None
    assert prompt.reply_heads[1] == tap.reply_head
    stream = (
        b'event: content_block_start\ndata: {"type":"content_block_start","content_block":{"type":"tool_use",'
        b'"id":"t","name":"look","input":{}},"index":0}\n\n'
        b'event: content_block_delta\ndata: {"delta":{"type":"input_json_delta","partial_json":"{\\"city\\": "}}\n\n'
        b'event: content_block_delta\ndata: {"delta":{"type":"input_json_delta","partial_json":"\\"Oslo\\"}"}}\n\n'
    )
    _, tap = fed(ANTHROPIC, stream, 64)
    block = {"type": "tool_use", "id": "t", "name": "look", "input": {"city": "Oslo"}}
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": [block]}]
    told = read_anthropic(parse(msgspec.json.encode({"messages": messages})))
    assert told is not None
    assert told.reply_heads[1] == tap.reply_head


def test_thoughts_are_noticed_and_are_no_part_of_the_head() -> None:
    start = b'event: content_block_start\ndata: {"content_block":{"type":"thinking","thinking":""},"index":0}\n\n'
    text = b'event: content_block_delta\ndata: {"delta":{"type":"text_delta","text":"hello"},"index":1}\n\n'
    _, tap = fed(ANTHROPIC, start + text, 64)
    assert tap.reasoned
    whole = ANTHROPIC.rewrite(b'{"content":[{"type":"thinking","thinking":"hm"},{"type":"text","text":"hello"}]}', None)
    assert whole.reasoned
    assert whole.reply_head == tap.reply_head
    output = b'[{"type":"reasoning","content":[]},{"type":"message","content":[{"type":"output_text","text":"hello"}]}]'
    told = RESPONSES.rewrite(b'{"output":' + output + b"}", None)
    assert told.reasoned
    assert told.reply_head == whole.reply_head
