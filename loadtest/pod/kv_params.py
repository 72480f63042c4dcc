"""`kv_transfer_params`, both ways.

Rule of this room: this object's JSON and nothing else (vllm/distributed/kv_transfer/kv_connector/v1/nixl/
pull_scheduler.py and push_scheduler.py, `request_finished`; mooncake/mooncake_connector.py). What does not make a
complete address counts as no address, as in vLLM. A simulated pod speaks every connector's language: the one it is
spoken to in.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from loadtest.engine.kv_connector import UNKNOWN_BLOCKS
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
    if params.get("transfer_id"):
        return _lender(params)
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


def _lender(params: Mapping[str, Any]) -> KvSource | None:
    """Mooncake: on P's leg only the transfer id is known, on D's also who has the blocks."""
    address = urlsplit(str(params.get("remote_bootstrap_addr") or ""))
    if params.get("do_remote_prefill") and not (address.hostname and params.get("remote_engine_id")):
        return None
    return KvSource(
        engine_id=str(params.get("remote_engine_id") or ""),
        request_id=str(params["transfer_id"]),
        host=address.hostname or "",
        port=address.port or 0,
        block_ids=UNKNOWN_BLOCKS,
        num_tokens=0,
    )


def write(offer: KvOffer | None, mode: str = "pull") -> dict[str, Any] | None:
    """The object in a pod's answer. mode: `transfer_mode`."""
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
        "transfer_mode": mode,
    }
    if source.cached_tokens is not None:
        params["remote_prefill_cached_tokens"] = source.cached_tokens
    return params
