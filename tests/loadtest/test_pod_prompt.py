"""Where a pod's prompt comes from and what it shows of it: render, ids sent along, a decode pod as producer."""

import pytest

from loadtest.engine import profile
from loadtest.engine.core import Engine
from loadtest.engine.kv_connector import KvConfig
from loadtest.engine.language import NumberLanguage
from loadtest.engine.request import EngineRequest, KvIntent, KvSource
from loadtest.pod import SimulatedPod
from tests.loadtest.conftest import HELLO, LEG_ONE

IDS = list(range(1000, 1040))


@pytest.fixture
async def scale_out():
    async with SimulatedPod(scale_out=True) as pod:
        yield pod


# ---- render


@pytest.mark.parametrize("api", ["chat/completions", "completions", "messages", "responses"])
async def test_a_stock_pod_does_not_render(client, plain, api):
    answer = await client.post(plain, f"/v1/{api}/render", {"messages": HELLO, "prompt": "x"})
    assert answer.status == 403
    assert answer.json["error"] == {
        "message": "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.",
        "type": "PermissionDeniedError",
        "param": None,
        "code": 403,
    }


async def test_render_gives_the_ids_that_the_same_request_would_run_on(client, scale_out):
    body = {"model": "sim", "messages": HELLO, "max_tokens": 3, "return_token_ids": True}
    ran = (await client.post(scale_out, "/v1/chat/completions", body)).json
    rendered = (await client.post(scale_out, "/v1/chat/completions/render", body, {"X-Request-Id": "7"})).json
    assert rendered["token_ids"] == ran["prompt_token_ids"]
    assert (rendered["request_id"], rendered["model"]) == ("chatcmpl-7", "sim")
    assert len(scale_out.requests) == 1, "nothing was run"


async def test_agents_requests_render_to_the_ids_of_the_chat_that_they_become(client, scale_out):
    chat = {"messages": [{"role": "system", "content": "Be brief."}, *HELLO]}
    expected = (await client.post(scale_out, "/v1/chat/completions/render", chat)).json["token_ids"]
    asked = {
        "messages": {"model": "sim", "system": "Be brief.", "messages": HELLO, "max_tokens": 4},
        "responses": {"instructions": "Be brief.", "input": HELLO},
    }
    for api, body in asked.items():
        rendered = (await client.post(scale_out, f"/v1/{api}/render", body, {"X-Request-Id": "7"})).json
        assert rendered["token_ids"] == expected
        assert rendered["request_id"].startswith("chatcmpl-7" if api == "messages" else "resp_")
        counts = (await client.post(scale_out, f"/v1/{api}", body)).json["usage"]
        parts = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        assert sum(counts.get(part, 0) for part in parts) == len(expected)


async def test_a_rendered_chat_has_every_field_of_vllms(client, scale_out):
    """Values as `vllm launch render` 0.32 gave them for the same fields."""
    body = {
        "model": "sim",
        "messages": HELLO,
        "max_tokens": 4,
        "min_tokens": 2,
        "temperature": 0,
        "top_p": 0.5,
        "seed": 3,
        "stop": ["x"],
        "stop_token_ids": [5],
        "logprobs": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "vllm_xargs": {"a": 1},
        "cache_salt": "ss",
        "kv_transfer_params": {"do_remote_decode": True},
    }
    answer = (await client.post(scale_out, "/v1/chat/completions/render", body, {"X-Request-Id": "abc"})).json
    assert list(answer)[:2] == ["request_id", "token_ids"]
    del answer["token_ids"]
    assert list(answer.pop("sampling_params").items()) == [
        ("presence_penalty", 0.0),
        ("frequency_penalty", 0.0),
        ("repetition_penalty", 1.0),
        ("temperature", 0.0),
        ("seed", 3),
        ("stop", ["x"]),
        ("stop_token_ids", [5]),
        ("max_tokens", 4),
        ("min_tokens", 2),
        ("logprobs", 0),
        ("output_kind", 1),
        ("skip_clone", True),
        ("extra_args", {"a": 1, "kv_transfer_params": {"do_remote_decode": True}}),
        ("bad_words", []),
        ("skip_reading_prefix_cache", False),
    ]
    assert list(answer.items()) == [
        ("request_id", "chatcmpl-abc"),
        ("token_offsets", None),
        ("features", None),
        ("content_parts", None),
        ("model", "sim"),
        ("reasoning_ended", None),
        ("reasoning_parser_kwargs", None),
        ("return_token_ids", None),
        ("output_mode", "tokens"),
        ("stream", True),
        ("stream_options", {"include_usage": True, "continuous_usage_stats": False}),
        ("cache_salt", "ss"),
        ("priority", 0),
        ("kv_transfer_params", None),
        ("ec_transfer_params", None),
    ]


async def test_completions_render_to_a_list_with_one_entry_per_prompt(client, scale_out):
    async def rendered(prompt):
        body = {"prompt": prompt}
        answer = await client.post(scale_out, "/v1/completions/render", body, {"X-Request-Id": "7"})
        return [(entry["request_id"], entry["token_ids"]) for entry in answer.json]

    assert await rendered([300, 301]) == [("cmpl-7", [300, 301])]
    assert await rendered([[300, 301], [302]]) == [("cmpl-7-0", [300, 301]), ("cmpl-7-1", [302])]


async def test_render_refuses_what_the_request_itself_would_be_refused_for(client, scale_out):
    body = {"model": "other", "messages": HELLO}
    asked = await client.post(scale_out, "/v1/chat/completions", body)
    rendered = await client.post(scale_out, "/v1/chat/completions/render", body)
    assert (rendered.status, rendered.json) == (asked.status, asked.json)
    assert asked.status == 404


# ---- ids sent along


async def prompted(client, pod, ids, **more):
    return await client.chat(pod, return_token_ids=True, kv_transfer_params={"prompt_token_ids": ids}, **more)


async def test_ids_sent_along_replace_the_messages(client, plain):
    for more in ({}, {"messages": []}):
        answer = (await prompted(client, plain, IDS, return_prompt_text=True, **more)).json
        assert (answer["prompt_token_ids"], answer["prompt_text"]) == (IDS, None)
        assert answer["usage"]["prompt_tokens"] == 40


@pytest.mark.parametrize("ids", [[], [-1], [True], "x", [1.5]])
async def test_ids_that_are_none_are_refused(client, plain, ids):
    answer = await prompted(client, plain, ids)
    assert answer.status == 400
    assert answer.json["error"]["message"] == (
        "`kv_transfer_params['prompt_token_ids']` must be a non-empty list of non-negative integers. "
        "(parameter=kv_transfer_params.prompt_token_ids)"
    )


async def test_ids_out_of_vocabulary_and_too_many_are_refused(client, plain):
    unknown = await prompted(client, plain, [2_000_000_000])
    assert unknown.json["error"]["message"] == (
        "Token id 2000000000 is out of vocabulary (parameter=kv_transfer_params.prompt_token_ids)"
    )
    long = await prompted(client, plain, [300] * 8193)
    assert long.json["error"]["message"] == "Input length (8193) exceeds model's maximum context length (8192)."
    assert long.json["error"]["param"] is None


@pytest.mark.parametrize("ids", [IDS, "x", None])
async def test_with_echo_the_ids_are_not_even_looked_at(client, plain, ids):
    plainly = (await client.chat(plain, return_token_ids=True)).json["prompt_token_ids"]
    assert (await prompted(client, plain, ids, echo=True)).json["prompt_token_ids"] == plainly


@pytest.mark.parametrize("ids", [IDS, "x"])
async def test_completions_do_not_look_at_the_ids(client, plain, ids):
    answer = await client.complete(
        plain, prompt=[300, 301], return_token_ids=True, kv_transfer_params={"prompt_token_ids": ids}
    )
    assert answer.json["choices"][0]["prompt_token_ids"] == [300, 301]


# ---- roles


async def test_a_decode_pod_hands_over_like_a_prefill_pod(client, decode):
    async with SimulatedPod(role="decode") as other:
        leg = await client.chat(decode, max_tokens=1, kv_transfer_params=LEG_ONE)
        params = leg.json["kv_transfer_params"]
        assert (params["do_remote_prefill"], params["do_remote_decode"]) == (True, False)
        assert params["remote_num_tokens"] == leg.json["usage"]["prompt_tokens"]
        assert params["remote_blocks_expiry_time"] is None
        answer = await client.chat(other, kv_transfer_params=params)
        assert answer.text == (await client.chat(decode)).text
        assert [transfer.ok for transfer in other.transfers] == [True]
        assert decode.summary["pinned_blocks"] == 0


async def test_a_prefill_pod_alone_may_read_back(client, decode):
    """D hands over as a producer; P, the only one with `bidirectional_kv_xfer`, reads that as history."""
    async with SimulatedPod(role="prefill", bidirectional=True, recompute_threshold_tokens=16) as p:
        asked = {"kv_transfer_params": LEG_ONE, "max_tokens": 1}
        params = (await prompted(client, decode, IDS)).json["kv_transfer_params"]
        assert params is None, "a decode pod that is not bidirectional offers nothing by itself"
        leg = await client.complete(decode, prompt=IDS, **asked)
        offer = leg.json["kv_transfer_params"] | {"do_remote_prefill": False, "do_remote_decode": True}
        answer = await client.complete(p, prompt=[*IDS, 1, 2, 3], max_tokens=1, kv_transfer_params=offer)
        assert [transfer.num_blocks for transfer in p.transfers] == [3]
        assert answer.json["kv_transfer_params"]["do_remote_prefill"] is True


def test_a_prefill_pod_that_may_not_read_back_waits_for_ever_when_told_to():
    """vLLM counts the tokens that will come and orders no read."""
    engine = Engine(profile.load("instant"), NumberLanguage(), kv=KvConfig("p", bidirectional=False))
    offer = KvSource("d", "r", "host", 1, tuple(range(8)), num_tokens=120)
    engine.submit(EngineRequest("a", IDS * 3, 1, kv=KvIntent(do_remote_decode=True, source=offer)), 0.0)
    for _ in range(2):
        result = engine.step(0.0)
        assert (result.duration_s, result.pulls, result.outputs, result.wake_s) == (None, (), (), None)
    assert engine.num_waiting == 1
    assert engine.abort("a", 0.0)
    assert engine.pool.usage == 0


# ---- usage


async def test_without_the_flag_usage_has_no_prompt_token_details(client):
    async with SimulatedPod(prompt_tokens_details=False) as pod:
        assert (await client.chat(pod)).json["usage"]["prompt_tokens_details"] is None
        assert (await client.complete(pod)).json["usage"]["prompt_tokens_details"] is None
        for ask in (client.chat, client.complete):
            stream = await ask(pod, stream=True, stream_options={"include_usage": True})
            assert set(stream.events[-2]["usage"]) == {"prompt_tokens", "total_tokens", "completion_tokens"}
