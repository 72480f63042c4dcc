"""What the doctor says of versions, clocks, the table and this machine, and how it says it."""

from __future__ import annotations

import dataclasses
import socket
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.core.pods import Pod, PodFacts, Role
from gateway.ops.cli import main
from gateway.ops.config import SIMULATED_TABLE, Config, load
from gateway.ops.doctor import here, judge_fleet, judge_pods
from gateway.ops.doctor.findings import Finding, as_text, exit_status, fail, ok, warn
from gateway.ops.doctor.look import PodReport
from gateway.ops.doctor.versions import page, tried
from gateway.ops.settings import SETTINGS
from gateway.ops.tables import open_checked
from tests.ops.doctor_world import changes, troubles, ward
from tests.redis_server import WORDS, RedisServer, command

GOOD = PodFacts(block_size=16, prefix_caching=True, version="0.32.0", models=("m",), max_model_len=99, seen_at=1.0)


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in SETTINGS:
        monkeypatch.delenv(setting.variable, raising=False)


def config(**settings: Any) -> Config:
    return load(None, {}, {"prefill": ["http://p:1"], "decode": ["http://d:1"], "kv_events": "off", **settings})


def report(role: Role = Role.DECODE, **facts: Any) -> PodReport:
    pod = Pod(f"http://{role[0]}:1", role, facts=msgspec.structs.replace(GOOD, **facts))
    return PodReport(pod, skew_s=0.1, max_model_lens={"m": 99})


@pytest.mark.parametrize(
    ("version", "known"),
    [("0.32.0", True), ("0.32.1.dev3+cpu", True), ("0.33.0", False), ("0.3.2", False), ("what", False), ("", False)],
)
def test_only_releases_that_were_tried_are_said_to_be(version: str, known: bool) -> None:
    assert tried(version) is known
    found = [f for f in judge_pods.judge(report(version=version), config()) if f.check == "version"]
    assert [str(f.level) for f in found] == ["ok" if known else "warn"]


def test_the_page_of_compatibility_is_the_printed_one() -> None:
    docs = Path(__file__).parents[2] / "docs"
    assert (docs / "compatibility.md").read_text(encoding="utf-8") == page(), "run `make docs`"
    tests = docs.parent / "tests" / "vllm"
    named = {name for line in page().splitlines() for name in line.split("`") if name.startswith("test_")}
    assert named
    assert all((tests / f"{name}.py").exists() for name in named)


@pytest.mark.parametrize(
    ("skew_s", "seen"),
    [(0.5, None), (-1.9, None), (7.2, "7 s ahead of this machine's"), (-90.0, "90 s behind this machine's")],
)
def test_a_clock_that_is_off(skew_s: float, seen: str | None) -> None:
    found = report()
    found.skew_s = skew_s
    said = [f for f in judge_pods.judge(found, config()) if f.check == "clock" and f.change]
    assert [f.seen for f in said] == ([] if seen is None else [seen])


def tables_of(**changes: Any) -> Any:
    tables = open_checked(SIMULATED_TABLE)
    fits = {"model": "m", "simulated": False, "created": datetime.now(UTC).isoformat(), **changes}
    return dataclasses.replace(tables, manifest=msgspec.structs.replace(tables.manifest, **fits))


@pytest.mark.parametrize(
    ("changed", "check"),
    [
        ({}, None),
        ({"simulated": True}, "measured on"),
        ({"model": "another"}, "model"),
        ({"block_size": 64}, "block size"),
        ({"created": (datetime.now(UTC) - timedelta(days=200)).isoformat()}, "age"),
        ({"created": "lately"}, "age"),
    ],
)
def test_a_table_that_does_not_speak_of_these_pods(changed: dict[str, Any], check: str | None) -> None:
    reports = [report(Role.PREFILL), report()]
    found = list(judge_fleet.judge_table(tables_of(**changed), reports, config(), time.time()))
    assert [c for _, c, _ in troubles(found)] == ([] if check is None else [check])
    assert all("ppd-gateway profile" in change for change in changes(found))


def test_a_table_without_this_number_of_pods_or_without_a_readback_arm() -> None:
    reports = [report(Role.PREFILL) for _ in range(5)] + [report()]
    found = list(judge_fleet.judge_table(tables_of(), reports, config(readback="true"), time.time()))
    assert [c for _, c, _ in troubles(found)] == ["node assignment", "readback"]
    assert "none for 5P_1D" in found[0].seen


def test_a_bad_table_is_a_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--decode", "http://127.0.0.1:9", "--table", str(tmp_path), "--quiet"]) == 2
    assert f"table {tmp_path}" in capsys.readouterr().out


@pytest.mark.parametrize(("limit", "streams", "good"), [(1024, 384, True), (1024, 385, False), (-1, 10**9, True)])
def test_open_files_against_streams(limit: int, streams: int, good: bool) -> None:
    found = here.judge_open_files(streams, limit)
    assert (found.change is None) is good
    if not good:
        assert "ulimit -n 1026 " in (found.change or "")


def test_files_that_others_may_read_or_that_are_no_good(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("sk-upstream", encoding="utf-8")
    key.chmod(0o644)
    found = list(here.judge_files(config(upstream_api_key_file=str(key))))
    assert changes(found) == [f"chmod 600 {key}"]
    found = list(here.judge_files(config(api_keys=str(tmp_path / "none"))))
    assert troubles(found) == [("fail", "keys and certificates", "this machine")]
    found = list(here.judge_files(config(state_file=str(tmp_path / "no" / "where"))))
    assert troubles(found) == [("fail", "state_file", "this machine")]


async def test_a_state_server_that_is_away_is_named_without_its_password() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    found = list(await here.judge_state(config(state=f"redis://:secret@127.0.0.1:{port}/0")))
    assert troubles(found) == [("fail", "state", f"state redis://127.0.0.1:{port}/0")]
    assert "secret" not in as_text(found)


@pytest.mark.skipif(command() is None, reason=WORDS)
async def test_a_state_server_that_answers_in_time_or_late() -> None:
    async with RedisServer() as server:
        assert troubles(list(await here.judge_state(config(state=server.url, state_timeout_s="5")))) == []
        (found,) = await here.judge_state(config(state=server.url, state_timeout_s="1e-9"))
        assert (found.check, str(found.level)) == ("state", "warn")
        assert (found.change or "").startswith("state_timeout_s = ")


ALL = [ok("a", "x", "1"), warn("bb", "y", "2", "do this"), fail("c", "x", "3", "do that")]


@pytest.mark.parametrize(("findings", "status"), [([], 0), (ALL[:1], 0), (ALL[:2], 1), (ALL, 2)])
def test_the_exit_status_is_that_of_the_worst(findings: list[Finding], status: int) -> None:
    assert exit_status(findings) == status


def test_findings_stand_under_what_they_are_about() -> None:
    assert as_text(ALL).splitlines() == [
        "x",
        "  OK    a   1",
        "  FAIL  c   3",
        "            -> do that",
        "y",
        "  WARN  bb  2",
        "            -> do this",
        "1 ok, 1 to look at, 1 to change",
    ]
    assert "OK" not in as_text(ALL, quiet=True)


async def test_the_command_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    import asyncio

    async with ward() as w:
        given = ["doctor", "--json", "--policy", "local", "--prefill", w.prefill[0].url, "--decode", w.decode[0].url]
        status = await asyncio.to_thread(main, [*given, "--streams", "10"])
    printed = msgspec.json.decode(capsys.readouterr().out)
    assert (status, printed["result"]) == (0, "ok")
    assert {f["level"] for f in printed["findings"]} == {"ok"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--pairs", "-1"], "flag --pairs: must not be negative"),
        (["--limit-s", "0"], "flag --limit-s: must be more than 0 and at most 3600"),
        (["--port", "x"], "flag --port: port: must be a whole number, not 'x'"),
    ],
)
def test_a_bad_flag_is_one_line(given: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--decode", "http://d:1", *given]) == 2
    assert capsys.readouterr().err.strip().endswith(said)
