"""Simulated pods with faults, and what the doctor finds of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from gateway.ops.config import load
from gateway.ops.doctor.examine import examine
from gateway.ops.doctor.findings import Finding, Level
from gateway.ops.doctor.options import Options
from loadtest.pod.simulated import SimulatedPod

GOOD: dict[str, Any] = {"kv_events": True, "scale_out": True}


@dataclass
class Ward:
    """Pods, and the doctor."""

    prefill: list[SimulatedPod]
    decode: list[SimulatedPod]

    async def examine(self, options: Options | None = None, **settings: Any) -> list[Finding]:
        """What is found with these settings."""
        given = {
            "prefill": [pod.url for pod in self.prefill],
            "decode": [pod.url for pod in self.decode],
            "policy": "local",
            **settings,
        }
        return await examine(load(None, {}, given), options or Options(streams=10, limit_s=3.0))


@asynccontextmanager
async def ward(
    prefill: Sequence[dict[str, Any]] = ({},), decode: Sequence[dict[str, Any]] = ({},)
) -> AsyncIterator[Ward]:
    """Pods with options other than good ones."""
    async with AsyncExitStack() as stack:
        made = Ward([], [])
        for role, wanted, into in (("prefill", prefill, made.prefill), ("decode", decode, made.decode)):
            for options in wanted:
                pod = SimulatedPod(**{"role": role, **GOOD, **options})
                into.append(await stack.enter_async_context(pod))
        yield made


def troubles(findings: Sequence[Finding]) -> list[tuple[str, str, str]]:
    """(level, check, about) of what is not ok."""
    return [(str(f.level), f.check, f.about) for f in findings if f.level is not Level.OK]


def changes(findings: Sequence[Finding]) -> list[str]:
    """What is to be changed."""
    return [finding.change for finding in findings if finding.change is not None]
