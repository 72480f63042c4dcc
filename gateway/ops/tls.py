"""TLS on both sides: the certificate that clients see, whom the gateway believes to be a pod, and who it says it is.

Rule of this room: a renewed certificate is first tried beside the one in use; one that does not fit its key changes
nothing. Connections that are open stay as they are.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from gateway.ops.config import Config
from gateway.ops.layers import ConfigError
from gateway.ops.watch import WatchedFiles, reason_of

Pair = tuple[Path, Path]
"""A certificate with its chain, and the private key, both PEM."""


def server_context(config: Config) -> ssl.SSLContext | None:
    """For clients; None without `tls_cert`. Raises ConfigError."""
    if config.tls is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    _load_first(context, config.tls, "tls_cert")
    return context


def client_context(config: Config) -> ssl.SSLContext | None:
    """For pods at `https://`; None where the system's own CAs will do. Raises ConfigError."""
    ca_file, pair = config.upstream_ca_file, config.upstream_tls
    if ca_file is None and pair is None:
        return None
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{ca_file}: upstream_ca_file: {_reason(error)}") from None
    if pair is not None:
        _load_first(context, pair, "upstream_cert")
    return context


def check(config: Config) -> None:
    """Whether all certificates can be used. Raises ConfigError."""
    server_context(config)
    client_context(config)


def watch(config: Config, server: ssl.SSLContext | None, client: ssl.SSLContext | None) -> list[WatchedFiles]:
    """Keep the certificates those of their files."""
    found = []
    if server is not None and config.tls is not None:
        found.append(_watched(f"certificate ({config.tls[0]})", server, config.tls))
    if client is not None and config.upstream_tls is not None:
        found.append(_watched(f"certificate for the pods ({config.upstream_tls[0]})", client, config.upstream_tls))
    return found


def _watched(what: str, context: ssl.SSLContext, pair: Pair) -> WatchedFiles:
    def take() -> str:
        try:
            _load(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), pair)
            _load(context, pair)
        except (OSError, ValueError) as error:
            raise ValueError(_reason(error)) from None
        return "in use for new connections"

    return WatchedFiles(what, pair, take)


def _load_first(context: ssl.SSLContext, pair: Pair, key: str) -> None:
    try:
        _load(context, pair)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{pair[0]}: {key}: {_reason(error)}") from None


def _load(context: ssl.SSLContext, pair: Pair) -> None:
    """A key with a password is refused rather than asked about at the terminal."""
    for path in pair:
        with path.open("rb"):
            pass
    context.load_cert_chain(*pair, password=lambda: "")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        words = (error.reason or "not a certificate and its key").replace("_", " ").lower()
        return f"the certificate and its key are no good: {words}"
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        return f"{error.filename}: {reason_of(error)}"
    return reason_of(error)
