"""The words of a readback: how the ids of a prompt are asked for, and what the pods' words become."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.wire.contract import ASK_P_TO_KEEP_BLOCKS, Api
from gateway.wire.fields import Fields, parse
from gateway.wire.readback import (
    on_ids,
    own_ids,
    read_ids,
    readback_params,
    recall_body,
    release_params,
    render_request,
    renders_none,
    tokenize_request,
    with_ids,
)

NESTED = b"[" * 100_000
NO_OBJECT = [b"null", b"[]", b'"x"', b"7", b"{", b'{"a":' + NESTED]
OFFER = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[3, 1, 2]],
    "remote_engine_id": "e-1",
    "remote_request_id": "cmpl-x-0-abc",
    "remote_host": "10.0.0.1",
    "remote_port": 5600,
    "tp_size": 1,
    "remote_num_tokens": 48,
}
USER = {"role": "user", "content": "hello"}


def fields_of(**fields: Any) -> Fields:
    return parse(msgspec.json.encode(fields))


def chat(*messages: Any, **more: Any) -> Fields:
    return fields_of(model="m", messages=list(messages), **more)


def decoded(body: bytes | msgspec.Raw | None) -> Any:
    assert body is not None
    return msgspec.json.decode(body)


# Ids


def test_what_is_rendered_is_the_request_without_its_stream() -> None:
    body = b'{"model":"m","stream":true,"messages":[{"role":"user"}],"stream_options":{"include_usage":true},"x":1.50}'
    request = render_request(Api.CHAT, parse(body))
    assert request.path == "/v1/chat/completions/render"
    assert request.body == b'{"model":"m","stream":false,"messages":[{"role":"user"}],"x":1.50}'
    assert render_request(Api.COMPLETIONS, parse(b'{"prompt":"p"}')).path == "/v1/completions/render"
    assert render_request(Api.MESSAGES, parse(b'{"messages":[]}')).path == "/v1/messages/render"
    assert render_request(Api.RESPONSES, parse(b'{"input":"p"}')).path == "/v1/responses/render"
    assert render_request(Api.COMPLETIONS, parse(b'{"prompt":"p"}')).body == b'{"prompt":"p","stream":false}'


def test_tokenize_gets_what_shapes_a_chat_and_nothing_else() -> None:
    shaping = {
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "chat_template": "{{ x }}",
        "chat_template_kwargs": {"thinking": True},
        "add_generation_prompt": False,
        "continue_final_message": True,
        "add_special_tokens": False,
    }
    request = tokenize_request(Api.CHAT, chat(USER, **shaping, temperature=0.5, stream=True, max_tokens=5, user="me"))
    assert request is not None
    assert request.path == "/tokenize"
    assert decoded(request.body) == {"model": "m", "messages": [USER], **shaping}


def test_tokenize_gets_a_completions_prompt_byte_for_byte() -> None:
    fields = parse(b'{"prompt":"\\u0061","max_tokens":5,"add_special_tokens":false}')
    request = tokenize_request(Api.COMPLETIONS, fields)
    assert request is not None
    assert request.body == b'{"prompt":"\\u0061","add_special_tokens":false}'


HARMLESS = {
    "cache_salt": "s",
    "conversation_id": "c",
    "session_id": "c",
    "frequency_penalty": 1,
    "guided_json": {},
    "ignore_eos": True,
    "kv_transfer_params": {},
    "logit_bias": {},
    "logprobs": True,
    "max_completion_tokens": 5,
    "max_tokens": 5,
    "metadata": {},
    "min_tokens": 1,
    "n": 1,
    "parallel_tool_calls": True,
    "priority": 1,
    "request_id": "r",
    "response_format": {"type": "text"},
    "return_token_ids": True,
    "seed": 1,
    "stop": "x",
    "store": False,
    "stream": True,
    "stream_options": {},
    "structured_outputs": {},
    "temperature": 0.1,
    "top_k": 1,
    "top_logprobs": 1,
    "top_p": 0.1,
    "user": "me",
    "vllm_xargs": {"a": 1},
}


@pytest.mark.parametrize("name", HARMLESS)
def test_fields_that_shape_no_prompt_neither_hinder_nor_are_sent(name: str) -> None:
    request = tokenize_request(Api.CHAT, chat(USER, **{name: HARMLESS[name]}))
    assert request is not None
    assert decoded(request.body) == {"model": "m", "messages": [USER]}


@pytest.mark.parametrize(
    "name",
    [
        "truncate_prompt_tokens",
        "reasoning_effort",
        "documents",
        "mm_processor_kwargs",
        "media_io_kwargs",
        "suffix",
        "a_field_of_tomorrow",
        "functions",
    ],
)
@pytest.mark.parametrize("api", [Api.CHAT, Api.COMPLETIONS])
def test_a_field_that_may_shape_the_prompt_gets_no_tokenize(api: Api, name: str) -> None:
    fields = {"model": "m", "messages" if api is Api.CHAT else "prompt": []}
    assert tokenize_request(api, fields_of(**fields, **{name: 5})) is None
    assert tokenize_request(api, fields_of(**fields, **{name: False})) is None
    assert tokenize_request(api, fields_of(**fields, **{name: None})) is not None, "null is the same as absent"


@pytest.mark.parametrize("api", [Api.MESSAGES, Api.RESPONSES])
def test_tokenize_knows_nothing_of_the_other_apis(api: Api) -> None:
    assert tokenize_request(api, chat(USER, input="x")) is None


@pytest.mark.parametrize(
    ("status", "answer", "none"),
    [
        (403, b'{"error":{"message":"Scale-out endpoints are disabled."}}', True),
        (404, b'{"detail":"Not Found"}', True),
        (405, b"", True),
        (404, b'{"error":{"message":"The model `x` does not exist."}}', False),
        (400, b'{"error":{}}', False),
        (503, b"", False),
        (200, b"{}", False),
    ],
)
def test_a_pod_that_does_not_know_the_model_may_render_another(status: int, answer: bytes, none: bool) -> None:
    assert renders_none(status, answer) is none


def test_null_fields_are_not_sent() -> None:
    request = tokenize_request(Api.CHAT, chat(USER, tools=None, chat_template=None, a_field_of_tomorrow=None))
    assert request is not None
    assert decoded(request.body) == {"model": "m", "messages": [USER]}


@pytest.mark.parametrize("api", [Api.CHAT, Api.COMPLETIONS])
def test_the_other_apis_prompt_is_an_unknown_field(api: Api) -> None:
    assert tokenize_request(api, fields_of(messages=[USER], prompt="x")) is None


@pytest.mark.parametrize(
    ("choice", "known"),
    [
        ("auto", True),
        ("required", True),
        ({"type": "function", "function": {"name": "f"}}, True),
        (None, True),
        ("none", False),
    ],
)
def test_a_tool_choice_of_none_may_hide_the_tools(choice: Any, known: bool) -> None:
    request = tokenize_request(Api.CHAT, chat(USER, tools=[{"type": "function"}], tool_choice=choice))
    assert (request is not None) is known
    if request is not None:
        assert decoded(request.body) == {"model": "m", "messages": [USER], "tools": [{"type": "function"}]}


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        ([5, 6, 7], [5, 6, 7]),
        ([], None),
        ("text", None),
        (["text"], None),
        ([[1, 2]], None),
        ([1, True], None),
        ([1, 2.0], None),
        ([1, None], None),
        (None, None),
        (7, None),
    ],
)
def test_a_prompt_of_ids_is_its_own_answer(prompt: Any, ids: list[int] | None) -> None:
    assert own_ids(fields_of(model="m", prompt=prompt, max_tokens=3)) == ids


@pytest.mark.parametrize(("value", "own"), [(2, False), (-1, False), (None, True)])
def test_ids_that_the_pod_will_truncate_are_not_the_prompts(value: Any, own: bool) -> None:
    assert (own_ids(fields_of(prompt=[5, 6, 7], truncate_prompt_tokens=value)) == [5, 6, 7]) is own


@pytest.mark.parametrize(
    ("body", "ids"),
    [
        (b'{"count":3,"max_model_len":9,"tokens":[1,2,3],"token_strs":null}', [1, 2, 3]),
        (b'{"request_id":"chatcmpl-1","token_ids":[4,5],"sampling_params":{}}', [4, 5]),
        (b' \n[{"token_ids":[4,5],"model":"m"}]', [4, 5]),
        (b'[{"token_ids":[4,5]},{"token_ids":[6]}]', None),
        (b"[]", None),
        (b'{"tokens":[]}', None),
        (b'{"token_ids":null,"tokens":null}', None),
        (b'{"tokens":[1,"2"]}', None),
        (b'{"tokens":"123"}', None),
        (b'{"tokens":[1.5]}', None),
        (b'{"tokens":{"0":1}}', None),
        (b"{}", None),
        (b"null", None),
        (b"[null]", None),
        (b"[[1,2]]", None),
        (b"", None),
        (b"<html>", None),
        (b'{"tokens":[1,2', None),
        (b"\xff\xfe", None),
        (NESTED, None),
        (b'{"tokens":' + NESTED, None),
    ],
)
def test_ids_are_read_from_either_answer_or_not_at_all(body: bytes, ids: list[int] | None) -> None:
    assert read_ids(body) == ids


# The recall


def test_a_recall_is_about_these_ids_in_this_cache_and_costs_one_token() -> None:
    fields = chat(
        USER,
        cache_salt="s",
        priority=3,
        temperature=0.7,
        stream=True,
        max_tokens=900,
        n=2,
        logprobs=True,
        stop=["x"],
        tools=[{}],
        vllm_xargs={"a": 1},
        response_format={"type": "json_object"},
        session_id="c",
    )
    assert decoded(recall_body(fields, [7, 8, 9])) == {
        "model": "m",
        "cache_salt": "s",
        "priority": 3,
        "prompt": [7, 8, 9],
        "max_tokens": 1,
        "temperature": 0,
        "ignore_eos": True,
        "kv_transfer_params": decoded(ASK_P_TO_KEEP_BLOCKS),
    }


def test_a_recall_names_nothing_that_the_request_did_not() -> None:
    assert decoded(recall_body(fields_of(prompt="x"), [7])) == {
        "prompt": [7],
        "max_tokens": 1,
        "temperature": 0,
        "ignore_eos": True,
        "kv_transfer_params": decoded(ASK_P_TO_KEEP_BLOCKS),
    }


# The pods' words


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def test_the_holders_word_becomes_an_order_for_p() -> None:
    assert decoded(readback_params(raw({**OFFER, "kept": 1.5}), [7, 8])) == {
        **OFFER,
        "kept": 1.5,
        "do_remote_prefill": False,
        "do_remote_decode": True,
        "prompt_token_ids": [7, 8],
    }


@pytest.mark.parametrize("name", ["remote_block_ids", "remote_engine_id"])
def test_a_holder_that_names_no_blocks_gave_none(name: str) -> None:
    assert readback_params(raw({**OFFER, name: None}), [7]) is None
    assert readback_params(raw({key: value for key, value in OFFER.items() if key != name}), [7]) is None


@pytest.mark.parametrize("words", NO_OBJECT)
def test_words_that_are_no_object_are_no_offer(words: bytes) -> None:
    assert readback_params(msgspec.Raw(words), [7]) is None
    assert release_params(msgspec.Raw(words)) is None
    assert bytes(with_ids(msgspec.Raw(words), [7])) == words


def test_d_gets_ps_word_and_the_ids() -> None:
    assert decoded(with_ids(raw({**OFFER, "prompt_token_ids": [1]}), [7, 8])) == {**OFFER, "prompt_token_ids": [7, 8]}
    assert bytes(with_ids(msgspec.Raw(b'{"a":1.50}'), [7])) == b'{"a":1.50,"prompt_token_ids":[7]}'


def test_only_completions_take_ids_as_the_prompt() -> None:
    fields = parse(b'{"model":"m","prompt":"x","temperature":0.10}')
    assert {k: bytes(v) for k, v in on_ids(Api.COMPLETIONS, fields, [7, 8]).items()} == {
        "model": b'"m"',
        "prompt": b"[7,8]",
        "temperature": b"0.10",
    }
    assert bytes(fields["prompt"]) == b'"x"', "the client's own stays"
    messages = chat(USER)
    assert on_ids(Api.CHAT, messages, [7]) == messages


def test_a_decode_pods_own_offer_is_turned_into_words_that_free_it() -> None:
    offer = {**OFFER, "do_remote_prefill": False, "do_remote_decode": True, "remote_blocks_expiry_time": 9.5}
    assert decoded(release_params(raw(offer))) == {**offer, "do_remote_prefill": True, "do_remote_decode": False}


@pytest.mark.parametrize("words", [OFFER, {}, {**OFFER, "do_remote_decode": None}, {**OFFER, "do_remote_decode": 1}])
def test_a_hand_over_for_another_pod_is_no_offer_of_a_decode_pod(words: dict[str, Any]) -> None:
    assert release_params(raw(words)) is None
