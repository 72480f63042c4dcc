"""The file of client keys, in use and on the command line: `ppd-gateway keys add NAME`, `ppd-gateway keys hash`.

Rule of this room: a key is shown once, where it is made; nothing else here prints one.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from pathlib import Path
from typing import Any

from gateway.core.keys import TENANT, KeyFileError, KeyRing, checked_key, hash_of, read_keys
from gateway.net.keys import Door
from gateway.net.upstream import PodClient
from gateway.ops import tls
from gateway.ops.admin.token import load_token
from gateway.ops.admission import book_of, load_tenants
from gateway.ops.config import Config
from gateway.ops.documents import Shared, text_of, watched
from gateway.ops.documents import add_command as add_publish
from gateway.ops.layers import ConfigError
from gateway.ops.watch import WatchedFiles, reason_of

MAX_FILE_BYTES = 64 << 20


def load_keys(path: Path, shared: Shared | None = None) -> KeyRing:
    """Read the file, or the document in the shared state. Raises ConfigError."""
    try:
        return _read(path, shared)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: api_keys: {reason_of(error)}") from None


def check(config: Config) -> None:
    """Whether all keys and certificates can be used. Raises ConfigError."""
    shared = shared_of(config)
    if config.api_keys is not None:
        load_keys(config.api_keys, shared)
    if config.tenants is not None:
        load_tenants(config.tenants, shared)
    load_upstream_key(config)
    if config.admin is not None:
        load_token(config.admin)
    tls.check(config)


def watch_keys(path: Path, door: Door, shared: Shared | None = None) -> WatchedFiles:
    """Keeps the door's keys those of the file, or of the document."""

    def take() -> str:
        ring = door.ring = _read(path, shared)
        return ring.describe()

    return watched(f"keys ({path})", path, take, shared)


def shared_of(config: Config) -> Shared | None:
    """The shared state, where there is one."""
    return None if config.state is None else Shared(config.state, config.state_namespace)


def load_upstream_key(config: Config) -> str | None:
    """The key that the pods want. Raises ConfigError."""
    path = config.upstream_api_key_file
    if path is None:
        return config.upstream_api_key
    try:
        return _upstream_key(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: upstream_api_key_file: {reason_of(error)}") from None


def watch_upstream_key(path: Path, client: PodClient) -> WatchedFiles:
    """Keeps the client's key that of the file."""

    def take() -> str:
        client.key = _upstream_key(path)
        return "in use"

    return WatchedFiles(f"key for the pods ({path})", [path], take)


def _upstream_key(path: Path) -> str:
    """Raises OSError, ValueError."""
    with path.open("rb") as file:
        return checked_key(file.read(MAX_FILE_BYTES).decode("latin-1").strip())


def _read(path: Path, shared: Shared | None = None) -> KeyRing:
    """Raises OSError, ValueError."""
    return ring_of(text_of(path, shared, MAX_FILE_BYTES))


def ring_of(text: str) -> KeyRing:
    """Raises ValueError."""
    try:
        return read_keys(text)
    except KeyFileError as error:
        raise ValueError(str(error)) from None


def add_command(commands: Any) -> None:
    """`keys` of `ppd-gateway`."""
    keys = commands.add_parser("keys", help="make keys for clients").add_subparsers(required=True, metavar="COMMAND")
    add = keys.add_parser("add", help="make a key; it is shown this once")
    add.add_argument("name", metavar="NAME", help="the tenant it is for; several keys may have one")
    add.add_argument("--comment", default="", metavar="TEXT", help="to stand behind it in the file")
    add.add_argument("--file", type=Path, metavar="FILE", help="append the line to this api_keys file")
    add.set_defaults(run=_add)
    add_publish(commands, {"keys": ring_of, "tenants": book_of})
    hashing = keys.add_parser("hash", help="hash a key read from standard input, for a line of the file")
    hashing.set_defaults(run=_hash)


def _add(options: argparse.Namespace) -> int:
    if not TENANT.fullmatch(options.name):
        raise ConfigError("keys add: a tenant is named with letters, digits and _.@-, up to 64")
    key = f"ppd-{secrets.token_urlsafe(32)}"
    line = f"{hash_of(key)}  {options.name}  {' '.join(options.comment.split())}".rstrip()
    if options.file is not None:
        try:
            _append(options.file, line)
        except OSError as error:
            raise ConfigError(f"{options.file}: {reason_of(error)}") from None
    print(f"key: {key}")
    print(f"line: {line}" if options.file is None else f"its line was added to {options.file}")
    return 0


def _append(path: Path, line: str) -> None:
    """In one write, on a line of its own. A new file is for its owner only."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "r+b", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        broken = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        file.write(b"\n" * broken + line.encode() + b"\n")


def _hash(options: argparse.Namespace) -> int:
    try:
        print(hash_of(sys.stdin.readline().rstrip("\r\n")))
    except ValueError as error:
        raise ConfigError(f"keys hash: {error}") from None
    return 0
