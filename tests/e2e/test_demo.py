"""`python -m loadtest.demo` as `make demo` runs it: in a process of its own, with real children."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from loadtest.demo.lateness import BUSY_MS

MARK = "DEMO_TEST_MARK"
QUICK = ("--conversations", "2", "--turns", "3")
LIMIT_S = 180.0
"""When to give up on a demo. It takes about 8 s on an idle machine; this is not what is tested."""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "loadtest.demo", *arguments]


def environment(mark: str, *, once: bool) -> dict[str, str]:
    """This process's own, marked so that all descendants can be found; an old PPD_ variable must not hurt."""
    kept = {name: value for name, value in os.environ.items() if name != "DEMO_ONCE"}
    return {**kept, MARK: mark, "PPD_POLICY": "pd", **({"DEMO_ONCE": "1"} if once else {})}


def descendants(mark: str) -> dict[int, str]:
    """Command lines of the living processes that carry the mark, by process number."""
    found = {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (directory / "environ").read_bytes().split(b"\0"):
                found[int(directory.name)] = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue  # it ended while we looked, or is another user's
    return found


def answers(url: str) -> bool:
    """Whether anything listens there."""
    parts = urlsplit(url)
    with socket.socket() as probe:
        return probe.connect_ex((parts.hostname, parts.port)) == 0


@dataclass(frozen=True)
class Told:
    """A demo that has ended."""

    status: int
    output: str
    errors: str
    summary: Any
    left: dict[int, str]

    def turns(self, policy: str) -> list[dict[str, Any]]:
        return list(self.summary[policy]["turns"])


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    mark, path = uuid.uuid4().hex, tmp_path_factory.mktemp("demo") / "out.json"
    done = subprocess.run(
        command(*QUICK, "--json", str(path)),
        env=environment(mark, once=True),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return Told(done.returncode, done.stdout, done.stderr, json.loads(path.read_text()), descendants(mark))


def test_it_ends_well_and_quietly(told: Told) -> None:
    assert told.status == 0
    assert told.errors == ""


def test_policy_ppd_sends_the_first_turn_through_p_and_later_turns_straight_to_d(told: Told) -> None:
    assert [(row["conversation"], row["turn"], row["route"], row["prefill"]) for row in told.turns("ppd")] == [
        ("1", 1, "pd", "P1"),
        ("1", 2, "local", None),
        ("1", 3, "local", None),
        ("2", 1, "pd", "P1"),
        ("2", 2, "local", None),
        ("2", 3, "local", None),
    ]


def test_policy_pd_sends_every_turn_through_p(told: Told) -> None:
    assert [(row["route"], row["prefill"]) for row in told.turns("pd")] == [("pd", "P1")] * 6


@pytest.mark.parametrize("policy", ["ppd", "pd"])
def test_a_conversation_stays_on_its_decode_pod(told: Told, policy: str) -> None:
    for conversation in ("1", "2"):
        pods = {row["decode"] for row in told.turns(policy) if row["conversation"] == conversation}
        assert len(pods) == 1
        assert pods <= {"D1", "D2", "D3"}


def test_later_turns_find_their_history_in_a_cache(told: Told) -> None:
    for row in [*told.turns("ppd"), *told.turns("pd")]:
        if row["turn"] == 1:
            assert row["context_tokens"] == row["cached_tokens"] == 0
        else:
            assert 0 < row["cached_tokens"] <= row["context_tokens"] + row["new_tokens"]
            assert 0 < row["new_tokens"] < 60


def test_on_route_local_all_whole_blocks_of_the_history_are_cached(told: Told) -> None:
    """Blocks of 16 tokens; the last token of an answer was sampled, but its KV not computed."""
    for row in told.turns("ppd"):
        if row["turn"] > 1:
            assert row["cached_tokens"] >= (row["context_tokens"] - 1) // 16 * 16


def test_later_turns_start_sooner_when_they_go_straight_to_d(told: Told) -> None:
    """Other processes only ever add to a time, so the fastest turns compare on any machine, medians on a quiet one."""
    fastest = {p: min(row["ttft_ms"] for row in told.turns(p) if row["turn"] > 1) for p in ("ppd", "pd")}
    assert fastest["ppd"] < fastest["pd"]
    assert told.summary["ppd"]["timers_late_ms"] > 0
    if max(told.summary[policy]["timers_late_ms"] for policy in ("ppd", "pd")) <= BUSY_MS:
        assert told.summary["ppd"]["later_turns_ttft_ms"] < told.summary["pd"]["later_turns_ttft_ms"]
        assert told.summary["change_percent"]["later_turns_ttft"] < 0


def test_the_prefill_pod_is_asked_once_per_conversation_or_once_per_turn(told: Told) -> None:
    assert (told.summary["ppd"]["prefill_requests"], told.summary["pd"]["prefill_requests"]) == (2, 6)
    assert (told.summary["ppd"]["kv_reads"], told.summary["pd"]["kv_reads"]) == (2, 6)
    assert 0 < told.summary["ppd"]["kv_bytes"] < told.summary["pd"]["kv_bytes"]


def test_both_runs_had_the_same_traffic_on_pods_of_their_own(told: Told) -> None:
    assert told.summary["same_traffic"] is True
    ppd, pd = told.summary["ppd"], told.summary["pd"]
    assert not set(ppd["pods"].values()) & set(pd["pods"].values())
    assert ppd["gateway"] != pd["gateway"]


def test_it_says_that_the_pods_are_simulated(told: Told) -> None:
    assert told.summary["simulated"] is True
    assert "Pods are simulated" in told.output


def test_without_a_terminal_it_prints_plain_lines(told: Told) -> None:
    assert "\x1b" not in told.output
    shown = [line.split() for line in told.output.splitlines() if " P1 → D" in line]
    assert len(shown) == 2 + 6


def test_nothing_is_left_running(told: Told) -> None:
    assert told.left == {}
    for policy in ("ppd", "pd"):
        assert not answers(told.summary[policy]["gateway"])
        assert not any(answers(url) for url in told.summary[policy]["pods"].values())


@asynccontextmanager
async def telling(mark: str, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A demo under way; killed in the end if a test has failed to end it."""
    process = await asyncio.create_subprocess_exec(
        *command(*arguments),
        env=environment(mark, once=False),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(LIMIT_S):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def until(process: asyncio.subprocess.Process, words: str) -> str:
    """Read up to the line that has these words in it."""
    assert process.stdout is not None
    async for line in process.stdout:
        if words in line.decode():
            return line.decode()
    raise AssertionError(f"ended without saying {words!r}")


async def test_it_serves_after_the_summary_until_it_is_interrupted() -> None:
    mark = uuid.uuid4().hex
    async with telling(mark, "--conversations", "1", "--turns", "2") as process:
        line = await until(process, "goes on serving at ")
        url = line.partition("goes on serving at ")[2].split()[0]
        line = await until(process, "Requests that come in")
        assert answers(url)
        page = line.partition("Look at it: ")[2].partition("/ui. ")[0]
        assert answers(page), "the live page"
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0
    assert not answers(url)
    assert descendants(mark) == {}


@pytest.mark.parametrize(
    ("moment", "number"),
    [("Starting 4 pods", signal.SIGINT), ("conv  turn", signal.SIGINT), ("P1 → D", signal.SIGTERM)],
)
async def test_a_signal_on_the_way_ends_everything(moment: str, number: signal.Signals) -> None:
    mark = uuid.uuid4().hex
    async with telling(mark, *QUICK) as process:
        await until(process, moment)
        process.send_signal(number)
        assert await process.wait() == 128 + number
        assert process.stderr is not None
        assert await process.stderr.read() == b""
    assert descendants(mark) == {}


async def test_the_last_words_of_a_child_that_dies_at_its_start_are_shown() -> None:
    mark = uuid.uuid4().hex
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with telling(mark, *QUICK, "--port", str(port)) as process:
            _, errors = await process.communicate()
            assert process.returncode == 1
    assert b"demo: gateway (policy ppd) ended with status 1" in errors
    assert f"cannot listen on 127.0.0.1:{port}".encode() in errors
    assert descendants(mark) == {}


async def test_a_pod_that_is_killed_on_the_way_ends_the_demo_and_everything_else() -> None:
    mark = uuid.uuid4().hex
    async with telling(mark, *QUICK) as process:
        await until(process, "conv  turn")
        victim = next(pid for pid, words in descendants(mark).items() if "--role decode" in words)
        os.kill(victim, signal.SIGKILL)
        _, errors = await process.communicate()
        assert process.returncode == 1
    assert re.match(rb"demo: pod D\d \(decode\) was ended by signal 9", errors)
    assert descendants(mark) == {}
