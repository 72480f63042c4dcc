"""Profiling on the engine model: as live pods would measure it, and the same bytes every time."""

from __future__ import annotations

import asyncio
import math
from contextlib import AsyncExitStack
from dataclasses import fields, replace
from pathlib import Path
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
from loadtest.virtual_profile.__main__ import measure
from loadtest.virtual_profile.bench import VirtualBench
from lut.assignment import Assignment

H100 = replace(profiles.load("h100-llama3.1-8b"), max_model_len=140_000)

SLOWER = 5
"""The live pods are so much slower than an H100, so that the milliseconds of a busy machine do not count for much."""
LIVE_EXTRA_S = 0.030
"""What a leg may take more over HTTP than on the model, in which there is none."""
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


def plan(**changes: object) -> Plan:
    values = {
        "shapes": grid((512, 2048), (64,), (32,)),
        "rates": (4.0,),
        "samples": 12,
        "window_s": 0.0,
        "repeats": 1,
        **changes,
    }
    return Plan(**values)  # type: ignore[arg-type]


def virtual(task: Task, assignment: Assignment, limits: Limits | None = None) -> Measured:
    bench = VirtualBench(H100, assignment, limits or Limits(256 * assignment.decode))
    return asyncio.run(bench.measure(task))


def one(context: int, new: int, output: int, rate: float, arm: str = "local", samples: int = 20) -> Task:
    wanted = plan(shapes=grid((context,), (new,), (output,)), rates=(rate,), samples=samples)
    return next(task for task in wanted.tasks() if task.arm == arm)


def test_an_idle_local_turn_takes_what_the_profile_says() -> None:
    """Host 19.6 ms + 0.0111 ms x 544 tokens, one step of 7.8 ms + 0.0249 ms x 32 new + 0.0064 ms x 511 attended."""
    measured = virtual(one(512, 32, 8, rate=0.5, samples=10), Assignment(1, 1))
    assert measured.ttft_mean_s == pytest.approx(0.0376, rel=0.03)
    assert measured.tpot_mean_s == pytest.approx(0.00792, rel=0.01)


def test_through_p_the_first_token_takes_70_ms_more_and_the_others_no_more() -> None:
    pd, local = (virtual(one(128, 32, 32, rate=1.0, arm=arm), Assignment(1, 3)) for arm in ("pd", "local"))
    assert pd.ttft_mean_s is not None
    assert local.ttft_mean_s is not None
    assert pd.ttft_mean_s - local.ttft_mean_s == pytest.approx(0.070, abs=0.008)
    assert pd.tpot_mean_s == pytest.approx(local.tpot_mean_s, rel=0.02)


def test_long_pastes_into_a_busy_decode_pod_slow_its_streams_down() -> None:
    pd, local = (virtual(one(2048, 4096, 128, rate=8.0, arm=arm), Assignment(2, 2)) for arm in ("pd", "local"))
    assert pd.tpot_mean_s is not None
    assert local.tpot_mean_s is not None
    assert local.tpot_mean_s > 1.5 * pd.tpot_mean_s


def test_more_than_a_pod_can_do_is_overloaded() -> None:
    measured = virtual(one(2048, 4096, 512, rate=32.0, samples=64), Assignment(1, 1))
    assert measured.overloaded is not None
    assert measured.success < 0.95


def test_contexts_of_128k_are_used_again_where_the_caches_hold_few() -> None:
    measured = virtual(one(131_072, 128, 32, rate=0.5, samples=6), Assignment(1, 1))
    assert (measured.samples, measured.cold, measured.success) == (6, 0, 1.0)


def test_two_runs_write_the_same_bytes_however_often_they_were_interrupted(tmp_path: Path) -> None:
    wanted = plan(repeats=2, rates=(4.0, 64.0), shapes=grid((512,), (64,), (32,)))
    once, twice = tmp_path / "once", tmp_path / "twice"
    measure(Assignment(1, 1), once, wanted)
    twice.write_bytes(b"".join(once.read_bytes().splitlines(keepends=True)[:3]))
    measure(Assignment(1, 1), twice, wanted)
    assert once.read_bytes() == twice.read_bytes()


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
        tasks = list(plan(shapes=shapes, rates=(2.0,), samples=8).tasks())
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
    assert live.ttft_mean_s > 0.97 * model.ttft_mean_s, task
    assert live.ttft_mean_s < (1 + LIVE_SHARE) * model.ttft_mean_s + legs * LIVE_EXTRA_S, task
    assert live.tpot_mean_s == pytest.approx(model.tpot_mean_s or math.nan, rel=TPOT_SHARE), task


def _s(pd: Measured, local: Measured) -> float:
    """S at weights 1:1."""
    assert pd.ttft_mean_s
    assert pd.tpot_mean_s
    assert local.ttft_mean_s
    assert local.tpot_mean_s
    return (pd.ttft_mean_s - local.ttft_mean_s) / pd.ttft_mean_s - (local.tpot_mean_s - pd.tpot_mean_s) / pd.tpot_mean_s
