"""The prefill-leg contract, row by row."""

from __future__ import annotations

import pytest

from gateway.wire.contract import PREFILL_LEG, WHOLE, Api, Row, Rule, WholeRow, prefill_fields, render, whole_reason
from gateway.wire.fields import parse
from gateway.wire.legs import prefill_body

CHAT, COMPLETIONS, MESSAGES, RESPONSES = Api.CHAT, Api.COMPLETIONS, Api.MESSAGES, Api.RESPONSES
HANDOVER = (
    b'{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,'
    b'"remote_block_ids":null,"remote_host":null,"remote_port":null}'
)
GONE = None

SENT: dict[str, tuple[bytes, bytes | None]] = {
    "stream": (b"true", b"false"),
    "max_tokens": (b"500", b"1"),
    "max_completion_tokens": (b"500", b"1"),
    "max_output_tokens": (b"500", b"1"),
    "n": (b"1", b"1"),
    "ignore_eos": (b"false", b"true"),
    "store": (b"true", b"false"),
    "stream_options": (b'{"include_usage":true}', GONE),
    "min_tokens": (b"10", GONE),
    "stop": (b'["\\n"]', GONE),
    "stop_token_ids": (b"[1,2]", GONE),
    "stop_sequences": (b'["x"]', GONE),
    "response_format": (b'{"type":"json_object"}', GONE),
    "structured_outputs": (b'{"regex":"a+"}', GONE),
    "text": (b'{"format":{"type":"json_object"}}', GONE),
    "output_config": (b'{"effort":"low","format":{"type":"json_schema"}}', b'{"effort":"low"}'),
    "guided_json": (b"{}", GONE),
    "guided_regex": (b'"a+"', GONE),
    "guided_choice": (b'["a","b"]', GONE),
    "guided_grammar": (b'"root ::= x"', GONE),
    "logprobs": (b"true", GONE),
    "top_logprobs": (b"5", GONE),
    "include": (b'["message.output_text.logprobs"]', GONE),
    "enable_response_messages": (b"true", GONE),
    "logprob_token_ids": (b"[7]", GONE),
    "prompt_logprobs": (b"1", GONE),
    "best_of": (b"1", GONE),
    "thinking_token_budget": (b"100", GONE),
    "repetition_detection": (b"{}", GONE),
    "return_token_ids": (b"true", GONE),
    "return_prompt_text": (b"true", GONE),
    "tool_choice": (b'"required"', b'"auto"'),
    "kv_transfer_params": (b'{"do_remote_prefill":true}', HANDOVER),
}
"""For every row of the table: what a client may send, and what P is to get instead."""

OF_MESSAGES = {"tool_choice": (b'{"type":"tool","name":"look"}', b'{"type":"auto"}')}
"""The same, where Anthropic words it differently."""

ALWAYS = {"stream": b"false", "kv_transfer_params": HANDOVER}
ALWAYS_THERE = {
    CHAT: ALWAYS | {"max_tokens": b"1", "ignore_eos": b"true"},
    COMPLETIONS: ALWAYS | {"max_tokens": b"1", "ignore_eos": b"true"},
    MESSAGES: ALWAYS | {"max_tokens": b"1"},
    RESPONSES: ALWAYS | {"max_output_tokens": b"1", "ignore_eos": b"true", "store": b"false"},
}
"""What P gets of a client that sent nothing."""

ROWS = [pytest.param(row, api, id=f"{row.field}-{api}") for row in PREFILL_LEG for api in Api]


def on_p(api: Api, body: bytes, keep: tuple[str, ...] = ()) -> dict[str, bytes]:
    return {name: bytes(value) for name, value in prefill_fields(api, parse(body), keep).items()}


def test_every_row_has_an_example_here() -> None:
    assert {row.field for row in PREFILL_LEG} == set(SENT)
    assert len(PREFILL_LEG) == len(SENT)


@pytest.mark.parametrize(("row", "api"), ROWS)
def test_a_field_that_was_sent_becomes_what_its_row_says(row: Row, api: Api) -> None:
    sent, expected = (OF_MESSAGES if api is MESSAGES and row.field in OF_MESSAGES else SENT)[row.field]
    got = on_p(api, b'{"before":1,"' + row.field.encode() + b'":' + sent + b',"after":2}')
    if api not in row.apis:
        expected = sent
    assert got.pop(row.field, GONE) == expected
    assert list(got)[:2] == ["before", "after"]


@pytest.mark.parametrize(("row", "api"), ROWS)
def test_a_field_that_was_not_sent_is_made_up_only_if_its_row_says_set(row: Row, api: Api) -> None:
    assert on_p(api, b"{}").get(row.field) == ALWAYS_THERE[api].get(row.field)


@pytest.mark.parametrize("api", Api)
def test_an_empty_body_gets_exactly_what_is_always_there(api: Api) -> None:
    assert on_p(api, b"{}") == ALWAYS_THERE[api]


def test_a_chat_body_on_its_way_to_p_reads_as_worked_out_by_hand() -> None:
    body = (
        b'{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}],"max_completion_tokens":64,'
        b'"stream_options":{"include_usage":true},"temperature":0.70,"tool_choice":"required","tools":[{"b":1,"a":2}]}'
    )
    assert prefill_body(CHAT, parse(body)) == (
        b'{"model":"m","stream":false,"messages":[{"role":"user","content":"hi"}],"max_completion_tokens":1,'
        b'"temperature":0.70,"tool_choice":"auto","tools":[{"b":1,"a":2}],"max_tokens":1,"ignore_eos":true,'
        b'"kv_transfer_params":' + HANDOVER + b"}"
    )


UNLISTED = (
    b'"model":"base:lora-7","messages":[ {"role" : "user","content":"\\u0068i"} ],"prompt":"a  b",'
    b'"tools":[{"z":1.0,"a":2}],"documents":[],"mm_processor_kwargs":{},"chat_template":"{{ x }}",'
    b'"chat_template_kwargs":{"enable_thinking":false},'
    b'"add_generation_prompt":true,"continue_final_message":false,"add_special_tokens":true,"reasoning_effort":"low",'
    b'"truncate_prompt_tokens":100,"cache_salt":"s","temperature":1.0e0,"seed":1,"top_p":0.90,"user":"u","echo":false,'
    b'"priority":3,"vllm_xargs":{"x":1},"never_heard_of":{"deep":[1,{"b":1,"a":2}]}'
)


@pytest.mark.parametrize("api", Api)
def test_fields_that_are_not_listed_pass_byte_for_byte_and_in_order(api: Api) -> None:
    assert prefill_body(api, parse(b"{" + UNLISTED + b"}")).startswith(b"{" + UNLISTED + b",")


@pytest.mark.parametrize("api", Api)
def test_the_client_s_body_itself_is_not_touched(api: Api) -> None:
    fields = parse(b'{"max_tokens":5,"stop":"x","tool_choice":"required"}')
    prefill_fields(api, fields)
    assert {name: bytes(value) for name, value in fields.items()} == {
        "max_tokens": b"5",
        "stop": b'"x"',
        "tool_choice": b'"required"',
    }


def test_max_completion_tokens_is_never_made_up() -> None:
    got = on_p(CHAT, b'{"max_tokens":100}')
    assert "max_completion_tokens" not in got
    assert got["max_tokens"] == b"1"


def test_a_client_that_sent_null_for_max_completion_tokens_still_gets_one_token_from_p() -> None:
    got = on_p(CHAT, b'{"max_completion_tokens":null,"max_tokens":100}')
    assert (got["max_completion_tokens"], got["max_tokens"]) == (b"1", b"1")


def test_n_is_never_made_up_either() -> None:
    assert "n" not in on_p(CHAT, b"{}")


@pytest.mark.parametrize(
    ("choice", "on_prefill"),
    [
        (b'"required"', b'"auto"'),
        (b'{"type":"function","function":{"name":"f"}}', b'"auto"'),
        (b'{"type":"allowed_tools","allowed_tools":{}}', b'"auto"'),
        (b'"none"', b'"none"'),
        (b'"auto"', b'"auto"'),
        (b"null", b"null"),
        (b'"nonsense"', b'"nonsense"'),
    ],
)
def test_a_forced_tool_choice_becomes_auto_and_every_other_stays(choice: bytes, on_prefill: bytes) -> None:
    assert on_p(CHAT, b'{"tool_choice":' + choice + b"}")["tool_choice"] == on_prefill


def test_tool_choice_is_no_word_of_completions() -> None:
    assert on_p(COMPLETIONS, b'{"tool_choice":"required"}')["tool_choice"] == b'"required"'


def test_fields_that_the_operator_keeps_go_to_p_as_they_came() -> None:
    body = b'{"response_format":{"type":"json_object"},"tool_choice":"required","stop":["x"]}'
    got = on_p(CHAT, body, keep=("response_format", "tool_choice"))
    assert got["response_format"] == b'{"type":"json_object"}'
    assert got["tool_choice"] == b'"required"'
    assert "stop" not in got


def test_keeping_a_field_does_not_make_it_up() -> None:
    assert "response_format" not in on_p(CHAT, b"{}", keep=("response_format",))


def test_a_rule_that_writes_has_a_value_and_the_others_have_none() -> None:
    for row in PREFILL_LEG:
        if row.field != "kv_transfer_params":
            assert (row.value is not None) == (row.rule in (Rule.SET, Rule.SET_IF_SENT)), row.field


# Requests that run whole

WHOLE_EXAMPLES: dict[str, tuple[bytes, list[bytes]]] = {
    "n": (b'{"n":2}', [b'{"n":1}', b'{"n":null}', b'{"n":true}', b'{"n":"1"}', b'{"n":"many"}', b'{"n":1.5}']),
    "best_of": (b'{"best_of":3}', [b'{"best_of":1}', b'{"best_of":null}']),
    "use_beam_search": (b'{"use_beam_search":true}', [b'{"use_beam_search":false}', b'{"use_beam_search":null}']),
    "prompt_logprobs": (b'{"prompt_logprobs":0}', [b'{"prompt_logprobs":null}']),
    "echo with logprobs": (b'{"echo":true,"logprobs":0}', [b'{"echo":true}', b'{"echo":false,"logprobs":5}']),
    "echo": (b'{"echo":true}', [b'{"echo":false,"logprobs":true}', b'{"echo":"no"}', b'{"logprobs":true}']),
    "batched prompt": (b'{"prompt":["a","b"]}', [b'{"prompt":"[\\"a\\",\\"b\\"]"}', b'{"prompt":[1,2,3]}']),
    "prompt_embeds": (b'{"prompt_embeds":"AAAA"}', [b'{"prompt_embeds":null}']),
    "max_tokens 0": (b'{"max_tokens":0}', [b'{"max_tokens":1}', b'{"max_tokens":0.5}', b'{"max_tokens":null}']),
    "truncate_prompt_tokens -1": (
        b'{"truncate_prompt_tokens":-1}',
        [b'{"truncate_prompt_tokens":100}', b'{"truncate_prompt_tokens":null}'],
    ),
    "previous_response_id": (b'{"previous_response_id":"resp_1"}', [b'{"previous_response_id":null}']),
    "background": (b'{"background":true}', [b'{"background":false}', b'{"background":null}']),
    "truncation auto": (b'{"truncation":"auto"}', [b'{"truncation":"disabled"}', b'{"truncation":null}']),
    "tools run by the pod": (
        b'{"tools":[{"type":"function","name":"x"},{"type":"code_interpreter"}]}',
        [b'{"tools":[{"type":"function","name":"x"}]}', b'{"tools":[]}', b'{"tools":[{"type":"web_search"}]}'],
    ),
}


def test_every_kind_of_whole_request_has_an_example_here() -> None:
    assert [row.name for row in WHOLE] == list(WHOLE_EXAMPLES)


@pytest.mark.parametrize(
    ("row", "api"), [pytest.param(row, api, id=f"{row.name}-{api}") for row in WHOLE for api in Api if api in row.apis]
)
def test_a_request_of_that_kind_runs_whole(row: WholeRow, api: Api) -> None:
    body, _ = WHOLE_EXAMPLES[row.name]
    assert whole_reason(api, parse(body)) == row.name


@pytest.mark.parametrize("body", [b'{"prompt":["a","b"]}', b'{"prompt_embeds":"AAAA"}', b'{"max_tokens":0}'])
def test_words_of_completions_mean_nothing_in_chat(body: bytes) -> None:
    assert whole_reason(CHAT, parse(body)) is None


@pytest.mark.parametrize(
    ("name", "body"), [(name, body) for name, (_, bodies) in WHOLE_EXAMPLES.items() for body in bodies]
)
def test_a_request_that_only_looks_like_it_is_handed_over(name: str, body: bytes) -> None:
    for api in next(row for row in WHOLE if row.name == name).apis:
        assert whole_reason(api, parse(body)) is None


@pytest.mark.parametrize(
    "prompt", [b'["one"]', b"[[1,2],[3]]", b'[ "a" , "b" ]', b"[[1]]"], ids=["one", "ids", "spaces", "one of ids"]
)
def test_any_list_of_prompts_is_a_batch(prompt: bytes) -> None:
    assert whole_reason(COMPLETIONS, parse(b'{"prompt": ' + prompt + b"}")) == "batched prompt"


def test_an_everyday_request_is_handed_over() -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true,"logprobs":true,"top_logprobs":2}'
    assert whole_reason(CHAT, parse(body)) is None
    assert whole_reason(COMPLETIONS, parse(b'{"model":"m","prompt":"hi","logprobs":2,"stop":["x"]}')) is None


@pytest.mark.parametrize("number", [b'"2"', b"2.0", b'"2.0"'])
def test_numbers_count_however_they_are_written(number: bytes) -> None:
    """A real vLLM 0.32 was seen to give two choices for each."""
    assert whole_reason(CHAT, parse(b'{"n":' + number + b"}")) == "n"


def test_an_echo_without_logprobs_is_harmless_in_completions_and_not_in_chat() -> None:
    """vLLM 0.32 sets prompt_logprobs = top_logprobs, by default 0, for any chat echo (`chat_completion/protocol.py`,
    to_sampling_params); a real pod was seen to answer it with prompt_logprobs."""
    assert whole_reason(CHAT, parse(b'{"echo":true}')) == "echo"
    assert whole_reason(COMPLETIONS, parse(b'{"echo":true}')) is None


# The page; that docs/prefill-leg.md is this page is tested in tests/ops/test_reference.py


def test_the_page_has_a_line_for_every_row() -> None:
    lines = render().splitlines()
    expected = "| `max_tokens` | chat, completions, messages | set: `1` | one step is enough to fill the KV cache |"
    assert expected in lines
    for row in PREFILL_LEG:
        assert sum(line.startswith(f"| `{row.field}` |") for line in lines) == 1
    for whole in WHOLE:
        assert sum(line.startswith(f"| {whole.name} |") for line in lines) == 1
