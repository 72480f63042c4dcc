"""What an engine tells the world about its prefix cache.

Rule of this room: names, tags, order of fields and left-out defaults are vLLM's (vllm/distributed/kv_events.py), so
that `msgspec.msgpack` makes the same bytes of these as of vLLM's own. When an event is due is vLLM's too
(vllm/v1/core/block_pool.py): one `BlockStored` per run of blocks that a step filled, one `BlockRemoved` per block that
loses its name, even while another block of that name is left.
"""

from array import array
from typing import Any

import msgspec

from loadtest.engine.request import Job
from loadtest.engine.text import TokenText

MEDIUM = "GPU"
"""Also what a pod on CPU says."""

ExtraKeys = list[tuple[Any, ...] | None]


class KvEvent(msgspec.Struct, tag=True, omit_defaults=True):
    """A map with the class's name under `type`."""


class BlockStored(KvEvent):
    """Blocks that entered the prefix cache, in order; the first one follows `parent_block_hash`."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: ExtraKeys | None = None
    """One entry per block: None, or what its hash covers besides tokens (the cache salt, first block only)."""
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None


class BlockRemoved(KvEvent):
    """A block that lost its name."""

    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(KvEvent):
    """The prefix cache was reset."""


class KvEventBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    """The events of one step."""

    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


class KvEventQueue:
    """Events of the step being planned. Switched off it takes nothing and costs nothing."""

    def __init__(self, block_size: int, *, enabled: bool) -> None:
        self.enabled = enabled
        self._block_size = block_size
        self._events: list[KvEvent] = []

    def take(self) -> tuple[KvEvent, ...]:
        """Everything said since the last time."""
        if not self._events:
            return ()
        events, self._events = tuple(self._events), []
        return events

    def stored(self, job: Job, begin: int, end: int) -> None:
        """Blocks `begin .. end` of a request are in the cache."""
        if not self.enabled or begin >= end or not isinstance(job.text, TokenText):
            return
        size, salt, text = self._block_size, job.request.cache_salt, job.text
        extra_keys: ExtraKeys = [None] * (end - begin)
        if begin == 0 and salt:
            extra_keys[0] = (salt,)
        packed = array("I", bytes(text.chain.packed[4 * size * begin : 4 * size * end]))
        self._events.append(
            BlockStored(
                block_hashes=list(text.keys(begin, end)),
                parent_block_hash=text.key(begin - 1) if begin else None,
                token_ids=packed.tolist(),
                block_size=size,
                lora_id=None,
                medium=MEDIUM,
                lora_name=None,
                extra_keys=extra_keys,
                group_idx=0,
                kv_cache_spec_kind="full_attention",
                session_id=job.request.session_id,
            )
        )

    def removed(self, key: int) -> None:
        if self.enabled:
            self._events.append(BlockRemoved(block_hashes=[key], medium=MEDIUM, group_idx=0))

    def cleared(self) -> None:
        if self.enabled:
            self._events.append(AllBlocksCleared())
