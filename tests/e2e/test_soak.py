"""The soak in ten seconds, with either kind of pods."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import pytest

from loadtest.bench.proxy import build


async def soak(*flags: str) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadtest.soak", "--max-slope", "60000", "--json", *flags),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(180):
        out, err = await process.communicate()
    assert process.returncode == 0, (out.decode(), err.decode())
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.mark.parametrize("pods", ["mock", "simulated"])
async def test_seconds_of_kills_and_faults_leave_nothing_unexplained(pods: str) -> None:
    if pods == "mock" and build.compiler() is None:
        pytest.skip("NO C COMPILER: the soak before mocks is not tested here")
    found = await soak("--pods", pods, "--minutes", "0.17", "--rate", "8", "--ttl", "2", "--seed", "3")
    assert found["wrong"] == []
    assert found["unexplained"] == found["unexplained_notices"] == []
    assert sum(row["times"] for row in found["faults"].values()) >= 3
    assert any(kind.startswith("kill ") for kind in found["faults"])
    assert sum(row.get("noticed", 0) for row in found["faults"].values()) >= 1, "the gateway met some of it"
    assert found["outcomes"]["ok"] > 0.8 * found["requests"] > 100
    assert found["routes"]["local"] > 0 < found["routes"]["pd"]
    assert 0 < found["conversations_remembered"]["most"] < found["conversations"]
