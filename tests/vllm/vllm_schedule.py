"""Runs vLLM's own scheduler without a model: `python vllm_schedule.py MODEL_DIR < traffics.json > schedules.json`.

Rule of this room: executed by the Python of the vLLM environment, which knows nothing of this project. What is said
for each step: which request computes how many tokens, in order, and blocks free and names cached when it is over.
"""

import json
import sys
from typing import Any

import torch
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

Json = dict[str, Any]


def make(model: str, pod: Json) -> Scheduler:
    """A scheduler as `vllm serve` makes it, but for asynchronous scheduling. One block of vLLM's is never used."""
    config = VllmConfig(
        scheduler_config=SchedulerConfig(
            max_num_seqs=pod["seqs"],
            max_num_batched_tokens=pod["budget"],
            max_model_len=pod["max_model_len"],
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
            async_scheduling=False,
        ),
        model_config=ModelConfig(model=model, max_model_len=pod["max_model_len"]),
        cache_config=CacheConfig(block_size=pod["block_size"], enable_prefix_caching=True),
        device_config=DeviceConfig("cpu"),
    )
    config.cache_config.num_gpu_blocks = pod["blocks"] + 1
    spec = FullAttentionSpec(block_size=pod["block_size"], num_kv_heads=1, head_size=1, dtype=torch.float32)
    cache = KVCacheConfig(
        num_blocks=pod["blocks"] + 1, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
    )
    return Scheduler(
        vllm_config=config,
        kv_cache_config=cache,
        structured_output_manager=StructuredOutputManager(config),
        block_size=pod["block_size"],
        log_stats=True,
    )


def play(model: str, traffic: Json) -> list[Json]:
    """One traffic through one scheduler."""
    pod = traffic["pod"]
    scheduler = make(model, pod)
    hasher = get_request_block_hasher(pod["block_size"], sha256)
    events, steps = sorted(traffic["events"], key=lambda event: event["step"]), []
    answers = {event["id"]: event.get("answer") for event in events if "prompt" in event}
    busy = 0
    while events or scheduler.has_unfinished_requests():
        if not scheduler.has_unfinished_requests():
            busy = max(busy, events[0]["step"])
        while events and events[0]["step"] <= busy:
            event = events.pop(0)
            if "prompt" not in event:
                scheduler.finish_requests(event["id"], RequestStatus.FINISHED_ABORTED)
                continue
            params = SamplingParams(max_tokens=event["max_tokens"], ignore_eos=True)
            request = Request(event["id"], event["prompt"], params, None, block_hasher=hasher)
            scheduler.add_request(request)
        planned = scheduler.schedule()
        counts = planned.num_scheduled_tokens
        sampled = []
        for name in counts:
            request = scheduler.requests[name]
            done = request.num_computed_tokens >= request.num_tokens
            sampled.append([answers[name] + request.num_output_tokens] if done else [])
        output = ModelRunnerOutput(list(counts), {name: i for i, name in enumerate(counts)}, sampled)
        scheduler.update_from_output(planned, output)
        busy += bool(counts)
        cache = scheduler.kv_cache_manager.block_pool
        steps.append(
            {
                "counts": list(counts.items()),
                "free": cache.get_num_free_blocks(),
                "cached": len(cache.cached_block_hash_to_block),
            }
        )
    return steps


if __name__ == "__main__":
    init_none_hash(sha256)
    json.dump([play(sys.argv[1], traffic) for traffic in json.load(sys.stdin)], sys.stdout)
