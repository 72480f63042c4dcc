"""The door: who may ask, for what, and what of their headers goes no further.

Rule of this room: everything wants a key but what this module says does not, and a client's own key never gets past it
while keys are checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address

from gateway.core.keys import Caller, KeyRing
from gateway.net.exchange import Headers, Incoming
from gateway.net.headers import CREDENTIALS
from gateway.wire.errors import BadRequestError, UnauthorizedError

OPEN = frozenset({("GET", "/health"), ("HEAD", "/health"), ("GET", "/ready"), ("HEAD", "/ready"), ("HEAD", "/")})
"""What load balancers and clients ask before they have a key, or without one."""

API_KEY = "x-api-key"
"""Where Anthropic's clients put the key."""

PRIORITY = "x-vllm-priority"
_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip")
_FORBIDDEN = ("\\", "//", "/./", "/../", "%2e", "%2f", "%5c", "#")


class Admitted:
    """A request that came through the door (`exchange.Incoming`). caller: whose key it had, where keys are checked.

    header_items: without what ends at the door. headers: all that the client sent.
    """

    __slots__ = ("_items", "body", "caller", "headers", "method", "path", "peer", "target")

    def __init__(self, incoming: Incoming, caller: Caller | None, dropped: frozenset[str]) -> None:
        self.method: str = incoming.method
        self.path: str = incoming.path
        self.target: str = incoming.target
        self.headers: Mapping[str, str] = incoming.headers
        self.body: bytes = incoming.body
        self.peer: str = incoming.peer
        self.caller = caller
        self._items = [item for item in incoming.header_items() if item[0].lower() not in dropped]

    def header_items(self) -> Headers:
        """The headers in order, less those that end at the door."""
        return self._items


class Door:
    """Lets requests in. ring: the good keys; None lets everybody in. May be exchanged at any time."""

    def __init__(self, ring: KeyRing | None = None, *, allow_priority: bool = False) -> None:
        self.ring = ring
        self._dropped = frozenset() if allow_priority else frozenset({PRIORITY})
        self._dropped_with_keys = self._dropped | CREDENTIALS

    def admit(self, incoming: Incoming) -> Incoming:
        """The request as the rest of the gateway gets it. Raises UnauthorizedError."""
        ring = self.ring
        if ring is None:
            if not self._dropped or incoming.headers.get(PRIORITY) is None:
                return incoming
            return Admitted(incoming, None, self._dropped)
        caller = ring.find(key_of(incoming) or "")
        if caller is None and not _needs_no_key(incoming):
            raise UnauthorizedError("Unauthorized", headers={"WWW-Authenticate": "Bearer"})
        return Admitted(incoming, caller, self._dropped_with_keys)


def key_of(incoming: Incoming) -> str | None:
    """The key a client sent: as bearer token, else as Anthropic's clients send theirs."""
    scheme, _, token = incoming.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token:
        return token.strip()
    return incoming.headers.get(API_KEY)


def tenant_of(incoming: Incoming) -> str:
    """Who asks: whose key it is where keys are checked, else the key itself."""
    caller = incoming.caller
    if caller is not None:
        return f"tenant {caller.tenant}"
    return incoming.headers.get("authorization") or incoming.headers.get(API_KEY) or ""


def others_exist(incoming: Incoming, isolated: bool) -> bool:
    """True where an answer that this tenant was not seen to get may be another tenant's: pods tell everybody."""
    return isolated or incoming.caller is not None


def check_path(path: str) -> None:
    """For paths that are not the gateway's own: a plain path and nothing else. Raises BadRequestError.

    An absolute URL, a second slash or a way upwards might choose another server than the pod it is sent to.
    """
    lower = path.lower()
    if not lower.startswith("/") or lower.endswith(("/..", "/.")) or any(part in lower for part in _FORBIDDEN):
        raise BadRequestError("The path is not a plain one.")


def is_loopback(address: str) -> bool:
    """True for an address of this machine that no other can reach, and for "localhost"."""
    if address == "localhost":
        return True
    try:
        found = ip_address(address)
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return bool((mapped or found).is_loopback)


def _needs_no_key(incoming: Incoming) -> bool:
    """What load balancers ask, and pages for operators from the machine itself (not through a proxy on it)."""
    path = incoming.path
    if (incoming.method, path) in OPEN:
        return True
    if not (path == "/metrics" or path.startswith("/admin/")) or not is_loopback(incoming.peer):
        return False
    return not any(name in incoming.headers for name in _FORWARDED)
