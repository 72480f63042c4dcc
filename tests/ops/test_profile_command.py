"""`ppd-gateway profile`, the command: what it refuses, and from pods to a table to a decision."""

from __future__ import annotations

import argparse
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import msgspec
import pytest

from gateway.ops.cli import main
from gateway.ops.config import Config, load
from gateway.ops.profile import command, measure
from gateway.ops.profile.errors import ProfileError
from gateway.ops.serve import running
from loadtest.pod.simulated import SimulatedPod
from lut.raw import read_raw
from lut.table import TableSet

PODS = ("--prefill", "http://127.0.0.1:1", "--decode", "http://127.0.0.1:2")


class TestCommand:
    def test_a_dry_run_prints_the_plan_and_its_duration_and_asks_no_pod(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["profile", "--preset", "paper", "--dry-run", *PODS]) == 0
        said = capsys.readouterr().out
        assert "18 workloads x 10 rates x 2 arms x 3 repeats: 1080 cells" in said
        assert " h " in said.splitlines()[-1]

    @pytest.mark.parametrize(
        ("arguments", "why"),
        [
            (("--rates", "4,2"), "--rates: not increasing: 4 before 2"),
            (("--rates", "0,1"), "--rates: every value must be above 0"),
            (("--contexts", "8"), "--contexts: 8 is too small"),
            (("--news", "32,32"), "--news: not increasing"),
            (("--reply-tokens", "0"), "--reply-tokens: must be 1 or more"),
            (("--samples", "1"), "--samples: at least 2"),
            (("--repeats", "0"), "--repeats: must be 1 or more"),
            (("--arms", "pd,pd"), "--arms: name each arm once"),
            (("--patience-s", "0"), "--patience-s: must be above 0"),
            ((), "--out: say which raw file"),
            (("--out", "/dev/null"), "pod http://127.0.0.1:"),
        ],
    )
    def test_bad_input_is_one_clear_line_and_exit_status_2(
        self, arguments: Sequence[str], why: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["profile", *PODS, *arguments]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.count("\n") == 1
        assert why in said.err

    def test_no_prefill_pod_is_nothing_to_compare(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["profile", "--out", "/dev/null", "--decode", "http://127.0.0.1:2"]) == 2
        assert "0 prefill and 1 decode pods" in capsys.readouterr().err

    @pytest.mark.parametrize("text", ["", "1,two", "pd;local"])
    def test_a_list_that_is_none_is_a_usage_error(self, text: str) -> None:
        with pytest.raises(SystemExit) as stopped:
            main(["profile", "--rates", text])
        assert stopped.value.code == 2


@pytest.fixture(autouse=True)
def never_overloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """First tokens that come later and later on a busy machine are not what is tested here."""
    monkeypatch.setattr(measure, "GROWTH_S", 3600.0)


@pytest.fixture
async def pods() -> AsyncIterator[list[SimulatedPod]]:
    """One prefill and two decode pods that take no time."""
    async with AsyncExitStack() as stack:
        roles = ("prefill", "decode", "decode")
        yield [await stack.enter_async_context(SimulatedPod(role=role)) for role in roles]


def config_of(pods: list[SimulatedPod], **flags: object) -> Config:
    urls = {role: [pod.url for pod in pods if pod.options.role == role] for role in ("prefill", "decode")}
    return load(None, {}, {**urls, **flags})


def options_of(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_command(parser.add_subparsers())
    return parser.parse_args(["profile", *arguments])


async def test_from_pods_to_a_table_to_a_decision(
    pods: list[SimulatedPod], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw, table = tmp_path / "raw.jsonl", tmp_path / "table"
    grid_flags = ("--contexts", "64,128", "--news", "32", "--outputs", "8", "--rates", "20", "--samples", "4")
    options = options_of("--out", str(raw), *grid_flags, "--window-s", "0", "--repeats", "1")
    await command.profile(options, command.plan_of(options), config_of(pods))

    lines = [located.point for located in read_raw(raw).points]
    assert len(lines) == 2 * 2
    assert {line.simulated for line in lines} == {True}
    assert {line.assignment for line in lines} == {"1P_2D"}
    assert {(line.samples, line.success, line.stopped) for line in lines} == {(4, 1.0, None)}
    said = capsys.readouterr().out
    assert "1P_2D sim SIMULATED" in said
    assert "really" not in said
    assert "4 cells measured" in said
    _the_pods_saw_real_conversations(pods)

    assert main(["lut", "build", str(raw), "-o", str(table)]) == 0
    async with running(config_of(pods, policy="ppd", table=str(table), port=0, expose_decisions="true")) as gateway:
        reason = await _reason_of_a_second_turn(gateway.url)
    assert "S=" in reason
    assert "cell ctx=128 in=32 out=8 q=20 pi=1P_2D" in reason


async def test_readback_is_measured_as_a_third_arm(tmp_path: Path) -> None:
    raw, table = tmp_path / "raw.jsonl", tmp_path / "table"
    options = options_of(
        *("--out", str(raw), "--arms", "pd,local,readback", "--contexts", "512", "--news", "32", "--outputs", "8"),
        *("--rates", "20", "--samples", "4", "--window-s", "0", "--repeats", "1"),
    )
    async with AsyncExitStack() as stack:
        pods = [
            await stack.enter_async_context(SimulatedPod(role=role, bidirectional=role == "prefill"))
            for role in ("prefill", "decode")
        ]
        await command.profile(options, command.plan_of(options), config_of(pods))
    lines = [located.point for located in read_raw(raw).points]
    assert {(line.arm, line.samples, line.success) for line in lines} == {
        ("pd", 4, 1.0),
        ("local", 4, 1.0),
        ("readback", 4, 1.0),
    }
    assert main(["lut", "build", str(raw), "-o", str(table)]) == 0
    arms = TableSet.open(table).nearest_assignment("1P_1D")[0].nearest(512, 32, 8, 20.0)
    assert arms.readback is not None
    assert arms.readback.success == 1.0


async def test_pods_that_refuse_first_turns_are_said_so_and_nothing_is_written(
    pods: list[SimulatedPod], tmp_path: Path
) -> None:
    raw = tmp_path / "raw.jsonl"
    options = options_of("--out", str(raw), "--contexts", "64", "--news", "32", "--outputs", "8", "--rates", "20")
    pods[0].fault("refuse_5xx", status=503, times=1000)
    pods[1].fault("refuse_5xx", status=503, times=1000)
    pods[2].fault("refuse_5xx", status=503, times=1000)
    with pytest.raises(ProfileError, match="a turn on idle pods failed: status 50"):
        await command.profile(options, command.plan_of(options), config_of(pods))
    assert raw.read_bytes() == b""


def _the_pods_saw_real_conversations(pods: list[SimulatedPod]) -> None:
    """Every text is fresh: no two prompts that P was asked to prefill begin alike, but for the turns of one talk."""
    bodies = [json.loads(record.raw) for record in pods[0].requests]
    first_turns = [body["messages"][0]["content"] for body in bodies if len(body["messages"]) == 1]
    assert len(set(first_turns)) == len(first_turns) > 30
    measured = [body for body in bodies if len(body["messages"]) == 3]
    assert all(body["messages"][0]["content"] in first_turns for body in measured)


async def _reason_of_a_second_turn(url: str) -> str:
    messages = [{"role": "user", "content": "how are you " * 30}]
    async with aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"{url}/ready") as ready:
                if ready.status == 200:
                    break
        for _ in range(2):
            body = {"model": "sim", "messages": messages, "max_tokens": 8, "ignore_eos": True}
            async with session.post(f"{url}/v1/chat/completions", json=body) as response:
                answer = msgspec.json.decode(await response.read())
                reason = response.headers["X-PPD-Reason"]
            messages = [*messages, answer["choices"][0]["message"], {"role": "user", "content": "and how is he"}]
    return reason
