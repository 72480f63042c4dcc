"""Profiling on the engine model: as live pods would measure it, and the same bytes every time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.ops.profile.measure import Limits, Measured
from gateway.ops.profile.plan import Plan, Task, grid
from loadtest.engine import profile as profiles
from loadtest.virtual_profile.__main__ import measure
from loadtest.virtual_profile.bench import VirtualBench
from lut.assignment import Assignment

H100 = replace(profiles.load("h100-llama3.1-8b"), max_model_len=140_000)


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
    """Host, then one step: of the 511 tokens with KV 31 whole blocks of 16 hit, so 48 of 544 are computed."""
    measured = virtual(one(512, 32, 8, rate=0.5, samples=10), Assignment(1, 1))
    step = H100.step.duration_s(
        prefill_tokens=48,
        attended_tokens=496,
        attended_pairs=48 * 496 + 48 * 49 // 2,
        decode_sequences=0,
        decode_context_tokens=0,
    )
    decoding = H100.step.duration_s(
        prefill_tokens=0, attended_tokens=0, decode_sequences=1, decode_context_tokens=544 + 3
    )
    assert measured.ttft_mean_s == pytest.approx(H100.request.duration_s(544) + step, rel=0.01)
    assert measured.tpot_mean_s == pytest.approx(decoding, rel=0.01)


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
