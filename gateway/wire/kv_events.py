"""vLLM's KV cache events as they come over ZMQ (vllm/distributed/kv_events.py, vLLM 0.32).

Rule of this room: bytes in, structs out. A field this gateway does not need is not decoded: token ids above all,
which are most of a message and would be the text of a conversation.
"""

from __future__ import annotations

import msgspec
import xxhash

_HASH_BITS = (1 << 60) - 1
"""Two digits of a CPython integer: 32 bytes instead of 48. Two of a million blocks collide with chance 5e-7."""


class BadEventError(ValueError):
    """A message that is no batch of KV events; its text says why and quotes nothing."""


class BlockStored(msgspec.Struct, tag=True, gc=False):
    """Blocks that entered the prefix cache, each the parent of the next.

    session_id: the `X-Session-ID` of the request that stored them. group_idx: the KV cache group, None for the only
    one. block_size: tokens per block.
    """

    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    block_size: int
    medium: str | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    session_id: str | None = None


class BlockRemoved(msgspec.Struct, tag=True, gc=False):
    """Blocks that were evicted: one physical copy of each hash."""

    block_hashes: list[int | bytes]
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None


class AllBlocksCleared(msgspec.Struct, tag=True, gc=False):
    """The whole prefix cache was reset."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class Batch(msgspec.Struct, array_like=True, gc=False):
    """The events of one scheduler step. ts: the pod's wall clock, seconds."""

    ts: float
    events: list[Event]
    data_parallel_rank: int | None = None


_decoder = msgspec.msgpack.Decoder(Batch)


def read_batch(payload: bytes) -> Batch:
    """Decode one message. Raises BadEventError."""
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadEventError(f"not a KV event batch ({type(error).__name__})") from None


def read_sequence(frame: bytes) -> int:
    """The sequence number of a message, negative for the end of a replay. Raises BadEventError."""
    if len(frame) != 8:
        raise BadEventError(f"a sequence number has 8 bytes, not {len(frame)}")
    return int.from_bytes(frame, "big", signed=True)


def write_sequence(number: int) -> bytes:
    """A replay request: the first sequence number wanted."""
    return number.to_bytes(8, "big")


def short_hash(block_hash: int | bytes) -> int:
    """A block hash as 60 bits, whether the pod publishes integers or the full digest
    (`VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES`)."""
    if isinstance(block_hash, int):
        return block_hash & _HASH_BITS
    return xxhash.xxh3_64_intdigest(block_hash) & _HASH_BITS


class EventSource(msgspec.Struct):
    """Where a DP rank publishes, as `GET /kv_event_sources` says it (KVEventsConfig)."""

    enable_kv_cache_events: bool = False
    publisher: str | None = None
    endpoint: str = ""
    replay_endpoint: str | None = None
    topic: str = ""


def read_sources(body: bytes) -> dict[int, EventSource]:
    """The sources of a pod by DP rank; empty where events are off. Raises BadEventError."""
    try:
        found = msgspec.json.decode(body, type=dict[int, EventSource] | None) or {}
    except msgspec.DecodeError:
        raise BadEventError("not a list of KV event sources") from None
    return {
        rank: source for rank, source in found.items() if source.enable_kv_cache_events and source.publisher == "zmq"
    }
