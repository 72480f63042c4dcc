"""What a gateway loads: a process takes memory for every library it imports, whether it uses it or not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

HEAVY = (
    "aiohttp",
    "difflib",
    "dns",
    "httpx",
    "importlib.metadata",
    "matplotlib",
    "numpy",
    "opentelemetry",
    "redis",
    "rich",
    "zmq",
)
"""Libraries that some feature, some other command or some other program needs."""

SERVING = """
import asyncio, sys
import gateway.ops.cli
from gateway.ops.config import load
from gateway.ops.serve import running

async def main():
    flags = {"decode": ["http://127.0.0.1:9"], "prefill": ["http://127.0.0.1:8"], "policy": "ppd", "port": 0}
    config = load(None, {}, {**flags, "table_lookup": "interpolated"})
    async with running(config) as gateway:
        (table, *_) = gateway.gateway.parts.policy.tables.tables.values()
        assert table.interpolated(3000, 100, 100, 3.0).rate == 3.0
        assert table.nearest(3000, 100, 100, 3.0).rate == 4.0
        print(*sorted(sys.modules), sep="\\n")

asyncio.run(main())
"""

LOOKING = """
import asyncio, sys
from pathlib import Path
from gateway.core.canary import Canary
from gateway.ops.canary import CanaryKeeper
from gateway.ops.control import CanarySettings

keeper = CanaryKeeper(Canary(PERCENT), CanarySettings())
asyncio.run(keeper.look())
print(*sorted(sys.modules), sep="\\n")
"""


def loaded(program: str) -> set[str]:
    """The modules that it has imported in the end."""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_a_gateway_loads_nothing_that_only_others_need() -> None:
    found = loaded(SERVING)
    assert {"gateway.net.server", "gateway.net.events", "gateway.ops.canary", "lut.lookup", "uvloop"} <= found
    assert found.intersection(HEAVY) == set()


@pytest.mark.parametrize(("percent", "needed"), [(0.0, False), (10.0, True), (100.0, False)])
def test_the_numerical_library_comes_with_the_first_look_at_a_canary(percent: float, needed: bool) -> None:
    assert ("numpy" in loaded(LOOKING.replace("PERCENT", str(percent)))) is needed
