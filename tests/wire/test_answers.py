"""Answers in one piece: P's is read, D's is made presentable, and neither lets a hand-over through."""

from __future__ import annotations

import msgspec
import pytest

from gateway.wire.answers import engine_of, read_prefill, rewrite_answer
from gateway.wire.prompts import message_head, reply_head
from gateway.wire.usage import PrefillDetails

HANDOVER = b'{ "do_remote_prefill":true,"remote_block_ids" : [[1,2]],"remote_engine_id":"e"}'
FROM_P = (
    b'{"id":"chatcmpl-0","choices":[{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"length"}],'
    b'"usage":{"prompt_tokens":20,"total_tokens":21,"completion_tokens":1,'
    b'"prompt_tokens_details":{"cached_tokens":16,"created_cache_tokens":0,"multimodal_tokens":null}},'
    b'"kv_transfer_params":' + HANDOVER + b"}"
)
PLAIN = (
    b'{"id":"chatcmpl-9","object":"chat.completion","created":1,"model":"tiny","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":" appe--- headers","refusal":null,"reasoning":null},"logprobs":null,'
    b'"finish_reason":"stop","stop_reason":null}],"service_tier":null,"system_fingerprint":"vllm-0.32.0-cf911bc9",'
    b'"usage":{"prompt_tokens":20,"total_tokens":26,"completion_tokens":6,"prompt_tokens_details":null,'
    b'"completion_tokens_details":null},"prompt_logprobs":null,"kv_transfer_params":null}'
)
"""A plain vLLM 0.32 pod's answer, shortened."""
TWELVE = PrefillDetails(msgspec.Raw(b'{"cached_tokens":12,"created_cache_tokens":0,"multimodal_tokens":null}'))


# P's answer


def test_ps_handover_is_taken_byte_for_byte() -> None:
    answer = read_prefill(FROM_P)
    assert answer.handover is not None
    assert bytes(answer.handover) == HANDOVER
    assert answer.finish_reason == "length"


def test_ps_usage_and_details_are_read() -> None:
    answer = read_prefill(FROM_P)
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.cached_tokens) == (20, 16)
    assert answer.details.raw is not None
    assert bytes(answer.details.raw) == b'{"cached_tokens":16,"created_cache_tokens":0,"multimodal_tokens":null}'


@pytest.mark.parametrize("end", [b'"kv_transfer_params":null}', b'"x":1}'])
def test_a_p_that_kept_no_blocks_gives_no_handover(end: bytes) -> None:
    answer = read_prefill(FROM_P.replace(b'"kv_transfer_params":' + HANDOVER + b"}", end))
    assert answer.handover is None
    assert answer.finish_reason == "length"


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"<html>busy</html>", b'{"choices":', b"\xff"])
def test_an_answer_that_is_no_object_is_one_without_a_handover(body: bytes) -> None:
    answer = read_prefill(body)
    assert (answer.handover, answer.usage, answer.details.raw, answer.finish_reason) == (None, None, None, None)


@pytest.mark.parametrize("choices", [b"[]", b"null", b'"x"', b"[1]", b'[{"finish_reason":null}]'])
def test_odd_choices_have_no_finish_reason(choices: bytes) -> None:
    answer = read_prefill(b'{"choices":' + choices + b',"kv_transfer_params":{"a":1}}')
    assert answer.finish_reason is None
    assert answer.handover is not None


# D's answer


def test_an_answer_with_nothing_to_hide_passes_byte_for_byte_white_space_and_all() -> None:
    body = b' { "a" : 1.50e3 ,\n"usage":{"prompt_tokens":1},"kv_transfer_params" : null } '
    assert rewrite_answer(body, None).body == body


def test_a_handover_in_ds_answer_becomes_null_as_in_a_plain_pods() -> None:
    leaking = PLAIN.replace(b'"kv_transfer_params":null', b'"kv_transfer_params":{"remote_block_ids":[1]}')
    assert rewrite_answer(leaking, None).body == PLAIN


def test_ps_details_replace_ds_and_nothing_else_changes() -> None:
    after = rewrite_answer(PLAIN, TWELVE).body
    assert TWELVE.raw is not None
    assert after == PLAIN.replace(b'"prompt_tokens_details":null', b'"prompt_tokens_details":' + bytes(TWELVE.raw))


def test_details_that_p_does_not_give_are_null() -> None:
    d_counts = PLAIN.replace(b'"prompt_tokens_details":null', b'"prompt_tokens_details":{"cached_tokens":19}')
    assert rewrite_answer(d_counts, PrefillDetails(None)).body == PLAIN


@pytest.mark.parametrize(
    ("usage", "details"),
    [
        (b'{"prompt_tokens": 20, "prompt_tokens_details": null}', PrefillDetails(None)),
        (b'{"prompt_tokens": 20}', PrefillDetails(None)),
        (b'"none"', PrefillDetails(None)),
        (b'{"prompt_tokens_details": %b}' % bytes(TWELVE.raw or b""), TWELVE),
    ],
)
def test_an_answer_that_says_already_what_p_says_passes_as_it_came(usage: bytes, details: PrefillDetails) -> None:
    body = b'{"id": "x", "usage": ' + usage + b"}"
    assert rewrite_answer(body, details).body == body


def test_a_pod_alone_keeps_its_own_details() -> None:
    d_counts = PLAIN.replace(b'"prompt_tokens_details":null', b'"prompt_tokens_details":{"cached_tokens":19}')
    whole = rewrite_answer(d_counts, None)
    assert whole.body == d_counts
    assert whole.usage is not None
    assert whole.usage.cached_tokens == 19


@pytest.mark.parametrize("usage", [b'"usage":null', b'"other":1'])
def test_an_answer_without_usage_gets_none(usage: bytes) -> None:
    body = b'{"choices":[],' + usage + b"}"
    whole = rewrite_answer(body, TWELVE)
    assert whole.body == body
    assert whole.usage is None


def test_what_is_learned_is_ds_own_count() -> None:
    whole = rewrite_answer(PLAIN, TWELVE)
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.output_tokens) == (20, 6)
    assert whole.finish_reason == "stop"


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        (b'{"message":{"role":"assistant","content":"Hello there"}}', "Hello there"),
        (b'{"message":{"role":"assistant","reasoning":"hm"}}', ""),
        (b'{"text":"Once upon"}', "Once upon"),
        (b'{"text":""}', ""),
        (b'{"index":0}', ""),
    ],
    ids=["chat", "reasoning", "completions", "empty", "bare"],
)
def test_the_reply_head_is_that_of_the_first_choice(choice: bytes, text: str) -> None:
    body = b'{"choices":[' + choice + b',{"message":{"content":"another"},"text":"another"}]}'
    assert rewrite_answer(body, None).reply_head == reply_head(text)


def test_the_head_of_an_answer_that_only_calls_a_tool_is_that_of_its_first_call() -> None:
    calls = b'[{"function":{"name":"f","arguments":"{\\"a\\": 1}"}},{"function":{"name":"g","arguments":"{}"}}]'
    body = b'{"choices":[{"message":{"content":null,"tool_calls":' + calls + b"}}]}"
    assert rewrite_answer(body, None).reply_head == message_head("", 'f{"a": 1}')


@pytest.mark.parametrize(
    ("message", "usage", "reasoned"),
    [
        (b'{"content":"Hello"}', b"null", False),
        (b'{"content":"Hello","reasoning":null,"reasoning_content":null}', b"null", False),
        (b'{"content":"Hello","reasoning":"hm"}', b"null", True),
        (b'{"content":"Hello","reasoning_content":"hm"}', b"null", True),
        (b'{"content":"\\n<think>hm</think>Hello"}', b"null", True),
        (b'{"content":"Hello"}', b'{"prompt_tokens":1,"completion_tokens_details":{"reasoning_tokens":7}}', True),
        (b'{"content":"Hello"}', b'{"prompt_tokens":1,"completion_tokens_details":{"reasoning_tokens":0}}', False),
        (b'{"content":"Hello"}', b'{"prompt_tokens":1,"completion_tokens_details":null}', False),
    ],
)
def test_an_answer_with_reasoning_is_known_as_one(message: bytes, usage: bytes, reasoned: bool) -> None:
    whole = rewrite_answer(b'{"choices":[{"message":' + message + b'}],"usage":' + usage + b"}", None)
    assert whole.reasoned is reasoned
    assert whole.reply_head == reply_head("Hello")


@pytest.mark.parametrize("body", [b"", b"oops", b"[]", b'{"choices":[]}', b'{"choices":[{"text":5}]}', b"{}"])
def test_an_answer_without_a_readable_choice_teaches_nothing_and_passes(body: bytes) -> None:
    whole = rewrite_answer(body, TWELVE)
    assert (whole.body, whole.usage, whole.reply_head, whole.finish_reason) == (body, None, None, None)


def test_no_kind_of_handover_parameters_reaches_the_client() -> None:
    body = b'{"id":"x","choices":[],"kv_transfer_params":{"a":1},"ec_transfer_params":{"b":2}}'
    told = rewrite_answer(body, None).body
    assert told == b'{"id":"x","choices":[],"kv_transfer_params":null,"ec_transfer_params":null}'


@pytest.mark.parametrize(
    ("answer", "engine"),
    [
        (b'{"kv_transfer_params":{"remote_engine_id":"b1c2-3","remote_host":"h"}}', b"b1c2-3"),
        (b'{"remote_engine_id" : "b1c2-3"}', b"b1c2-3"),
        (b'{"remote_engine_id":"b1c2-3_dp0"}', b"b1c2-3"),
        (b'{"remote_engine_id":"b1c2-3_dp11"}', b"b1c2-3"),
        (b'{"remote_engine_id":"my_dp_engine"}', b"my_dp_engine"),
        (b'{"remote_engine_id":null}', None),
        (b'{"choices":[]}', None),
        (b'{"content":"say \\"remote_engine_id\\":\\"x\\""}', None),
    ],
)
def test_the_engine_is_named_without_its_data_parallel_rank(answer: bytes, engine: bytes | None) -> None:
    assert engine_of(answer) == engine
    assert engine_of(msgspec.Raw(answer)) == engine
