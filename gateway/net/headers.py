"""Which headers cross the gateway, in either direction.

Rule of this room: hop-by-hop headers never do (RFC 9110 §7.6.1), identity headers are the gateway's own, and a
client cannot pick an engine behind the gateway's back.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import AnyStr

from gateway.net.exchange import Headers, RawHeaders

HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
REQUEST_ID = "X-Request-Id"
SESSION_ID = "X-Session-ID"
DATA_PARALLEL_RANK = "X-data-parallel-rank"
PRIORITY = "X-Vllm-Priority"
CLASS = "X-PPD-Class"
WEIGHTS = "X-PPD-Weights"
ROUTE = "X-PPD-Route"
REASON = "X-PPD-Reason"

GIVEN_REQUEST_ID = REQUEST_ID.lower()
GIVEN_CLASS = CLASS.lower()
GIVEN_WEIGHTS = WEIGHTS.lower()
CONVERSATION_HEADERS = (SESSION_ID.lower(), "x-conversation-id")
"""As these are found in `Incoming.headers`."""

_NOT_TO_PODS = HOP_BY_HOP | {
    "host",
    "content-length",
    "accept-encoding",
    "expect",
    "x-request-id",
    "x-session-id",
    "x-data-parallel-rank",
    "x-ppd-weights",
    "x-ppd-class",
    "x-ppd-route",
    "x-ppd-reason",
}
_NOT_TO_CLIENTS = HOP_BY_HOP | {
    "content-length",
    "x-request-id",
    "x-session-id",
    "x-data-parallel-rank",
    "x-ppd-weights",
    "x-ppd-route",
    "x-ppd-reason",
}
_RAW_NOT_TO_CLIENTS = frozenset(name.encode() for name in _NOT_TO_CLIENTS)
_OF_THE_CONNECTION = HOP_BY_HOP | {"host", "content-length", "expect"}
_RAW_OF_THE_CONNECTION = frozenset(name.encode() for name in _OF_THE_CONNECTION)
_RAW_REQUEST_ID = REQUEST_ID.encode()
CREDENTIALS = frozenset({"authorization", "x-api-key"})
"""Where OpenAI's and Anthropic's clients put their key."""
_UNCOMPRESSED = ("Accept-Encoding", "identity")
_SANE_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")


def request_id_of(sent: str | None) -> str:
    """The client's request id if it is fit for logs and headers, else a new one."""
    return sent if sent and _SANE_ID.fullmatch(sent) else os.urandom(16).hex()


def to_pods(items: Headers) -> Headers:
    """The headers that all legs of a request begin with: the client's own, less those that end here."""
    kept = _without(items, _NOT_TO_PODS, "connection")
    kept.append(_UNCOMPRESSED)
    return kept


def of_leg(
    begun: Headers, request_id: str, session_id: str | None, rank: int | None = None, priority: int | None = None
) -> list[tuple[str, str]]:
    """The headers of a leg: `to_pods`, plus the ids of request and conversation.

    rank: the DP rank that is to take it, where one holds the conversation. priority: for pods that schedule by it.
    """
    kept = [*begun, (REQUEST_ID, request_id)]
    if session_id is not None:
        kept.append((SESSION_ID, session_id))
    if rank is not None:
        kept.append((DATA_PARALLEL_RANK, str(rank)))
    if priority is not None:
        kept.append((PRIORITY, str(priority)))
    return kept


def to_pod(items: Headers, request_id: str, session_id: str | None, rank: int | None = None) -> list[tuple[str, str]]:
    """The headers of a request that has one leg."""
    return of_leg(to_pods(items), request_id, session_id, rank)


def to_outside(items: Headers, request_id: str) -> list[tuple[str, str]]:
    """The headers of a request to the operator's own proxy: the client's own, and an id if it gave none."""
    kept = _without(items, _OF_THE_CONNECTION, "connection")
    if not any(name.lower() == "x-request-id" for name, _ in kept):
        kept.append((REQUEST_ID, request_id))
    return kept


def from_outside(items: RawHeaders) -> RawHeaders:
    """The headers of that proxy's answer, as they came."""
    return _without(items, _RAW_OF_THE_CONNECTION, b"connection")


def signed(items: Headers, key: str) -> list[tuple[str, str]]:
    """The headers of a call to a pod with the pods' key, and no other."""
    return [*(item for item in items if item[0].lower() not in CREDENTIALS), ("Authorization", f"Bearer {key}")]


def to_client(items: RawHeaders, request_id: str) -> list[tuple[bytes, bytes]]:
    """The headers of an answer: the pod's own plus the request id."""
    kept = _without(items, _RAW_NOT_TO_CLIENTS, b"connection")
    kept.append((_RAW_REQUEST_ID, request_id.encode()))
    return kept


def raw(items: Headers) -> list[tuple[bytes, bytes]]:
    """Headers of the gateway's own as they go out; a letter that no header can have becomes a question mark."""
    return [(name.encode("latin-1", "replace"), value.encode("latin-1", "replace")) for name, value in items]


def _without(
    items: Sequence[tuple[AnyStr, AnyStr]], names: frozenset[AnyStr], connection: AnyStr
) -> list[tuple[AnyStr, AnyStr]]:
    """The headers less those names and what the header `connection` names. It is one of the names."""
    kept, values = [], []
    for item in items:
        name = item[0].lower()
        if name not in names:
            kept.append(item)
        elif name == connection:
            values.append(_text(item[1]).lower())
    if not values or values in (["keep-alive"], ["close"]):
        return kept
    named = {token.strip() for value in values for token in value.split(",")}
    return [item for item in kept if _text(item[0]).lower() not in named]


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")
