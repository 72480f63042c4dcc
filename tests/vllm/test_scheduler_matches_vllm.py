"""The engine model schedules as vLLM's own scheduler does, step by step, on the same random traffic.

No model runs: `vllm_schedule.py` gives vLLM's `Scheduler` requests and makes up the tokens. Compared are the requests
of each step and their order, how many tokens each computes, and the blocks free and names cached afterwards.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadtest.engine import profile
from loadtest.engine.core import Engine
from loadtest.engine.request import EngineRequest, Job
from loadtest.vllm_cpu import environment
from loadtest.vllm_cpu.errors import BuildError
from loadtest.vllm_cpu.layout import Layout

Json = dict[str, Any]
TRAFFICS = 40
SCRIPT = Path(__file__).with_name("vllm_schedule.py")


class Counting:
    """Says `branch`, `branch + 1` and so on."""

    eos = 0

    def next_token(self, state: int, branch: int, index: int, previous: int, *, may_end: bool) -> int:
        return branch + index


class Spied(Engine):
    """Writes down what each step computes."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.plans: list[list[tuple[str, int]]] = []

    def _schedule(self, now: float) -> list[Job]:
        scheduled = super()._schedule(now)
        self.plans.append([(job.request_id, job.count) for job in scheduled])
        return scheduled


def traffic(seed: int) -> Json:
    """Conversations that share beginnings, on a pod with too few blocks; some requests are aborted."""
    draw = random.Random(seed)
    size = draw.choice((4, 16))
    pod = {"block_size": size, "blocks": draw.choice((160, 256, 400)) // size, "budget": draw.choice((16, 64, 256))}
    pod |= {"seqs": draw.choice((2, 4, 16)), "max_model_len": 128}
    heads = [[1000 * head + token for token in range(draw.randint(1, 60))] for head in range(1, 4)]
    events: list[Json] = []
    for number in range(draw.randint(5, 25)):
        prompt = draw.choice(heads) + [100_000 + 100 * number + token for token in range(draw.randint(1, 30))]
        event = {"id": f"r{number}", "step": draw.randint(0, 60), "prompt": prompt, "answer": 200_000 + 100 * number}
        events.append(event | {"max_tokens": draw.randint(1, 30)})
        if draw.random() < 0.5:
            # The same conversation's next turn.
            answer = [event["answer"] + token for token in range(8)]
            longer = {"id": f"r{number}b", "step": event["step"] + draw.randint(1, 60), "prompt": [*prompt, *answer, 7]}
            events.append(longer | {"answer": 300_000 + 100 * number, "max_tokens": draw.randint(1, 20)})
        if draw.random() < 0.15:
            events.append({"id": event["id"], "step": event["step"] + draw.randint(1, 10)})
    return {"pod": pod, "events": events}


def ours(given: Json) -> tuple[list[Json], int]:
    """(what each step did, preemptions)."""
    pod = given["pod"]
    used = replace(profile.load("instant"), max_model_len=pod["max_model_len"])
    used = used.with_cache(block_size=pod["block_size"], num_blocks=pod["blocks"])
    used = used.with_limits(max_num_batched_tokens=pod["budget"], max_num_seqs=pod["seqs"])
    engine = Spied(used, Counting())
    events, steps, busy = sorted(given["events"], key=lambda event: event["step"]), [], 0
    while events or engine.num_requests:
        if not engine.num_requests:
            busy = max(busy, events[0]["step"])
        while events and events[0]["step"] <= busy:
            event = events.pop(0)
            if "prompt" in event:
                ids, most = event["prompt"], event["max_tokens"]
                engine.submit(EngineRequest(event["id"], ids, most, ignore_eos=True, branch=event["answer"]), 0.0)
            else:
                engine.abort(event["id"], 0.0)
        engine.plans.clear()
        engine.step(0.0)
        busy += bool(engine.plans[-1])
        for counts in engine.plans:
            step = {"counts": [list(count) for count in counts]}
            steps.append(step | {"free": engine.pool.num_free, "cached": engine.pool.num_cached})
    return steps, engine.stats.preemptions


@pytest.fixture(scope="module")
def layout() -> Layout:
    try:
        return environment.ensure()
    except BuildError as error:
        pytest.skip(f"NO REAL vLLM: {error}")


def test_every_step_is_as_vllm_would_plan_it(layout):
    traffics = [traffic(seed) for seed in range(TRAFFICS)]
    run = subprocess.run(
        [str(layout.python), str(SCRIPT), str(layout.model)],
        input=json.dumps(traffics),
        capture_output=True,
        text=True,
        env=os.environ | {"VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    preemptions = 0
    for seed, (given, theirs) in enumerate(zip(traffics, json.loads(run.stdout.splitlines()[-1]), strict=True)):
        mine, preempted = ours(given)
        for number, (left, right) in enumerate(zip(mine, theirs, strict=False)):
            assert left == right, f"traffic {seed}, step {number}"
        assert len(mine) == len(theirs)
        preemptions += preempted
    assert preemptions > 20, "blocks did run out"
