"""Questions over HTTP, put to simulated pods."""

import argparse
import asyncio
import json

import pytest

from loadtest.fit import pods_command
from loadtest.fit.__main__ import main
from loadtest.fit.stream import PodAnswerError, body_for, hand_over, stream
from loadtest.fit.sweeps import Asker, Plan
from loadtest.pod import SimulatedPod

MODEL = "sim"
PLAN = Plan(
    prefill=(40,),
    context=(64,),
    context_new=(8,),
    batch=(2,),
    batch_context=(16,),
    handover=(40,),
    decode_tokens=6,
    rounds=2,
)


@pytest.fixture
async def pods():
    async with SimulatedPod(role="prefill") as prefill, SimulatedPod(role="decode") as decode:
        yield prefill, decode


async def test_every_token_of_a_stream_is_timed_and_its_id_kept(pods):
    _, decode = pods
    body = body_for(MODEL, list(range(300, 340)), 5, "a") | {"return_token_ids": True}
    first = await stream(decode.url, body)
    assert len(first.token_s) == len(first.token_ids) == 5
    assert first.token_s == sorted(first.token_s)
    assert first.ttft_s > 0
    again = await stream(decode.url, body)
    assert (again.token_ids, again.cached_tokens) == (first.token_ids, 32)
    assert (await stream(decode.url, body | {"cache_salt": "b"})).cached_tokens == 0


async def test_a_hand_over_counts_from_the_first_leg_on(pods):
    prefill, decode = pods
    timed, leg_s = await hand_over(prefill.url, decode.url, body_for(MODEL, list(range(300, 340)), 3, "a"))
    assert 0 < leg_s < timed.ttft_s
    assert len(timed.token_s) == 3


async def test_what_is_no_answer_is_said_in_one_line(pods):
    _, decode = pods
    with pytest.raises(PodAnswerError, match="400"):
        await stream(decode.url, body_for(MODEL, [300], 0, "a"))
    with pytest.raises(PodAnswerError, match="is no prefill pod"):
        async with SimulatedPod() as plain:
            await hand_over(plain.url, decode.url, body_for(MODEL, [300], 1, "a"))
    with pytest.raises(PodAnswerError, match="cannot be reached"):
        await stream(plain.url, body_for(MODEL, [300], 1, "a"))


async def test_all_questions_of_a_plan_are_answered_round_by_round(pods):
    prefill, decode = pods
    said = []
    answers = await Asker(MODEL, decode.url, prefill.url, 3).ask_all(PLAN, lambda *counts: said.append(counts))
    kinds = [answer.question.kind for answer in answers]
    assert kinds == ["prefill", "context", "decode", "handover", "handover", "decode", "context", "prefill"]
    assert said[-1] == (8, 8)
    context = answers[1]
    assert context.context == 64, "the pod says what it had cached"
    assert answers[3].prefill_s > 0
    alone = await Asker(MODEL, decode.url, None, 3).ask_all(PLAN)
    assert "handover" not in {answer.question.kind for answer in alone}


def test_kv_sizes_come_from_the_models_config():
    llama = {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}
    assert pods_command.kv_bytes_per_token(llama | {"torch_dtype": "bfloat16"}) == 131072
    tiny = {
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "hidden_size": 256,
    }
    assert pods_command.kv_bytes_per_token(tiny | {"dtype": "float32"}) == 4 * 2 * 2 * 64 * 4


async def test_a_pod_says_what_it_is(pods, tmp_path):
    _, decode = pods
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps({"num_hidden_layers": 1, "num_attention_heads": 1, "hidden_size": 8, "dtype": "float32"})
    )
    options = argparse.Namespace(
        pod=decode.url, prefill=None, max_num_batched_tokens=512, max_num_seqs=4, model_config=config
    )
    found = await asyncio.to_thread(pods_command.look_at, options)
    assert (found.model, found.prefill) == (MODEL, None)
    assert (found.limits.block_size, found.limits.bytes_per_token) == (16, 64)
    assert found.limits.num_blocks > 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["paper", "none.csv"], "none.csv cannot be read"),
        (["pods", "--pod", "http://127.0.0.1:9"], "http://127.0.0.1:9: cannot be asked what it is"),
        (["report", "none.csv"], "none.csv cannot be read"),
    ],
)
def test_a_command_that_cannot_begin_says_why_in_one_line(arguments, said, capsys):
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
