"""What a simulated pod answers, byte shapes apart (these are compared with a real pod in tests/vllm)."""

import json

import pytest

USAGE = {"stream": True, "stream_options": {"include_usage": True}}
TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"enum": ["Oslo"]}}}},
}


async def test_the_same_prompt_gives_the_same_text_on_every_pod_and_path(client, plain, prefill, decode):
    texts = {
        (await client.chat(plain)).text,
        (await client.chat(plain, stream=True)).text,
        (await client.chat(plain, temperature=1.5, seed=3)).text,
        (await client.chat(decode)).text,
        (await client.hand_over(prefill, decode)).text,
        (await client.hand_over(prefill, decode, stream=True)).text,
    }
    assert len(texts) == 1


async def test_one_other_token_early_in_the_prompt_gives_another_text(client, plain):
    first = await client.chat(plain)
    other = await client.chat(plain, messages=[{"role": "user", "content": "Told me about the sea"}])
    assert first.text != other.text


async def test_the_request_id_header_names_the_answer(client, plain):
    named = {"X-Request-Id": "abc"}
    assert (await client.chat(plain, named)).json["id"] == "chatcmpl-abc"
    assert (await client.chat(plain, named, stream=True)).events[0]["id"] == "chatcmpl-abc"
    assert (await client.complete(plain)).json["id"].startswith("cmpl-")


async def test_a_stream_is_role_then_text_then_usage_then_done(client, plain):
    events = (await client.chat(plain, max_tokens=3, **USAGE)).events
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [event["choices"][0]["finish_reason"] for event in events[1:4]] == [None, None, "length"]
    assert events[4]["choices"] == []
    assert events[4]["usage"]["completion_tokens"] == 3
    assert events[5:] == ["[DONE]"]


async def test_continuous_usage_counts_up(client, plain):
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = (await client.complete(plain, max_tokens=3, stream=True, stream_options=options)).events
    assert [event["usage"]["completion_tokens"] for event in events[:-1]] == [1, 2, 3, 3]


async def test_cached_tokens_are_whole_blocks_and_never_the_whole_prompt(client, plain):
    counts = []
    for _ in range(2):
        usage = (await client.complete(plain, prompt=list(range(300, 332)))).json["usage"]
        counts.append(usage["prompt_tokens_details"]["cached_tokens"])
    assert counts == [0, 16], "32 tokens in blocks of 16"


async def test_turn_two_finds_the_kv_of_turn_one_with_its_answer(client, decode):
    first = await client.chat(decode, max_tokens=40, ignore_eos=True)
    history = [
        {"role": "user", "content": "Tell me about the sea, the sky and the long road home, please."},
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": "Go on."},
    ]
    second = (await client.chat(decode, messages=history)).json["usage"]
    computed = first.json["usage"]["total_tokens"] - 1
    assert second["prompt_tokens_details"]["cached_tokens"] == computed // 16 * 16


async def test_a_cache_salt_is_a_cold_start_with_the_same_text(client, plain):
    warm = await client.chat(plain)
    cold = await client.chat(plain, cache_salt="x")
    assert cold.json["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert cold.text == warm.text


async def test_the_prefix_cache_can_be_reset(client, plain):
    await client.chat(plain)
    assert plain.reset_prefix_cache()
    again = await client.chat(plain)
    assert again.json["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_a_stop_string_cuts_the_text_and_is_named(client, plain):
    whole = (await client.chat(plain, max_tokens=20, ignore_eos=True)).text
    stop = whole[12:15]
    for more in ({}, {"stream": True}):
        answer = await client.chat(plain, max_tokens=20, stop=stop, **more)
        assert answer.text == whole[: whole.index(stop)]
    reason = (await client.chat(plain, max_tokens=20, stop=[stop])).json["choices"][0]
    assert (reason["finish_reason"], reason["stop_reason"]) == ("stop", stop)
    kept = await client.chat(plain, max_tokens=20, stop=stop, include_stop_str_in_output=True)
    assert kept.text == whole[: whole.index(stop) + len(stop)]
    await plain.until(lambda: plain.summary["requests"] == 0)


async def test_stop_strings_wait_for_min_tokens(client, plain):
    whole = (await client.chat(plain, max_tokens=20, ignore_eos=True)).text
    stop = whole.split()[0]
    assert (await client.chat(plain, max_tokens=20, stop=stop, min_tokens=20)).text == whole


async def test_an_answer_without_a_limit_ends_by_itself(client, plain):
    body = {"model": "sim", "messages": [{"role": "user", "content": "hi"}]}
    answer = await client.post(plain, "/v1/chat/completions", body)
    assert answer.json["choices"][0]["finish_reason"] == "stop"
    assert 24 < answer.json["usage"]["completion_tokens"] <= 152


async def test_several_answers_differ_and_the_first_is_the_only_ones(client, plain):
    one = await client.chat(plain)
    two = (await client.chat(plain, n=2)).json["choices"]
    assert [choice["index"] for choice in two] == [0, 1]
    assert two[0]["message"]["content"] == one.text != two[1]["message"]["content"]


async def test_a_batch_of_prompts_is_answered_prompt_by_prompt(client, plain):
    alone = [(await client.complete(plain, prompt=prompt)).text for prompt in ("one", "two")]
    both = (await client.complete(plain, prompt=["one", "two"])).json
    assert [choice["text"] for choice in both["choices"]] == alone
    assert both["usage"]["completion_tokens"] == 16


async def test_token_ids_and_text_prompts_are_the_same(client, plain):
    ids = (await client.post(plain, "/tokenize", {"prompt": "The long road home"})).json["tokens"]
    assert (await client.complete(plain, prompt=ids)).text == (await client.complete(plain)).text


async def test_tokenize_messages_gives_the_prompt_of_a_chat(client, plain):
    messages = [{"role": "user", "content": "hi"}]
    ids = (await client.post(plain, "/tokenize", {"messages": messages})).json["tokens"]
    answer = (await client.chat(plain, messages=messages, return_token_ids=True)).json
    assert answer["prompt_token_ids"] == ids
    text = (await client.post(plain, "/detokenize", {"tokens": ids})).json["prompt"]
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


async def test_log_probabilities_are_there_and_fixed(client, plain):
    first = (await client.chat(plain, logprobs=True, top_logprobs=2)).json["choices"][0]["logprobs"]["content"]
    again = (await client.chat(plain, logprobs=True, top_logprobs=2)).json["choices"][0]["logprobs"]["content"]
    assert first == again
    assert all(len(entry["top_logprobs"]) == 2 and entry["logprob"] < 0 for entry in first)


@pytest.mark.parametrize(("choice", "finish"), [("required", "tool_calls"), (None, "stop")])
async def test_a_tool_that_must_be_called_is_called(client, plain, choice, finish):
    choice = choice or {"type": "function", "function": {"name": "weather"}}
    more = {"tools": [TOOL], "tool_choice": choice, "max_tokens": 50}
    (answer,) = (await client.chat(plain, **more)).json["choices"]
    assert answer["finish_reason"] == finish
    (call,) = answer["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Oslo"}
    events = (await client.chat(plain, stream=True, **more)).events
    calls = [c for e in events[1:-1] for c in e["choices"][0]["delta"].get("tool_calls", ())]
    assert "".join(call["function"].get("arguments", "") for call in calls) == '{"city": "Oslo"}'


async def test_a_tool_that_may_be_called_is_not(client, plain):
    (answer,) = (await client.chat(plain, tools=[TOOL])).json["choices"]
    assert "tool_calls" not in answer["message"]
    assert answer["message"]["content"]


async def test_a_json_schema_is_answered_with_valid_json(client, plain):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    shape = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    assert json.loads((await client.chat(plain, response_format=shape, max_tokens=99)).text) == {"n": 1}
    json_object = {"type": "json_object"}
    assert json.loads((await client.chat(plain, response_format=json_object, max_tokens=99)).text)


async def test_a_long_prompt_is_refused_with_the_limit_in_the_message(client, plain):
    answer = await client.complete(plain, prompt=[300] * 9000)
    assert answer.status == 400
    error = answer.json["error"]
    assert (error["type"], error["param"], error["code"]) == ("BadRequestError", "input_tokens", 400)
    assert "8192" in error["message"]
    assert "9000" in error["message"]


async def test_models_and_metrics_say_what_the_pod_is(client, decode):
    (model,) = (await client.get(decode, "/v1/models")).json["data"]
    assert (model["id"], model["max_model_len"]) == ("sim", 8192)
    await client.chat(decode, max_tokens=5)
    lines = (await client.get(decode, "/metrics")).raw.decode().splitlines()
    assert 'vllm:num_requests_running{engine="0",model_name="sim"} 0.0' in lines
    assert 'vllm:generation_tokens_total{engine="0",model_name="sim"} 5.0' in lines
    assert 'vllm:request_success_total{engine="0",finished_reason="length",model_name="sim"} 1.0' in lines
    assert (
        'vllm:cache_config_info{block_size="16",enable_prefix_caching="True",engine="0",num_gpu_blocks="8192"} 1.0'
        in lines
    )
    assert 'vllm:nixl_bytes_transferred_count{engine="0",model_name="sim"} 0.0' in lines


async def test_the_journal_keeps_what_was_asked(client, plain):
    await client.chat(plain, {"X-Session-ID": "conv-1"}, user="me")
    (record,) = plain.requests
    assert record.path == "/v1/chat/completions"
    assert record.headers["x-session-id"] == "conv-1"
    assert record.body["user"] == "me"
    assert (record.outcome, record.status, record.completion_tokens) == ("ok", 200, 8)
    (seen,) = (await client.get(plain, "/sim/requests")).json
    assert seen["body"] == record.body
