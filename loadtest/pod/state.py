"""One simulated pod, as its parts see it.

Rule of this room: data and the few counters that are not the engine's. No I/O.
"""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from loadtest.engine.realtime import RealtimeEngine
from loadtest.engine.transfer import Links
from loadtest.pod.errors import ApiError
from loadtest.pod.event_publisher import EventPublisher
from loadtest.pod.faults import FaultPlan
from loadtest.pod.generation import PodModel
from loadtest.pod.journal import Journal

Role = Literal["prefill", "decode", "replica"]
VERSION = "0.32.0+sim"


class Transfer(msgspec.Struct):
    """One KV read as the reader saw it. Failed reads have `ok` false and no bytes."""

    request_id: str
    remote_engine_id: str
    num_blocks: int
    num_bytes: int
    duration_s: float
    ok: bool


class Pulse:
    """Wakes whoever waits for the pod's state to change."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def fire(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def wait(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)


@dataclass(slots=True)
class PodState:
    role: Role
    engine_id: str
    model: PodModel
    running: RealtimeEngine
    links: Links
    journal: Journal = field(default_factory=Journal)
    faults: FaultPlan = field(default_factory=FaultPlan)
    transfers: list[Transfer] = field(default_factory=list)
    pulse: Pulse = field(default_factory=Pulse)
    server_load: int = 0
    events: EventPublisher | None = None
    scale_out: bool = False
    """`--enable-scale-out`."""
    prompt_tokens_details: bool = True
    """`--enable-prompt-tokens-details`."""
    transfer_mode: str = "pull"
    started_s: float = field(default_factory=time.time)

    @property
    def fingerprint(self) -> str:
        """`system_fingerprint`."""
        return f"vllm-{VERSION}-{self.engine_id[:8]}"

    @property
    def block_size(self) -> int:
        return self.running.engine.profile.cache.block_size

    def load_adapter(self, name: str, path: str, *, in_place: object = False) -> str:
        """`POST /v1/load_lora_adapter`; gives the name."""
        adapters = self.model.adapters
        if not name or not path:
            raise _unusable("Both 'lora_name' and 'lora_path' must be provided.")
        if name == self.model.name:
            raise _unusable(f"The lora adapter '{name}' conflicts with a served base model.")
        if name in adapters and not in_place:
            raise _unusable(
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set "
                "'load_inplace' to True."
            )
        adapters[name] = path
        return name

    def unload_adapter(self, name: str) -> str:
        """`POST /v1/unload_lora_adapter`; gives the name."""
        if not name:
            raise _unusable("'lora_name' needs to be provided to unload a LoRA adapter.")
        if self.model.adapters.pop(name, None) is None:
            raise ApiError(404, f"The lora adapter '{name}' cannot be found.", "NotFoundError")
        return name

    def summary(self) -> dict[str, object]:
        """`GET /sim/state`."""
        engine = self.running.engine
        leases = engine.connector.leases if engine.connector else None
        return {
            "role": self.role,
            "engine_id": self.engine_id,
            "running": engine.num_running,
            "waiting": engine.num_waiting,
            "requests": engine.num_requests,
            "blocks": len(engine.pool),
            "free_blocks": engine.pool.num_free,
            "cached_blocks": engine.pool.num_cached,
            "pinned_blocks": leases.num_blocks if leases is not None else 0,
            "leases": len(leases) if leases is not None else 0,
            "expired_leases": leases.num_expired if leases is not None else 0,
            "late_releases": leases.num_released_late if leases is not None else 0,
            "pulling": engine.connector.num_pulling if engine.connector else 0,
            "transfers": len(self.transfers),
            "preemptions": engine.stats.preemptions,
            "server_load": self.server_load,
        }


def _unusable(problem: str) -> ApiError:
    return ApiError(400, problem, "InvalidUserInput")
