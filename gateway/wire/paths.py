"""The paths of vLLM that any healthy pod of the right model may answer, and those that are nobody's business here.

Rule of this room: what is not listed is a 404. vLLM's other paths belong to the operator (`/sleep`, `/wake_up`,
`/reset_*_cache`, `/collective_rpc`, `/pause`, `/resume`, `/abort_requests`, `/update_weights` and its kin, `/is_*`,
`/server_info`, `/scale_elastic_ep`, `/fault_tolerance/*`, `/v1/*load_lora_adapter`, `/start_profile`, `/stop_profile`,
`/load`, `/kv_event_sources`), skip the gateway's business (`/inference/*`, `/invocations`), or need a WebSocket
(`/v1/realtime`). From the routers of vLLM 0.32.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from gateway.wire.fields import Fields
from gateway.wire.legs import without_handover, without_session

_LOOK_UPS = (
    "/tokenize",
    "/detokenize",
    "/v1/messages/count_tokens",
    "/v1/messages/render",
    "/v1/responses/render",
    "/v1/chat/completions/render",
    "/v1/chat/completions/derender",
    "/v1/completions/render",
    "/v1/completions/derender",
)
_WORK = (
    "/v1/embeddings",
    "/v2/embed",
    "/score",
    "/v1/score",
    "/rerank",
    "/v1/rerank",
    "/v2/rerank",
    "/pooling",
    "/classify",
    "/generative_scoring",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/chat/completions/batch",
    "/v1/systemone",
    "/v2/chat",
    "/cohere/v2/chat",
    "/cohere/v2/chat/render",
    "/cohere/v2/embed",
)
PASS_THROUGH: dict[str, str] = {"/version": "GET", **dict.fromkeys((*_LOOK_UPS, *_WORK), "POST")}
"""Path → method."""

WORK = frozenset(_WORK)
"""Those that make a model compute."""

RESPONSE, CANCEL = "/v1/responses/{id}", "/v1/responses/{id}/cancel"
OF_A_RESPONSE: dict[str, tuple[str, ...]] = {RESPONSE: ("GET", "HEAD"), CANCEL: ("POST",)}
_RESPONSE = re.compile(r"/v1/responses/([A-Za-z0-9_.:-]{1,256})(/cancel)?")
_FORM_MODEL = re.compile(rb'name="?model"?\r\n(?:[^\r\n]+\r\n)*\r\n([^\r\n]{1,256})\r\n')


def response_of(path: str) -> tuple[str, str] | None:
    """(the path with `{id}` in it, the id) for the paths of one response."""
    found = None if path in PASS_THROUGH else _RESPONSE.fullmatch(path)
    return None if found is None else (CANCEL if found[2] else RESPONSE, found[1])


def clean_body(body: bytes) -> tuple[bytes, Fields]:
    """A JSON body without what names blocks or sessions on a pod, and its fields; any other body as it came."""
    try:
        fields = msgspec.json.decode(body, type=Fields)
    except (msgspec.DecodeError, RecursionError):
        return body, {}
    clean = without_session(without_handover(fields).fields)
    return (body if len(clean) == len(fields) and clean == fields else msgspec.json.encode(clean)), clean


def model_of_form(body: bytes) -> str | None:
    """The `model` of a multipart upload."""
    found = _FORM_MODEL.search(body)
    return None if found is None else found[1].decode(errors="replace")


def without_offers(body: bytes) -> bytes:
    """An answer without the hand-over parameters that a pod put anywhere into it."""
    if b'"kv_transfer_params":{' not in body:
        return body
    try:
        return msgspec.json.encode(_without(msgspec.json.decode(body)))
    except (msgspec.DecodeError, RecursionError):
        return body


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: None if name == "kv_transfer_params" else _without(item) for name, item in value.items()}
    return [_without(item) for item in value] if isinstance(value, list) else value
