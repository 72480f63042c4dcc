"""Where requests go.

Rule of this room: an address and its headers are checked once, before anything is sent; keys are in heads of requests
and nowhere else.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from loadtest.live.errors import LoadtestError

PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}

_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e\t]*)")
_OURS = ("host", "content-length", "content-type", "transfer-encoding", "connection", "x-request-id")

Header = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One server. base: what stands before /v1 in its paths. headers: sent with every request, not to be shown."""

    url: str
    host: str
    port: int
    base: str
    authority: str
    tls: ssl.SSLContext | None = field(repr=False, default=None)
    headers: tuple[Header, ...] = field(repr=False, default=())

    def head(self, method: str, path: str) -> bytes:
        """The head of a request up to the headers that differ between requests."""
        lines = [f"{method} {self.base}{path} HTTP/1.1", f"Host: {self.authority}"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        if method == "POST":
            lines.append("Content-Type: application/json")
        return "".join(f"{line}\r\n" for line in lines).encode("latin-1")


def endpoint_of(
    url: str, *, headers: Sequence[Header] = (), key: str | None = None, tls: ssl.SSLContext | None = None
) -> Endpoint:
    """Read an address, with or without /v1 at its end. tls: how to trust an https one. Raises LoadtestError."""
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError as error:
        raise LoadtestError(f"{url}: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise LoadtestError(f"{url!r} is not a URL like http://HOST:PORT")
    if parts.username is not None or parts.password is not None:
        raise LoadtestError("a URL with a user or a password in it: give the key with --api-key-file or --api-key-env")
    if parts.query or parts.fragment or not re.fullmatch(r"[!-~]*", parts.path):
        raise LoadtestError(f"{url!r}: a URL ends with its path")
    base = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    host = parts.hostname
    secure = parts.scheme == "https"
    default = 443 if secure else 80
    shown = f"[{host}]" if ":" in host else host
    authority = shown if port in (None, default) else f"{shown}:{port}"
    if secure and tls is None:
        tls = trust()
    sent = list(headers)
    if key is not None:
        sent.append(("Authorization", f"Bearer {key}"))
    return Endpoint(
        url=f"{parts.scheme}://{authority}{base}",
        host=host,
        port=default if port is None else port,
        base=base,
        authority=authority,
        tls=tls if secure else None,
        headers=tuple(sent),
    )


def trust(ca_file: Path | None = None, *, insecure: bool = False) -> ssl.SSLContext:
    """Whom to believe: the system's authorities, those of a file, or everybody. Raises LoadtestError."""
    try:
        context = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise LoadtestError(f"--ca-file {ca_file}: {error.strerror or error}") from None
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def header_of(text: str) -> Header:
    """Read `Name: value`. Raises LoadtestError, without the value, which may be a secret."""
    found = _HEADER.fullmatch(text)
    if found is None:
        raise LoadtestError(f"--header {text.partition(':')[0]!r}…: must be 'Name: value' in printable ASCII")
    if found[1].lower() in _OURS:
        raise LoadtestError(f"--header {found[1]}: the load test sets this one itself")
    return found[1], found[2].strip()


def key_of(option: str, text: str) -> str:
    """A key as it goes into a header. Raises LoadtestError."""
    key = text.strip()
    if not key or not re.fullmatch(r"[\x21-\x7e]+", key):
        raise LoadtestError(f"{option}: holds no key of printable characters in one line")
    return key
