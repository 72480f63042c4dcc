"""Processes that die, names that do not resolve, a gateway that is out of file descriptors."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.core.pods import Role
from gateway.net import upstream
from tests.e2e.test_serve import NO_SELFTEST, environment, until_ready
from tests.net.leftovers import check_well_formed, clean_world, nothing_left
from tests.net.world import CHAT, Reply, user

STREAMS = 100


@asynccontextmanager
async def pod_process(role: str, *arguments: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A simulated pod in a process of its own, and its URL."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadtest.pod", "--role", role, "--port", "0", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        yield process, (await process.stdout.readline()).decode().strip()
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_a_decode_pod_killed_under_a_hundred_streams_ends_each_within_two_seconds() -> None:
    profile = ("--profile", "h100-llama3.1-8b")
    async with (
        pod_process("decode", *profile) as (process, url),
        clean_world(prefill=1, decode=0, elsewhere={"decode": [url]}) as w,
    ):
        await w.watcher.until(lambda: w.watcher.pods.get(url, False))
        ended: list[float] = []
        begun = 0

        async def stream(number: int) -> Reply:
            nonlocal begun
            body = {"model": "sim", "messages": [user(f"{number} of many")], "max_tokens": 2000, "stream": True}
            body["ignore_eos"] = True
            got = b""
            async with w.session.post(w.url + CHAT, json=body) as response:
                async for piece in response.content.iter_any():
                    begun += not got
                    got += piece
                ended.append(asyncio.get_running_loop().time())
                return Reply(response.status, {}, got)

        asked = [asyncio.create_task(stream(number)) for number in range(STREAMS)]
        async with asyncio.timeout(20):
            while begun < STREAMS:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        killed, worked = asyncio.get_running_loop().time(), time.process_time()
        replies = await asyncio.gather(*asked)
        assert time.process_time() - worked < 2, "of this process, whatever else the machine does"
        assert max(ended) - killed < w.gateway.parts.settings.timeouts.token_gap_s / 2, "no time-out ended them"
        assert [check_well_formed(reply, stream=True) for reply in replies] == ["broken"] * STREAMS
        assert w.watcher.fault_kinds.count("stream_reset") == STREAMS
        later = await asyncio.gather(*(w.chat([user(f"{number} later")]) for number in range(10)))
        assert {reply.status for reply in later} == {503}, "nobody is left to answer"
        await nothing_left(w)


async def test_a_name_that_does_not_resolve_is_a_pod_that_is_down_and_the_others_serve() -> None:
    nowhere = "http://no-such-pod.invalid:8000"
    async with clean_world(prefill=1, decode=1, elsewhere={"decode": [nowhere], "prefill": [nowhere[:-1] + "1"]}) as w:
        replies = await asyncio.gather(*(w.chat([user(f"{number}")]) for number in range(10)))
        assert {reply.status for reply in replies} == {200}
        pods = {pod["url"]: pod["up"] for pod in (await w.get("/admin/pods")).json["pods"]}
        assert [up for url, up in pods.items() if "invalid" in url] == [False, False]
        assert {record.attempts for record in w.watcher.records if record.path == CHAT} == {1}


async def test_a_name_that_stops_to_resolve_costs_a_retry_and_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    async with clean_world(prefill=0, decode=2, **{"health.interval_s": 60}) as w:
        first = w.gateway.parts.fleet.up(Role.DECODE)[0]

        async def no_name(self: upstream._Pool, connect_s: float) -> Any:
            if self.name == first.url.removeprefix("http://"):
                raise upstream.PodFault("connect", str(socket.gaierror(-2, "Name or service not known")), reached=False)
            return await dial(self, connect_s)

        dial = upstream._Pool.dial
        monkeypatch.setattr(upstream._Pool, "dial", no_name)
        for pool in w.gateway.parts.client._pools.values():
            pool.close()
        replies = await asyncio.gather(*(w.chat([user(f"{number}")]) for number in range(20)))
        assert {reply.status for reply in replies} == {200}


WITHIN = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[1])))
from gateway.ops.cli import main
sys.argv = ["ppd-gateway", *sys.argv[2:]]
main()
"""


async def test_without_file_descriptors_it_says_so_serves_what_it_has_and_recovers() -> None:
    async with pod_process("decode") as (_, url):
        flags = ("--decode", url, "--policy", "local", "--port", "0", *NO_SELFTEST)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", WITHIN, "48", "serve", *flags),
            stderr=asyncio.subprocess.PIPE,
            env=environment(),
        )
        log: list[str] = []
        try:
            assert process.stderr is not None
            async with asyncio.timeout(30):
                while not (found := re.search(r" on http://(\S+):(\d+),", log[-1] if log else "")):
                    log.append((await process.stderr.readline()).decode())
                    assert log[-1], log
            reading = asyncio.create_task(_read(process.stderr, log))
            await until_ready(f"http://{found[1]}:{found[2]}")
            await _exhaust_and_recover(found[1], int(found[2]), log)
            assert process.returncode is None
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()
        await reading


async def _exhaust_and_recover(host: str, port: int, log: list[str]) -> None:
    idle = []
    for _ in range(60):
        idle.append(await asyncio.open_connection(host, port))
    asked = [asyncio.create_task(_ask(reader, writer)) for reader, writer in idle[:20]]
    statuses = await asyncio.gather(*asked)
    assert set(statuses) <= {200, 503, None}
    async with asyncio.timeout(30):
        while not any("Too many open files" in line or "file descriptors" in line for line in log):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    for _, writer in idle:
        writer.close()
    async with asyncio.timeout(20):
        while True:
            with_room = await asyncio.open_connection(host, port)
            status = await _ask(*with_room)
            with_room[1].close()
            if status == 200:
                return
            await asyncio.sleep(0.05)


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int | None:
    """The status of a chat, None where the connection was closed instead."""
    body = b'{"model":"sim","messages":[{"role":"user","content":"hi"}],"max_tokens":4}'
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    try:
        writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        async with asyncio.timeout(15):
            line = await reader.readline()
    except (OSError, TimeoutError):
        return None
    return int(line.split()[1]) if line else None


async def _read(stream: asyncio.StreamReader, log: list[str]) -> None:
    async for line in stream:
        log.append(line.decode())
