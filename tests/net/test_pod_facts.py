"""What the gateway reads off a pod's `/metrics`, and when it takes a pod for another process."""

from __future__ import annotations

import pytest

from gateway.core.pods import PodFacts
from gateway.net.pod_facts import read_metrics, why_replaced

REAL = b"""\
# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.79597886488e+09
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="tiny"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 7.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.125
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 1278.0
vllm:prompt_tokens_created{engine="0",model_name="tiny"} 1.795978894853533e+09
vllm:generation_tokens_total{engine="0",model_name="tiny"} 40.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="tiny"} 1.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"} 6.0
vllm:cache_config_info{_block_size_resolved="True",block_size="32",cache_dtype="auto",\
effective_attention_block_size="64",enable_mamba_shared_prefix_checkpoint="False",enable_prefix_caching="True",\
engine="0",hash_block_size="None",mamba_block_size="128",num_cpu_blocks="None",num_gpu_blocks="400",\
num_gpu_blocks_override="401",sliding_window="None"} 1.0
"""
"""Lines of a real vLLM 0.32 pod, with some values changed so that no two are alike."""

TWO_ENGINES = b"""\
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.25
vllm:cache_config_info{block_size="16",enable_prefix_caching="False",engine="0",num_gpu_blocks="1000"} 1.0
vllm:cache_config_info{block_size="16",enable_prefix_caching="False",engine="1",num_gpu_blocks="900"} 1.0
"""

FIRST = PodFacts(instance="1795978864.88", work=(100.0, 10.0, 5.0), seen_at=1.0)
QUIET = PodFacts(work=(100.0, 10.0, 5.0), seen_at=1.0)
"""A pod with several API servers tells no start time."""


def test_the_facts_of_a_real_page() -> None:
    assert read_metrics(REAL, 17.0) == PodFacts(
        block_size=32,
        num_blocks=400,
        prefix_caching=True,
        running=3,
        waiting=2,
        kv_usage=0.125,
        instance="1.79597886488e+09",
        work=(1278.0, 40.0, 7.0),
        seen_at=17.0,
    )


def test_engines_of_one_pod_are_added_up_and_the_fullest_counts() -> None:
    facts = read_metrics(TWO_ENGINES, 1.0)
    assert (facts.running, facts.kv_usage, facts.num_blocks, facts.block_size) == (7, 0.5, 1900, 16)
    assert (facts.prefix_caching, facts.instance, facts.work) == (False, "", ())


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"<html>not metrics</html>",
        b"# TYPE vllm:num_requests_running gauge\n# HELP vllm:num_requests_running 5.0\n",
        b'vllm:cache_config_info{block_size="None",num_gpu_blocks="None"} 1.0',
        b'vllm:num_requests_running{engine="0"} NaN\nvllm:kv_cache_usage_perc{engine="0"} x',
        b"vllm:num_requests_waiting{",
        b'other_vllm:num_requests_running{engine="0"} 5.0\nvllm:num_requests_running_ever{engine="0"} 5.0\n',
    ],
)
def test_what_a_page_does_not_tell_stays_unknown(page: bytes) -> None:
    assert read_metrics(page, 1.0) == PodFacts(seen_at=1.0)


def test_a_page_need_not_end_with_a_line_feed() -> None:
    assert read_metrics(b"process_start_time_seconds 12.5", 1.0).instance == "12.5"


@pytest.mark.parametrize("was_gone", [False, True])
def test_the_same_start_time_is_the_same_process_whatever_happened_to_its_port(was_gone: bool) -> None:
    later = PodFacts(instance=FIRST.instance, work=(0.0, 0.0, 0.0), seen_at=2.0)
    assert why_replaced(FIRST, later, was_gone=was_gone) is None


def test_another_start_time_is_another_process_and_the_reason_gives_both_as_a_clock_shows_them() -> None:
    later = PodFacts(instance="1.79597900112e+09", work=(900.0, 90.0, 9.0), seen_at=2.0)
    assert why_replaced(FIRST, later, was_gone=False) == (
        "its process started at 2026-11-29 19:03:21.120+00:00, the one before at 2026-11-29 19:01:04.880+00:00"
    )


def test_counters_that_go_backwards_are_another_process_where_no_start_time_is_told() -> None:
    assert why_replaced(QUIET, PodFacts(work=(100.0, 9.0, 5.0), seen_at=2.0), was_gone=False)
    assert why_replaced(QUIET, PodFacts(work=(100.0, 10.0, 5.0), seen_at=2.0), was_gone=False) is None
    assert why_replaced(QUIET, PodFacts(work=(101.0, 11.0, 6.0), seen_at=2.0), was_gone=False) is None


@pytest.mark.parametrize("now", [QUIET, PodFacts()], ids=["counters only", "unreadable"])
def test_a_closed_port_is_another_process_unless_the_start_time_says_otherwise(now: PodFacts) -> None:
    assert why_replaced(QUIET, now, was_gone=True)
    assert why_replaced(FIRST, now, was_gone=True)
    assert why_replaced(FIRST, now, was_gone=False) is None


def test_a_pod_of_which_nothing_was_known_is_not_replaced() -> None:
    assert why_replaced(PodFacts(), FIRST, was_gone=False) is None
