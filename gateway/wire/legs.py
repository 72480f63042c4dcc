"""The bodies of the two legs, and what the client asked about usage.

Rule of this room: the prompt is the same on both legs, byte for byte; a client's `kv_transfer_params` reaches no pod.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import NamedTuple

import msgspec

from gateway.wire.contract import ASK_P_TO_KEEP_BLOCKS, Api, prefill_fields
from gateway.wire.fields import FALSE, TRUE, Fields, flag_of, is_true, join, raw, split, string_of, value_of

HANDOVER_FIELDS = ("kv_transfer_params", "ec_transfer_params")
NO_MODEL = "ppd-gateway-releases-a-handover"
"""A model no pod has."""

_REPORT_MODE = "kv_cache_report_mode"

_NAMING_BLOCKS = frozenset({*HANDOVER_FIELDS, "vllm_xargs"})
_INCLUDE_USAGE = raw({"include_usage": True})


class CleanBody(NamedTuple):
    """A client's body without anything that names blocks on a pod. `removed` lists what was taken out."""

    fields: Fields
    removed: tuple[str, ...]


def without_handover(fields: Fields) -> CleanBody:
    """Take the client's own hand-over parameters out: they could name another user's blocks.

    vLLM merges `vllm_xargs` into the same dictionary (`to_sampling_params`), so that door is shut as well. There a
    client could also have its prefix hits announced as if they were new blocks, which the gateway would count.
    """
    if _NAMING_BLOCKS.isdisjoint(fields):
        return CleanBody(fields, ())
    removed = [name for name in HANDOVER_FIELDS if name in fields]
    clean = {name: value for name, value in fields.items() if name not in HANDOVER_FIELDS}
    extra = fields.get("vllm_xargs")
    if extra is not None:
        try:
            inner = split(extra)
        except (msgspec.DecodeError, RecursionError):
            inner = {}
        kept = {name: value for name, value in inner.items() if name not in (*HANDOVER_FIELDS, _REPORT_MODE)}
        if len(kept) < len(inner):
            clean["vllm_xargs"] = msgspec.Raw(join(kept))
            removed.append("vllm_xargs")
    return CleanBody(clean, tuple(removed))


def release_body(handover: msgspec.Raw) -> bytes:
    """A completions request that a decode pod must refuse, and by refusing it makes P free the blocks (vLLM 0.32).

    A body that fails the schema is refused before D's connector hears of the hand-over, so P would hold its blocks
    until the lease ends; an unknown model is refused behind it.
    """
    return join({"model": raw(NO_MODEL), "prompt": raw("-"), "kv_transfer_params": handover})


def without_session(fields: Fields) -> Fields:
    """The body without its `session_id`, which the gateway has read and passes on as a header of its own making.

    vLLM prefers the body's over the header's (`generate/base/serving.py`, `_get_session_id`), so one tenant could
    otherwise put its blocks under another's name.
    """
    if string_of(fields, "session_id") is None:
        return fields
    return {name: value for name, value in fields.items() if name != "session_id"}


def isolated(fields: Fields, credential: str) -> Fields:
    """The body with a `cache_salt` that only this tenant has, so that nobody can time whether others' prompts are
    cached. A client's own salt still separates within the tenant.

    credential: the client's secret; a one-way hash of it leaves the gateway (256 bits, which vLLM hashes as text).
    """
    own = string_of(fields, "cache_salt") or ""
    salt = hashlib.sha256(f"ppd-gateway cache salt {len(own)}:{own}:{credential}".encode()).hexdigest()
    return {**fields, "cache_salt": raw(salt)}


def prefill_body(
    api: Api, fields: Fields, keep: Collection[str] = (), ask: msgspec.Raw = ASK_P_TO_KEEP_BLOCKS
) -> bytes:
    """The body of the leg to the prefill pod. ask: its `kv_transfer_params`."""
    return join(prefill_fields(api, fields, keep, ask))


def with_params(body: bytes, params: msgspec.Raw) -> bytes:
    """A leg's body with other `kv_transfer_params`."""
    return join({**split(body), "kv_transfer_params": params})


def with_report(fields: Fields) -> Fields:
    """Ask the pod to publish this request's prefix hits as KV events too (vllm/v1/core/kv_cache_manager.py)."""
    extra = value_of(fields, "vllm_xargs")
    inner = extra if isinstance(extra, dict) else {}
    return {**fields, "vllm_xargs": raw({**inner, _REPORT_MODE: "full"})}


def decode_body(fields: Fields, handover: msgspec.Raw | None, *, ask_usage: bool) -> bytes:
    """The body of the leg to a decode or replica pod.

    handover: P's `kv_transfer_params`, unread and unchanged; None for a request the pod serves by itself.
    ask_usage: ask a stream for its usage although the client did not.
    """
    leg = dict(fields)
    if ask_usage and wants_stream(fields):
        leg["stream_options"] = _with_usage(fields.get("stream_options"))
    if handover is not None:
        leg["kv_transfer_params"] = handover
    return join(leg)


def wants_stream(fields: Fields) -> bool:
    """True when the client asked for an SSE stream."""
    return flag_of(fields, "stream")


def wants_usage(fields: Fields) -> bool:
    """True when the client itself asked for the usage chunk of a stream."""
    options = value_of(fields, "stream_options")
    return isinstance(options, dict) and is_true(options.get("include_usage"))


def wants_continuous_usage(fields: Fields) -> bool:
    """True when the client asked for usage on every chunk of a stream."""
    options = value_of(fields, "stream_options")
    if not isinstance(options, dict) or not is_true(options.get("include_usage")):
        return False
    return is_true(options.get("continuous_usage_stats"))


def _with_usage(options: msgspec.Raw | None) -> msgspec.Raw:
    if options is None or bytes(options) == b"null":
        return _INCLUDE_USAGE
    try:
        inner = split(options)
    except (msgspec.DecodeError, RecursionError):
        return options
    if not flag_of(inner, "include_usage"):
        inner["include_usage"] = TRUE
        if "continuous_usage_stats" in inner:
            inner["continuous_usage_stats"] = FALSE
    return msgspec.Raw(join(inner))
