"""`--workers N` as an operator runs it: several processes, one port, one answer to a signal and to a scrape."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.ops import workers
from gateway.ops.config import load
from tests.e2e.test_serve import Served, pods, run, served
from tests.net.cluster import needs_server
from tests.net.world import LONG, assistant, names_in, user
from tests.redis_server import RedisServer


async def test_several_workers_without_a_state_to_share_are_refused_in_one_line() -> None:
    status, out, err = await run("serve", "--decode", "http://127.0.0.1:1", "--workers", "2")
    assert (status, out) == (2, "")
    assert err == 'ppd-gateway: flag --workers: workers: more than one needs state = "redis://…", which they share\n'


@asynccontextmanager
async def two_workers(*arguments: str) -> AsyncIterator[tuple[Served, RedisServer]]:
    async with pods() as (prefill, decode), RedisServer() as server:
        given = ["--prefill", prefill.url, "--decode", decode.url, "--port", "0", "--policy", "local"]
        given += ["--workers", "2", "--state", server.url, "--state-timeout-s", "1", *arguments]
        async with served(*given) as gateway:
            await until(lambda: len(started(gateway)) == 2)
            yield gateway, server


async def until(condition: Any) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def started(gateway: Served) -> list[str]:
    """The numbers of the workers that said they listen, as often as they said it."""
    found = [re.search(r"worker=(\d+) ppd-gateway \S+ on (\S+),", line) for line in gateway.lines]
    return [match[1] for match in found if match and match[2] == gateway.url]


def children(gateway: Served) -> list[int]:
    path = Path(f"/proc/{gateway.process.pid}/task/{gateway.process.pid}/children")
    return [int(pid) for pid in path.read_text().split()]


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def talk(url: str, turns: int) -> None:
    """A conversation with a new connection for each turn, in which every turn is known to all before the next."""
    messages: list[dict[str, str]] = []
    for turn in range(turns):
        messages.append(user(f"{LONG} {turn}"))
        body = {"model": "sim", "messages": messages, "max_tokens": 8}
        async with aiohttp.ClientSession() as session:
            async with session.post(f"{url}/v1/chat/completions", json=body) as response:
                assert response.status == 200, await response.text()
                messages.append(assistant((await response.json())["choices"][0]["message"]["content"]))
        await known_to_all(url)


async def known_to_all(url: str) -> None:
    """Wait until every turn that ended is in the shared state."""
    async with asyncio.timeout(30):
        while True:
            page = await scrape(url)
            written = total(page, "ppd_shared_state_total", 'op="write"', 'result="ok"')
            if written >= total(page, "ppd_requests_total", 'path="/v1/chat/completions"'):
                return


async def scrape(url: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as response:
        assert response.status == 200
        return await response.text()


def total(page: str, name: str, *labels: str) -> float:
    """Sum over the samples of that name that have all these labels."""
    lines = [
        line for line in page.splitlines() if line.startswith(f"{name}{{") and all(label in line for label in labels)
    ]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


@needs_server
async def test_two_workers_serve_one_port_and_a_scrape_sees_both() -> None:
    async with two_workers() as (gateway, _):
        turns = 24
        for _ in range(4):
            await talk(gateway.url, 6)
        page = await scrape(gateway.url)
        served_by = [total(page, "ppd_requests_total", f'worker="{n}"', 'path="/v1/chat/completions"') for n in "12"]
        assert sum(served_by) == turns
        assert min(served_by) > 0, "both had some of 24 connections"
        assert total(page, "ppd_worker_up") == 2
        later = total(page, "ppd_requests_total", 'turn="2+"')
        assert later == turns - turns // 6, "each turn was recognised, whichever worker got it"


@needs_server
async def test_a_worker_that_dies_is_started_again_and_the_other_serves_meanwhile() -> None:
    async with two_workers() as (gateway, _):
        victim = children(gateway)[0]
        os.kill(victim, signal.SIGKILL)
        await until(lambda: any("ended with status -9; starting it again" in line for line in gateway.lines))
        await talk(gateway.url, 2)
        await until(lambda: len(started(gateway)) == 3)
        assert victim not in children(gateway)
        assert len(children(gateway)) == 2
        assert total(await scrape(gateway.url), "ppd_worker_up") == 2


@needs_server
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_to_the_parent_ends_all_with_status_0(number: signal.Signals) -> None:
    async with two_workers() as (gateway, _):
        pids = children(gateway)
        gateway.process.send_signal(number)
        async with asyncio.timeout(30):
            assert await gateway.process.wait() == 0
        assert not any(map(alive, pids))


@needs_server
async def test_a_hang_up_reaches_the_workers_and_ends_none() -> None:
    async with two_workers("--policy", "ppd") as (gateway, _):
        gateway.process.send_signal(signal.SIGHUP)
        await until(lambda: sum("table set exchanged" in line for line in gateway.lines) == 2)
        assert len(children(gateway)) == 2


@needs_server
async def test_workers_end_when_their_parent_is_killed() -> None:
    async with two_workers() as (gateway, _):
        pids = children(gateway)
        gateway.process.kill()
        await until(lambda: not any(map(alive, pids)))


@needs_server
async def test_each_worker_has_a_state_file_of_its_own(tmp_path: Path) -> None:
    async with two_workers("--state-file", str(tmp_path / "state")) as (gateway, _):
        gateway.process.send_signal(signal.SIGTERM)
        await gateway.process.wait()
    assert names_in(tmp_path) == ["state.1", "state.2"]


@needs_server
async def test_a_port_that_is_taken_and_a_bad_table_are_one_line() -> None:
    async with RedisServer() as server:
        given = ["serve", "--decode", "http://127.0.0.1:1", "--workers", "2", "--state", server.url]
        with socket.create_server(("127.0.0.1", 0)) as taken:
            status, _, err = await run(*given, "--port", str(taken.getsockname()[1]))
        assert status == 1
        assert "cannot listen on 127.0.0.1:" in err
        status, _, err = await run(*given, "--table", "/nowhere")
        assert (status, len(err.splitlines())) == (2, 1)
        status, _, err = await run(*given, "--port", "0", "--host", "256.0.0.1", "--insecure", "true")
        assert status == 1
        assert len(err.splitlines()) == 1


async def test_workers_that_cannot_even_start_end_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "COMMAND", (sys.executable, "-c", "raise SystemExit(2)"))
    flags = {"decode": ["http://d:1"], "policy": "local", "workers": "2", "state": "redis://h", "port": "0"}
    async with asyncio.timeout(30):
        assert await workers.supervise(load(None, {}, flags), []) == 2
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().remove_signal_handler(number)
