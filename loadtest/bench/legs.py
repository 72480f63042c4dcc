"""What starting both legs at once saves: the same requests through the same simulated pods, one leg after the other
(NIXL pull) and both together (Mooncake).

Rule of this room: real HTTP, simulated engines with the timing of a profile; the two ways take turns, request by
request, so that whatever else the machine does strikes both alike. Only their ratio means anything elsewhere.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
from contextlib import AsyncExitStack
from typing import Any

from gateway.net.records import IdleObserver
from gateway.ops.config import load
from gateway.ops.serve import running
from loadtest.pod.simulated import SimulatedPod

WAYS = ("nixl", "mooncake")
PROMPTS = (256, 2048, 6144)
"""Tokens of the prompt."""

_TOKEN_IDS = range(20, 120)


class _Up(IdleObserver):
    """Waits for pods."""

    def __init__(self) -> None:
        self.up: set[str] = set()
        self.changed = asyncio.Event()

    def pod_changed(self, pod: str, role: str, up: bool, detail: str) -> None:
        self.up.add(pod)
        self.changed.set()


async def _ttft_s(reader_writer: tuple[asyncio.StreamReader, asyncio.StreamWriter], body: bytes) -> float:
    """From the request to the first event that holds text."""
    reader, writer = reader_writer
    began = asyncio.get_running_loop().time()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    writer.write(head.encode() + b"\r\n\r\n" + body)
    if b" 200 " not in await reader.readuntil(b"\r\n"):
        raise RuntimeError("the gateway did not answer with 200")
    await reader.readuntil(b'data: {"')
    first = asyncio.get_running_loop().time() - began
    await reader.readuntil(b"0\r\n\r\n")
    return first


async def measure(rounds: int, profile: str) -> dict[str, dict[str, float]]:
    """Per prompt length: median milliseconds to the first token of each way, and their ratio."""
    async with AsyncExitStack() as stack:
        make = [SimulatedPod(role=role, profile=profile) for role in ("prefill", "decode")]
        prefill, decode = [await stack.enter_async_context(pod) for pod in make]
        connections = {}
        for way in WAYS:
            settings: dict[str, Any] = {
                "prefill": [prefill.url],
                "decode": [decode.url],
                "policy": "pd",
                "port": 0,
                "selftest": False,
                "handover": way,
            }
            if way == "mooncake":
                settings["mooncake_bootstraps"] = [f"{prefill.url}={prefill.url}"]
            up = _Up()
            gateway = await stack.enter_async_context(running(load(None, {}, settings), up))
            async with asyncio.timeout(30):
                while len(up.up) < 2:
                    up.changed.clear()
                    await up.changed.wait()
            port = int(gateway.url.rpartition(":")[2])
            connections[way] = await asyncio.open_connection("127.0.0.1", port)
        found = {}
        for tokens in PROMPTS:
            times: dict[str, list[float]] = {way: [] for way in WAYS}
            for number in range(rounds):
                for way in WAYS:
                    seed = random.Random(f"{tokens} {number} {way}")
                    prompt = seed.choices(_TOKEN_IDS, k=tokens)
                    body = {"model": "sim", "prompt": prompt, "max_tokens": 2, "stream": True, "cache_salt": way}
                    times[way].append(await _ttft_s(connections[way], json.dumps(body).encode()))
            medians = {f"{way}_ms": 1e3 * statistics.median(times[way]) for way in WAYS}
            found[str(tokens)] = {**medians, "ratio": medians["mooncake_ms"] / medians["nixl_ms"]}
        for _, writer in connections.values():
            writer.close()
    return found


def add_command(commands: Any) -> None:
    """Mount the benchmark."""
    parser = commands.add_parser("legs", help="what starting both legs at once saves of the time to the first token")
    parser.add_argument("--rounds", type=int, default=15, help="requests per way and prompt length")
    parser.add_argument("--profile", default="h100-llama3.1-8b", help="timing of the simulated pods")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.set_defaults(run=_run)


def _run(options: Any) -> int:
    found = asyncio.run(measure(options.rounds, options.profile))
    print(f"{'prompt':>7} {'one after the other':>20} {'both at once':>13} {'ratio':>6}")
    for tokens, row in found.items():
        print(f"{tokens:>7} {row['nixl_ms']:17.1f} ms {row['mooncake_ms']:10.1f} ms {row['ratio']:6.2f}")
    if options.json:
        print(json.dumps(found))
    return 0
