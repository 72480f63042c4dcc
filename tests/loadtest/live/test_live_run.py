"""Whole runs against simulated pods, and everything that is refused before one."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.engine import profile as profiles
from loadtest.engine.profile import Profile
from loadtest.live import command
from loadtest.live.errors import LoadtestError
from loadtest.live.run import allow_files
from loadtest.pod.simulated import SimulatedPod

H100 = profiles.load("h100-llama3.1-8b")
SHORT = ("--think", "20ms", "--first-tokens", "64", "--next-tokens", "16", "--output-tokens", "4", "--warmup", "0")

FIXED = ("--rate", "20", "--arrivals", "fixed", "--duration", "1s")


def decoding_slower(profile: Profile, seconds: float) -> Profile:
    return replace(profile, step=replace(profile.step, fixed_s=profile.step.fixed_s + seconds))


async def run(*arguments: str, **env: str) -> tuple[int, str, str]:
    """`ppd-gateway loadtest …` to its end: (status, standard output, standard error)."""
    async with started(*arguments, **env) as process:
        async with asyncio.timeout(60):
            out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


@asynccontextmanager
async def started(*arguments: str, **env: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway.ops.cli", "loadtest", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **env},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_run_measures_reports_and_keeps_its_secrets(plain: SimulatedPod, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-secret\n")
    talks = tmp_path / "talks.jsonl"
    talks.write_text('{"system": "Be kind.", "turns": [{"text": "violets", "max_tokens": 5}, {"text": "roses"}]}\n')
    status, out, err = await run(
        *(plain.url, "--workload", str(talks), *FIXED, *SHORT),
        *(
            "--api-key-file",
            str(tmp_path / "key"),
            "-H",
            "X-Tenant: sesame",
            "--slo",
            "ttft=30s",
            "--body",
            '{"seed": 5}',
        ),
        *("--json", str(tmp_path / "a" / "r.json"), "--records", str(tmp_path / "r.jsonl")),
        *("--report", str(tmp_path / "report")),
    )
    assert (status, err) == (0, "")
    result = json.loads((tmp_path / "a" / "r.json").read_text())
    every = result["arms"][0]["groups"]["all turns"]
    first, later = (result["arms"][0]["groups"][name] for name in ("turn 1", "turns 2+"))
    assert (first["turns"], first["success"], first["goodput_turns_per_s"]) == (19, 1.0, 19.0)
    assert 1 <= later["turns"] <= 19
    assert every["turns"] == first["turns"] + later["turns"]
    assert every["output_tokens_per_s"] == 5 * first["turns"] + 4 * later["turns"]
    assert result["setup"]["header_names"] == ["X-Tenant"]
    assert result["overhead"]["token_events"] == 5 * first["turns"] + 4 * later["turns"]
    lines = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert len(lines) == every["turns"]
    assert {line["fault"] for line in lines} == {None}
    report = (tmp_path / "report" / "report.md").read_text()
    assert "no coordinated omission" in report
    assert "count in every percentile as infinite" in report
    pictures = re.findall(r"\]\((\S+\.png)\)", report)
    assert len(pictures) == 3
    assert all((tmp_path / "report" / name).read_bytes().startswith(b"\x89PNG") for name in pictures)
    assert "the load test itself: " in out
    written = out + report + (tmp_path / "a" / "r.json").read_text() + (tmp_path / "r.jsonl").read_text()
    for secret in ("sk-secret", "sesame", "violets"):
        assert secret not in written
    asked = [record for record in plain.requests if record.headers.get("x-request-id", "").count("-") == 2]
    assert {record.headers["authorization"] for record in asked} == {"Bearer sk-secret"}
    assert {record.headers["x-tenant"] for record in asked} == {"sesame"}
    assert {record.body["seed"] for record in asked} == {5}
    starts = [record.body["messages"][1]["content"] for record in asked if len(record.body["messages"]) == 2]
    assert len(set(starts)) == 19, "no two conversations begin alike"


async def test_of_two_endpoints_the_slower_one_is_named(tmp_path: Path) -> None:
    """B takes 60 ms more per token than A's 8, far more than a busy machine adds; the same words go to both."""
    slow = decoding_slower(H100, 0.060)
    async with SimulatedPod(profile=H100) as a, SimulatedPod(profile=slow) as b:
        status, out, err = await run(
            *(a.url, "--against", b.url, "--rate", "25", "--duration", "1600ms", "--quiet", *SHORT),
            *("--arrivals", "fixed", "--turns", "1", "--same-lengths", "--json", str(tmp_path / "r.json")),
        )
        said = [
            [record.body["messages"][1]["content"].partition("] ")[2] for record in pod.requests if _is_first(record)]
            for pod in (a, b)
        ]
    assert (status, err) == (0, "")
    result = json.loads((tmp_path / "r.json").read_text())
    tpot = next(each for each in result["differences"] if each["name"] == "TPOT P50, all turns")
    assert tpot["verdict"] == "A"
    assert 0 < tpot["low"] <= tpot["difference"] <= tpot["high"]
    assert "TPOT P50, all turns (+" in out.partition("verdict: A is better than B in")[2]
    # Who begins a pair is open, so the last one may be alone.
    assert len(set(said[0]) ^ set(said[1])) <= 1


def _is_first(record: object) -> bool:
    return record.headers.get("x-request-id", "").endswith("-1") and not record.headers["x-request-id"].startswith(
        "pre"
    )


async def test_a_server_that_hangs_is_said_before_the_run(plain: SimulatedPod) -> None:
    plain.fault("hang_before_headers", times=-1, path="/v1/completions")
    status, out, err = await run(plain.url, "--api", "completions", "--first-token-timeout", "100ms")
    assert (status, out) == (2, "")
    assert err == f"ppd-gateway: {plain.url}: no first token in time, for a tiny request\n"


@pytest.mark.parametrize(
    ("kind", "fault"), [("refuse_5xx", "http_503"), ("hang_before_headers", "timeout_first_token")]
)
async def test_a_server_that_fails_in_the_run_is_infinite(plain: SimulatedPod, kind: str, fault: str) -> None:
    async def fail() -> None:
        await plain.until(lambda: len(plain.requests) >= 3)
        plain.fault(kind, status=503, times=-1)

    failing = asyncio.create_task(fail())
    status, out, _ = await run(plain.url, *FIXED, *SHORT, "--turns", "1", "--first-token-timeout", "1s")
    await failing
    assert status == 0
    assert re.search(r"TTFT\s+all turns\s+∞\s+∞\s+∞\s+∞", out)
    assert re.search(rf"A: 1\d × {fault}", out)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["ftp://x"], "'ftp://x' is not a URL like http://HOST:PORT"),
        (["http://h", "--slo", "fast"], "--slo 'fast': must be like"),
        (["http://h", "--body", "[]"], "--body: must be a JSON object"),
        (["http://h", "--body", '{"stream": false}'], "--body: stream cannot be set there"),
        (["http://h", "--model", "a=0"], "--model a=0: must be NAME or NAME=WEIGHT"),
        (["http://h", "--against-header", "X-A: b"], "--against-…: goes with --against"),
        (["http://h", "--open", "3"], "--open: goes with --turn-rate"),
        (["http://h", "--api-key-env", "NO_SUCH_KEY"], "--api-key-env NO_SUCH_KEY: holds no key"),
        (["http://h", "--api-key-file", "/nowhere"], "--api-key-file /nowhere: No such file or directory"),
        (["http://h", "--workload", "/nowhere.jsonl"], "--workload /nowhere.jsonl: No such file or directory"),
        (["http://h", "--workload", "nonsense"], "--workload: unknown workload 'nonsense'"),
        (["http://h", "-H", "x"], "must be 'Name: value'"),
        (["http://h", "--duration", "soon"], "'soon' is not a time like"),
        (["http://h", "--rate", "0"], "'0' is not a rate above 0"),
        (["http://127.0.0.1:1"], "http://127.0.0.1:1: "),
    ],
)
async def test_a_bad_wish_is_one_line_and_nothing_is_sent(arguments: list[str], why: str, capsys, monkeypatch) -> None:
    from gateway.ops.cli import main

    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    try:
        status = await asyncio.to_thread(main, ["loadtest", *arguments])
    except SystemExit as error:
        status = error.code
    assert status == 2
    assert why in capsys.readouterr().err.splitlines()[-1]


async def test_a_model_that_is_not_served_is_named_with_those_that_are(plain: SimulatedPod) -> None:
    status, out, err = await run(plain.url, "--model", "gpt-5")
    assert (status, out) == (2, "")
    assert err == f"ppd-gateway: {plain.url}: does not serve the model 'gpt-5'; it serves sim\n"


async def test_a_refused_key_is_said_before_the_run(plain: SimulatedPod) -> None:
    plain.fault("refuse_5xx", status=401, times=-1, path="/v1/models")
    status, _, err = await run(plain.url)
    assert status == 2
    assert err == f"ppd-gateway: {plain.url}: 401: it wants a key that it knows (--api-key-file, --api-key-env)\n"


async def test_an_interrupted_run_says_what_it_has_seen(plain: SimulatedPod) -> None:
    async with started(plain.url, "--rate", "50", "--duration", "1h", "--quiet", *SHORT) as process:
        await plain.until(lambda: len(plain.requests) > 20)
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(30):
            out, err = await process.communicate()
    assert (process.returncode, err) == (130, b"")
    assert "INTERRUPTED after" in out.decode()
    assert re.search(r"all turns +[1-9]\d* +100\.0%", out.decode())


def test_more_connections_than_the_system_allows_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr("resource.getrlimit", lambda _: (256, 4096))
    monkeypatch.setattr("resource.setrlimit", lambda _, limits: asked.append(limits))
    with pytest.raises(LoadtestError, match="--max-in-flight 5000: this system allows 4096 open files"):
        allow_files(5000)
    allow_files(100)
    assert asked == []
    allow_files(2000)
    assert asked == [(2100, 4096)]


def test_b_gets_headers_and_a_key_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_A", "sk-a")
    monkeypatch.setenv("KEY_B", "sk-b")
    parser = argparse.ArgumentParser()
    command.add_command(parser.add_subparsers())
    given = ["loadtest", "http://a", "--against", "http://a", "-H", "X-T: both", "--against-header", "X-U: other"]
    wishes = command.wishes_of(parser.parse_args([*given, "--api-key-env", "KEY_A", "--against-api-key-env", "KEY_B"]))
    a, b = wishes.endpoints
    assert a.headers == (("X-T", "both"), ("Authorization", "Bearer sk-a"))
    assert b.headers == (("X-T", "both"), ("X-U", "other"), ("Authorization", "Bearer sk-b"))
    assert wishes.header_names == ["X-T", "X-U"]
    (_, shared) = command.wishes_of(parser.parse_args([*given, "--api-key-env", "KEY_A"])).endpoints
    assert shared.headers[-1] == ("Authorization", "Bearer sk-a")
