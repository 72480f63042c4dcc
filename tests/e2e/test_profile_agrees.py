"""The virtual profile and `ppd-gateway profile` measure the same: one on a model, one over HTTP in real time."""

from __future__ import annotations

import math
from contextlib import AsyncExitStack
from dataclasses import fields, replace
from typing import Any

import pytest

from gateway.ops.config import load
from gateway.ops.profile.bench import LiveBench
from gateway.ops.profile.measure import Limits, Measured
from gateway.ops.profile.plan import Plan, Task, grid
from gateway.ops.profile.pods import look_at
from loadtest.engine import profile as profiles
from loadtest.engine.profile import Profile
from loadtest.pod.simulated import SimulatedPod
from loadtest.virtual_profile.bench import VirtualBench
from lut.assignment import Assignment

H100 = replace(profiles.load("h100-llama3.1-8b"), max_model_len=140_000)

SLOWER = 5
"""The live pods are so much slower than an H100, so that the milliseconds of a busy machine do not count for much."""
LIVE_EXTRA_S = 0.030
"""What a leg may take more over HTTP than on the model, in which there is none."""
STEP_SHARE = 0.15
"""A turn waits for the step that is under way, here up to a quarter of its time; 4 % is one sigma of the mean of 8."""
LIVE_SHARE = 0.10
TPOT_SHARE = 0.10
ATTEMPTS = 4


def slowed(profile: Profile, factor: float) -> Profile:
    """The same GPU, every duration times `factor`."""

    def times(costs: Any) -> Any:
        return replace(costs, **{field.name: factor * getattr(costs, field.name) for field in fields(costs)})

    transfer = profile.transfer
    slow_transfer = replace(times(transfer), bandwidth_bytes_per_s=transfer.bandwidth_bytes_per_s / factor)
    return replace(profile, step=times(profile.step), request=times(profile.request), transfer=slow_transfer)


async def test_live_pods_measure_the_same_over_http() -> None:
    """The same plan, live and virtual. Over HTTP a leg takes some milliseconds more; what is decided is the same."""
    slow = slowed(H100, SLOWER)
    async with AsyncExitStack() as stack:
        roles = ("prefill", "decode", "decode")
        pods = [await stack.enter_async_context(SimulatedPod(role=role, profile=slow)) for role in roles]
        config = load(None, {}, {"prefill": [pods[0].url], "decode": [pod.url for pod in pods[1:]]})
        cluster = await look_at(config)
        assert (cluster.assignment, cluster.block_size, cluster.simulated) == ("1P_2D", 16, True)
        limits = Limits(512)
        bench = await stack.enter_async_context(LiveBench(config, cluster, limits, seed=1))
        shapes = grid((512, 2048), (64,), (16,), reply_tokens=16)
        tasks = list(Plan(shapes=shapes, rates=(2.0,), samples=8, window_s=0.0, repeats=1).tasks())
        live = {task: await _undisturbed(bench, task) for task in tasks}
    bench_of_model = VirtualBench(slow, Assignment(1, 2), limits)
    model = {task: await bench_of_model.measure(task) for task in tasks}
    for task in tasks:
        _agree(task, live[task], model[task])
    for local in (task for task in tasks if task.arm == "local"):
        pd = replace(local, arm="pd")
        assert _s(live[pd], live[local]) == pytest.approx(_s(model[pd], model[local]), abs=0.2)


async def _undisturbed(bench: LiveBench, task: Task) -> Measured:
    """A measurement during which this machine was never late; the pods run on it too."""
    measured = await bench.measure(task)
    for _ in range(ATTEMPTS - 1):
        if "late" not in measured.remark:
            return measured
        measured = await bench.measure(task)
    if "late" in measured.remark:
        pytest.skip(f"this machine is too busy to measure milliseconds ({measured.remark})")
    return measured


def _agree(task: Task, live: Measured, model: Measured) -> None:
    assert (live.samples, live.success, live.remark) == (model.samples, model.success, "") == (8, 1.0, ""), task
    assert live.ttft_mean_s is not None
    assert model.ttft_mean_s is not None
    legs = 2 if task.arm == "pd" else 1
    assert live.ttft_mean_s > (1 - STEP_SHARE) * model.ttft_mean_s, task
    assert live.ttft_mean_s < (1 + LIVE_SHARE) * model.ttft_mean_s + legs * LIVE_EXTRA_S, task
    assert live.tpot_mean_s == pytest.approx(model.tpot_mean_s or math.nan, rel=TPOT_SHARE), task


def _s(pd: Measured, local: Measured) -> float:
    """S at weights 1:1."""
    assert pd.ttft_mean_s
    assert pd.tpot_mean_s
    assert local.ttft_mean_s
    assert local.tpot_mean_s
    return (pd.ttft_mean_s - local.ttft_mean_s) / pd.ttft_mean_s - (local.tpot_mean_s - pd.tpot_mean_s) / pd.tpot_mean_s
