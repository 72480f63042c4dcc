"""`kv_transfer_params`, both ways.

Rule of this room: this object's JSON and nothing else (vllm/distributed/kv_transfer/kv_connector/v1/nixl/
pull_scheduler.py, `request_finished`). What does not make a complete address counts as no address, as in vLLM.
"""

from collections.abc import Mapping
from typing import Any

from loadtest.engine.request import KvIntent, KvOffer, KvSource

_ADDRESS = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port")


def read(params: Mapping[str, Any] | None) -> KvIntent | None:
    """What a request asks for; None when it says nothing about KV."""
    if not params:
        return None
    return KvIntent(
        do_remote_decode=bool(params.get("do_remote_decode")),
        do_remote_prefill=bool(params.get("do_remote_prefill")),
        source=_source(params),
    )


def _source(params: Mapping[str, Any]) -> KvSource | None:
    groups = params.get("remote_block_ids")
    if not groups or any(params.get(name) is None for name in _ADDRESS):
        return None
    blocks = groups[0] if isinstance(groups[0], list) else groups
    cached = params.get("remote_prefill_cached_tokens")
    return KvSource(
        engine_id=str(params["remote_engine_id"]),
        request_id=str(params["remote_request_id"]),
        host=str(params["remote_host"]),
        port=int(params["remote_port"]),
        block_ids=tuple(int(block) for block in blocks),
        num_tokens=int(params.get("remote_num_tokens") or 0),
        expires_s=params.get("remote_blocks_expiry_time"),
        cached_tokens=cached if isinstance(cached, int) else None,
    )


def write(offer: KvOffer | None) -> dict[str, Any] | None:
    """The object in a pod's answer."""
    if offer is None:
        return None
    source = offer.source
    params: dict[str, Any] = {
        "do_remote_prefill": offer.from_prefill,
        "do_remote_decode": not offer.from_prefill,
        "remote_block_ids": [list(source.block_ids)],
        "remote_engine_id": source.engine_id,
        "remote_request_id": source.request_id,
        "remote_host": source.host,
        "remote_port": source.port,
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": source.num_tokens,
        "remote_blocks_expiry_time": source.expires_s,
        "transfer_mode": "pull",
    }
    if source.cached_tokens is not None:
        params["remote_prefill_cached_tokens"] = source.cached_tokens
    return params
