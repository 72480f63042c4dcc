"""Drift and load in a gateway at work: what is told, kept over a restart, and cleaned up."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gateway.core.pods import Pod
from gateway.core.policies import MeasuredTable
from gateway.net.parts import Parts
from gateway.ops.cli import main
from lut.raw import read_raw
from tests.net.test_decisions import FAST_LOCAL, second_turn, table_flags
from tests.net.world import CHAT, World, world
from tests.tables import write_set


def drift_of(parts: Parts) -> MeasuredTable:
    assert isinstance(parts.policy, MeasuredTable)
    return parts.policy


def idle(pods: list[Pod]) -> bool:
    return all((pod.pending_tokens, pod.load_tokens, pod.in_flight) == (0, 0, 0) for pod in pods)


async def streamed(w: World, topic: str) -> None:
    body = {"model": "sim", "messages": [{"role": "user", "content": topic * 400}], "max_tokens": 4, "stream": True}
    assert (await w.post(CHAT, body)).status == 200


async def test_turns_that_ended_are_held_against_the_table_and_written_down(tmp_path: Path) -> None:
    file = tmp_path / "m.jsonl"
    flags = {"drift.measurements_file": str(file), "load_aware": True}
    async with world(**table_flags(write_set(tmp_path / "t", FAST_LOCAL), **flags)) as w:
        parts = w.gateway.parts
        assert (await second_turn(w)).headers["x-ppd-route"] == "local"
        record = await w.record(2)
        assert record.choice is not None
        drift = drift_of(parts).drift
        assert drift is not None
        assert drift.observed == 1
        assert parts.fleet.loads is not None
        assert idle(list(parts.fleet))
    assert read_raw(file).points == (), "an answer in one piece has no time to its first token"


async def test_what_is_known_of_drift_and_paces_outlives_nothing_it_should_not(tmp_path: Path) -> None:
    table = write_set(tmp_path / "t", FAST_LOCAL)
    flags = table_flags(table, state_file=str(tmp_path / "state"))
    async with world(**flags) as w:
        drift = drift_of(w.gateway.parts).drift
        assert drift is not None
        drift.series["local", "ttft"].drifting = True
        drift.series["local", "ttft"].batches = 99
    async with world(**flags) as w:
        drift = drift_of(w.gateway.parts).drift
        assert drift is not None
        assert drift.drifting
        assert drift.series["local", "ttft"].batches == 99
    write_set(table, FAST_LOCAL, model="another")
    async with world(**flags) as w:
        drift = drift_of(w.gateway.parts).drift
        assert drift is not None
        assert not drift.drifting


async def test_policy_queue_routes_without_a_table(tmp_path: Path) -> None:
    async with world(policy="queue", expose_decisions=True) as w:
        reply = await second_turn(w)
        assert reply.headers["x-ppd-reason"].split(":")[1].startswith(" first token in ")
        await streamed(w, "abc ")
        assert w.gateway.parts.fleet.loads is not None
        assert idle(list(w.gateway.parts.fleet))


async def test_a_decision_is_explained_as_the_gateway_would_make_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, state = write_set(tmp_path / "t", FAST_LOCAL), tmp_path / "state"
    turn = ["--ctx", "1024", "--new", "16", "--out", "32", "--qps", "1", "--assignment", "1P_2D", "--table", str(table)]
    async with world(**table_flags(table, state_file=str(state))) as w:
        drift = drift_of(w.gateway.parts).drift
        assert drift is not None
        drift.series["local", "ttft"].drifting = True
        for _ in range(2000):
            drift.corrections.add("ttft", "local", "1P_2D", (1, 0, 0, 0), 6.0, time.monotonic())
    assert main(["explain", *turn]) == 0
    assert capsys.readouterr().out.startswith("local: S=+0.73")
    assert main(["explain", *turn, "--state", str(state)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("pd: S=-0.")
    assert " drift pd ×1.00/×1.00 local ×6.00" in said
    other = write_set(tmp_path / "other", FAST_LOCAL, model="another")
    assert main(["explain", *turn[:-1], str(other), "--state", str(state)]) == 2
    assert "knows nothing of drift against the table" in capsys.readouterr().err
