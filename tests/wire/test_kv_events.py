"""KV events as they come over the wire: bytes made by structs of vLLM's own shape, and bytes that are none."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import xxhash

from gateway.wire.kv_events import (
    AllBlocksCleared,
    BadEventError,
    BlockRemoved,
    BlockStored,
    EventSource,
    read_batch,
    read_sequence,
    read_sources,
    short_hash,
    write_sequence,
)

# vllm/distributed/kv_events.py, vLLM 0.32: fields, order, defaults and options


ExternalBlockHash = bytes | int


class KVCacheEvent(msgspec.Struct, omit_defaults=True, gc=False, tag=lambda name: name.removeprefix("Their")):
    pass


class TheirBlockStored(KVCacheEvent):
    block_hashes: list[ExternalBlockHash]
    parent_block_hash: ExternalBlockHash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None


class TheirBlockRemoved(KVCacheEvent):
    block_hashes: list[ExternalBlockHash]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class TheirAllBlocksCleared(KVCacheEvent):
    pass


class TheirBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[Any]
    data_parallel_rank: int | None = None


def wire(*events: Any, rank: int | None = 0) -> bytes:
    return msgspec.msgpack.encode(TheirBatch(1700000000.5, list(events), rank))


def test_a_stored_run_is_read_without_its_tokens() -> None:
    stored = TheirBlockStored(
        [11, b"\x01" * 32],
        7,
        list(range(32)),
        16,
        None,
        "GPU",
        None,
        extra_keys=[("salt",), None],
        group_idx=2,
        kv_cache_spec_kind="sliding_window",
        kv_cache_spec_sliding_window=1024,
        locality="LOCAL",
        ownership="tier",
        session_id="ab" * 16,
    )
    batch = read_batch(wire(stored))
    assert batch.ts == 1700000000.5
    assert batch.data_parallel_rank == 0
    assert batch.events == [
        BlockStored([11, b"\x01" * 32], 7, 16, "GPU", 2, "sliding_window", 1024, locality="LOCAL", session_id="ab" * 16)
    ]
    assert "token_ids" not in BlockStored.__struct_fields__


def test_defaults_that_are_left_out_are_none() -> None:
    (stored,) = read_batch(wire(TheirBlockStored([1], None, [0] * 16, 16, None, None, None))).events
    assert stored == BlockStored([1], None, 16)
    (removed,) = read_batch(wire(TheirBlockRemoved([1, 2], "CPU"))).events
    assert removed == BlockRemoved([1, 2], "CPU")


def test_a_batch_holds_several_kinds_in_order() -> None:
    batch = read_batch(
        wire(
            TheirAllBlocksCleared(),
            TheirBlockRemoved([b"\x02" * 32], "GPU", group_idx=1),
            TheirBlockStored([3], b"\x02" * 32, [], 32, 5, "GPU", "lora"),
            rank=3,
        )
    )
    assert batch.data_parallel_rank == 3
    assert batch.events == [
        AllBlocksCleared(),
        BlockRemoved([b"\x02" * 32], "GPU", 1),
        BlockStored([3], b"\x02" * 32, 32, "GPU"),
    ]


def test_a_batch_without_rank_or_events_is_one() -> None:
    assert read_batch(wire(rank=None)).data_parallel_rank is None
    assert read_batch(msgspec.msgpack.encode([1.0, []])).events == []


def test_fields_of_tomorrow_are_no_surprise() -> None:
    event = {"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU", "reason": "x"}
    assert read_batch(msgspec.msgpack.encode([1, [event], 0, "more"])).events == [BlockRemoved([1], "GPU")]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"no msgpack",
        wire(TheirAllBlocksCleared())[:-1],
        msgspec.msgpack.encode(None),
        msgspec.msgpack.encode({"ts": 1.0, "events": []}),
        msgspec.msgpack.encode([1.0]),
        msgspec.msgpack.encode(["now", []]),
        msgspec.msgpack.encode([1.0, [{"type": "BlockMoved"}]]),
        msgspec.msgpack.encode([1.0, [{"type": "BlockStored", "block_hashes": [1]}]]),
        msgspec.msgpack.encode([1.0, [{"type": "BlockRemoved", "block_hashes": "secret words"}]]),
        msgspec.msgpack.encode([1.0, [{"type": "BlockRemoved", "block_hashes": [1.5]}]]),
        msgspec.msgpack.encode([1.0, [["BlockRemoved", [1]]]]),
        b"\x91" * 100_000,
    ],
)
def test_what_is_no_batch_says_so_and_quotes_nothing(payload: bytes) -> None:
    with pytest.raises(BadEventError, match=r"^not a KV event batch \(\w+\)$"):
        read_batch(payload)


# Sequence numbers


@pytest.mark.parametrize("number", [0, 1, 255, 256, 2**40, 2**63 - 1])
def test_a_sequence_number_is_eight_bytes_big_end_first(number: int) -> None:
    assert write_sequence(number) == number.to_bytes(8, "big")
    assert read_sequence(write_sequence(number)) == number


def test_the_end_of_a_replay_is_negative() -> None:
    assert read_sequence(b"\xff" * 8) == -1


@pytest.mark.parametrize("frame", [b"", b"\x00" * 7, b"\x00" * 9, b"kv@decode-0"])
def test_a_sequence_number_of_another_length_is_none(frame: bytes) -> None:
    with pytest.raises(BadEventError, match=f"^a sequence number has 8 bytes, not {len(frame)}$"):
        read_sequence(frame)


# Hashes


def test_a_hash_is_sixty_bits_whichever_way_it_is_published() -> None:
    assert short_hash(5) == 5
    assert short_hash(2**60 - 1) == 2**60 - 1
    assert short_hash(2**64 - 1) == 2**60 - 1, "the lower 60"
    assert short_hash(2**60 + 7) == 7
    digest = bytes(range(32))
    assert short_hash(digest) == xxhash.xxh3_64_intdigest(digest) % 2**60
    assert short_hash(digest) != short_hash(digest[::-1])


# Sources

REAL = (
    b'{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:46239",'
    b'"replay_endpoint":"tcp://127.0.0.1:50597","buffer_steps":10000,"hwm":100000,"max_queue_size":100000,'
    b'"topic":"kv@decode-0"}}'
)


def source(**more: Any) -> dict[str, Any]:
    return {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": "tcp://*:1", **more}


def test_the_sources_of_a_real_pod() -> None:
    assert {rank: msgspec.structs.asdict(found) for rank, found in read_sources(REAL).items()} == {
        0: {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": "tcp://*:46239",
            "replay_endpoint": "tcp://127.0.0.1:50597",
            "topic": "kv@decode-0",
        }
    }


@pytest.mark.parametrize("body", [b"{}", b"null"])
def test_a_pod_without_events_has_no_sources(body: bytes) -> None:
    assert read_sources(body) == {}


def test_every_rank_has_its_own_and_only_those_that_publish_count() -> None:
    body = msgspec.json.encode(
        {
            "0": source(),
            "1": source(endpoint="tcp://*:2", topic="t", replay_endpoint=None),
            "2": source(enable_kv_cache_events=False),
            "3": source(publisher="null"),
            "4": source(publisher=None),
            "5": {},
        }
    )
    assert read_sources(body) == {
        0: EventSource(True, "zmq", "tcp://*:1"),
        1: EventSource(True, "zmq", "tcp://*:2", None, "t"),
    }


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"<html>", b'"x"', b'{"first":{}}', b'{"0":null}', b'{"0":{"endpoint":5}}', b"{" * 100_000]
)
def test_what_is_no_list_of_sources_says_so(body: bytes) -> None:
    with pytest.raises(BadEventError, match=r"^not a list of KV event sources$"):
        read_sources(body)
