"""Blocks that wait to be read by another pod.

Rule of this room: a finished request's blocks stay held here until the reader says it is done, or until the lease
runs out. A reader's heartbeat renews (vllm/distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py). Reading
what has run out is *not* refused: the memory is read as it is by then, as RDMA would.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.engine.blocks import Block, BlockPool

HEARTBEAT_EXTENSION = 2 / 3
"""Part of the lease a heartbeat adds (30 s lease: 20 s from now on)."""


@dataclass(slots=True)
class Lease:
    blocks: Sequence[Block]
    expires_s: float
    duration_s: float


class LeaseTable:
    """Leases by the request id their owner was known under."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._leases: dict[str, Lease] = {}
        self._expiries: list[tuple[float, str]] = []
        """A heap that may name a lease too early or one that is gone; whoever looks puts that right."""
        self.num_expired = 0
        self.num_released_late = 0
        """Readers that said 'done' for a lease no longer there (`vllm:nixl_num_notifications_after_expiry`)."""

    def __len__(self) -> int:
        return len(self._leases)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._leases

    def holders(self) -> list[Sequence[Block]]:
        return [lease.blocks for lease in self._leases.values()]

    @property
    def num_blocks(self) -> int:
        return len({block.id for lease in self._leases.values() for block in lease.blocks})

    @property
    def next_expiry_s(self) -> float | None:
        heap = self._expiries
        while heap:
            expires_s, request_id = heap[0]
            lease = self._leases.get(request_id)
            if lease is not None and lease.expires_s == expires_s:
                return expires_s
            heapq.heappop(heap)
            if lease is not None and lease.expires_s > expires_s:
                heapq.heappush(heap, (lease.expires_s, request_id))
        return None

    def grant(self, request_id: str, blocks: Sequence[Block], now: float, duration_s: float) -> float:
        """Pin blocks (whose references the caller hands over). Returns the time of expiry."""
        self._leases[request_id] = Lease(blocks, now + duration_s, duration_s)
        heapq.heappush(self._expiries, (now + duration_s, request_id))
        return now + duration_s

    def renew(self, request_id: str, now: float) -> bool:
        lease = self._leases.get(request_id)
        if lease is None:
            return False
        lease.expires_s = max(lease.expires_s, now + lease.duration_s * HEARTBEAT_EXTENSION)
        return True

    def release(self, request_id: str) -> bool:
        """The reader is done (or will never come)."""
        lease = self._leases.pop(request_id, None)
        if lease is None:
            self.num_released_late += 1
            return False
        self._pool.release(lease.blocks)
        return True

    def expire(self, now: float) -> list[str]:
        """Free what has run out by `now`; returns the request ids."""
        expired = []
        while (expires_s := self.next_expiry_s) is not None and expires_s <= now:
            request_id = self._expiries[0][1]
            self._pool.release(self._leases.pop(request_id).blocks)
            expired.append(request_id)
        self.num_expired += len(expired)
        return expired
