"""The words of a readback: P reads a conversation's history from the pod that holds it instead of computing it.

Rule of this room: P believes the blocks it is pointed to and compares no tokens (vllm.md, "Readback trusts you
blindly"), so nothing here passes on blocks that somebody else described. The new prompt is tokenised once; the holder
is asked for the blocks of exactly those ids (its prefix cache compares them); and both legs run on those ids. A request
whose ids the gateway cannot be sure of gets no readback.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from gateway.wire.contract import ASK_P_TO_KEEP_BLOCKS, BOTH, PREFILL_LEG, Api
from gateway.wire.fields import FALSE, TRUE, Fields, is_null, join, raw, value_of

RENDER_PATHS = {
    Api.CHAT: "/v1/chat/completions/render",
    Api.COMPLETIONS: "/v1/completions/render",
    Api.MESSAGES: "/v1/messages/render",
    Api.RESPONSES: "/v1/responses/render",
}
"""Exact for any request, where a pod serves it (`--enable-scale-out`)."""

TOKENIZE_PATH = "/tokenize"

TOKENIZES = {
    Api.CHAT: (
        "messages",
        "tools",
        "chat_template",
        "chat_template_kwargs",
        "add_generation_prompt",
        "continue_final_message",
        "add_special_tokens",
    ),
    Api.COMPLETIONS: ("prompt", "add_special_tokens"),
}
"""What `/tokenize` understands of the fields that shape a prompt (vllm/entrypoints/serve/tokenize/protocol.py). How a
pod makes a chat of the other APIs' requests is its own business, and changes with its version."""

_SHAPES_NO_PROMPT = frozenset(row.field for row in PREFILL_LEG if row.apis & BOTH and row.field != "tool_choice") | {
    "model",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "length_penalty",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "parallel_tool_calls",
    "return_tokens_as_token_ids",
    "cache_salt",
    "priority",
    "request_id",
    "conversation_id",
    "session_id",
    "vllm_xargs",
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
}

_RECALL_FIELDS = ("model", "cache_salt", "priority")


@dataclass(frozen=True, slots=True)
class IdsRequest:
    """How to ask a pod for the token ids of a prompt."""

    path: str
    body: bytes


def render_request(api: Api, fields: Fields) -> IdsRequest:
    """The exact way."""
    body = {name: value for name, value in fields.items() if name != "stream_options"}
    return IdsRequest(RENDER_PATHS[api], join({**body, "stream": FALSE}))


def tokenize_request(api: Api, fields: Fields) -> IdsRequest | None:
    """The way every pod has; None when something may shape the prompt that `/tokenize` does not know."""
    known = TOKENIZES.get(api)
    if known is None:
        return None
    for name, value in fields.items():
        if name not in known and name not in _SHAPES_NO_PROMPT and not is_null(value):
            if name == "tool_choice" and value_of(fields, name) != "none":
                continue
            return None
    body = {name: fields[name] for name in ("model", *known) if name in fields and not is_null(fields[name])}
    return IdsRequest(TOKENIZE_PATH, join(body))


def own_ids(fields: Fields) -> list[int] | None:
    """The ids of a completions prompt that came as ids; None when a field may make others of them (truncation)."""
    if tokenize_request(Api.COMPLETIONS, fields) is None:
        return None
    prompt = value_of(fields, "prompt")
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        return prompt
    return None


def renders_none(status: int, answer: bytes) -> bool:
    """True for the answer of a pod that has no such endpoint, or not switched on; vLLM's own words are about the
    request."""
    return status in (403, 405) or (status == 404 and b'"error"' not in answer)


class _Ids(msgspec.Struct):
    token_ids: list[int] | None = None
    tokens: list[int] | None = None


def read_ids(body: bytes) -> list[int] | None:
    """The ids in a pod's answer to either request; None when there are none."""
    try:
        if body.lstrip()[:1] == b"[":
            found = msgspec.json.decode(body, type=list[_Ids])
            answer = found[0] if len(found) == 1 else _Ids()
        else:
            answer = msgspec.json.decode(body, type=_Ids)
    except (msgspec.DecodeError, RecursionError):
        return None
    return answer.token_ids or answer.tokens or None


def recall_body(fields: Fields, ids: list[int]) -> bytes:
    """Ask the pod that holds a conversation for the blocks of these ids: a completion of one token that it keeps.

    What it has of them it takes from its prefix cache, which compares ids, cache salt and model; the rest it computes.
    """
    body: Fields = {name: fields[name] for name in _RECALL_FIELDS if name in fields}
    return join(
        {
            **body,
            "prompt": raw(ids),
            "max_tokens": raw(1),
            "temperature": raw(0),
            "ignore_eos": TRUE,
            "kv_transfer_params": ASK_P_TO_KEEP_BLOCKS,
        }
    )


def readback_params(recalled: msgspec.Raw, ids: list[int]) -> msgspec.Raw | None:
    """`kv_transfer_params` for P, from those with which the holder answered a recall; None when they are none."""
    try:
        params = msgspec.json.decode(recalled, type=Fields)
    except (msgspec.DecodeError, RecursionError):
        return None
    if is_null(params.get("remote_block_ids")) or is_null(params.get("remote_engine_id")):
        return None
    params |= {"do_remote_decode": TRUE, "do_remote_prefill": FALSE, "prompt_token_ids": raw(ids)}
    return msgspec.Raw(join(params))


def on_ids(api: Api, fields: Fields, ids: list[int]) -> Fields:
    """The body with the prompt as ids. Completions take them only as the prompt itself, all others in
    `kv_transfer_params` (vllm/renderers/online_renderer.py)."""
    return {**fields, "prompt": raw(ids)} if api is Api.COMPLETIONS else fields


def with_ids(handover: msgspec.Raw, ids: list[int]) -> msgspec.Raw:
    """P's hand-over for D, with the ids it is about. Raises nothing: what is no object stays as it is."""
    try:
        params = msgspec.json.decode(handover, type=Fields)
    except (msgspec.DecodeError, RecursionError):
        return handover
    return msgspec.Raw(join({**params, "prompt_token_ids": raw(ids)}))


def release_params(offered: msgspec.Raw) -> msgspec.Raw | None:
    """Turn a decode pod's own offer (`bidirectional_kv_xfer`) into parameters that make another pod tell it to free.

    None when it is no such offer.
    """
    try:
        params = msgspec.json.decode(offered, type=Fields)
    except (msgspec.DecodeError, RecursionError):
        return None
    if bytes(params.get("do_remote_decode", b"")) != b"true":
        return None
    return msgspec.Raw(join({**params, "do_remote_decode": FALSE, "do_remote_prefill": TRUE}))
