"""The lines of the README, run as they stand there but for names and ports."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import sys
from pathlib import Path

import openai
import pytest

from tests.vllm.support import VllmCluster

pytestmark = pytest.mark.vllm

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
ON_EVERY_POD = {"--host", "--port"}
"""Flags whose value is a place."""


def command(marker: str) -> list[str]:
    """The README's command that holds the marker, as an argument vector without its variables."""
    blocks = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines() if marker in line]
    assert len(lines) == 1, f"README has {len(lines)} lines with {marker}"
    words = shlex.split(lines[0])
    return words[next(at for at, word in enumerate(words) if "=" not in word) :]


def flags(words: list[str]) -> dict[str, str | None]:
    """Flag → value, None for a switch."""
    found: dict[str, str | None] = {}
    for at, word in enumerate(words):
        if word.startswith("--"):
            after = words[at + 1] if at + 1 < len(words) else "--"
            found[word] = None if after.startswith("--") else after
    return found


@pytest.mark.parametrize("role", ["kv_producer", "kv_consumer"])
def test_the_pods_here_run_with_every_flag_the_readme_gives(vllm_cluster: VllmCluster, role: str) -> None:
    """The pods of these tests have more flags (CPU, tools, events), but all of the README's, with its values."""
    pod = vllm_cluster.prefill if role == "kv_producer" else vllm_cluster.decode[0]
    wanted, used = flags(command(role)), flags(pod.command)
    assert command(role)[:2] == ["vllm", "serve"]
    assert set(wanted) <= set(used)
    for flag, value in wanted.items():
        if flag in ON_EVERY_POD:
            continue
        if flag == "--kv-transfer-config":
            asked, given = json.loads(value or ""), json.loads(used[flag] or "")
            assert asked.items() <= given.items()
        else:
            assert value == used[flag]


async def test_the_gateways_line_serves_two_turns(vllm_cluster: VllmCluster) -> None:
    words = command("ppd-gateway serve")
    places = {
        "http://HOST_P:8100": vllm_cluster.prefill.url,
        "http://HOST_D:8200": vllm_cluster.decode[0].url,
        "8000": "0",
    }
    assert set(places) <= set(words)
    arguments = [places.get(word, word) for word in words[1:]]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway.ops.cli", *arguments, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(120):
            port = await _port(process.stderr)
            await _up(process.stderr, 2)
            turns = await _two_turns(port, process.stderr)
    finally:
        process.terminate()
        await process.wait()
    assert [route for route, _ in turns] == ["pd", "local"], turns


async def _port(log: asyncio.StreamReader) -> int:
    while line := (await log.readline()).decode():
        if found := re.search(r" on http://127\.0\.0\.1:(\d+),", line):
            return int(found[1])
    raise AssertionError("the gateway ended")


async def _up(log: asyncio.StreamReader, pods: int) -> None:
    while pods and (line := (await log.readline()).decode()):
        pods -= " up=1 " in line
    assert pods == 0


async def _two_turns(port: int, log: asyncio.StreamReader) -> list[tuple[str, str]]:
    """Route of each, and the line of the log that says why."""
    messages = [{"role": "user", "content": "Tell me of the river that runs by the engine house. " * 12}]
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", timeout=100) as client:
        for _ in range(2):
            answer = await client.chat.completions.create(
                model="tiny",
                messages=messages,  # type: ignore[arg-type]
                max_tokens=16,
                temperature=0,
            )
            messages += [
                {"role": "assistant", "content": answer.choices[0].message.content or ""},
                {"role": "user", "content": "And then?"},
            ]
    turns: list[tuple[str, str]] = []
    while len(turns) < 2 and (line := (await log.readline()).decode()):
        turns += [(route, line) for route in re.findall(r" path=/v1/chat/completions .*route=(\w+) ", line)]
    return turns
