"""The token of the admin API.

Rule of this room: known by its digest only, compared in constant time, read again when its file changes.
"""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from gateway.core.keys import checked_key
from gateway.ops.control import AdminSettings
from gateway.ops.layers import ConfigError
from gateway.ops.watch import WatchedFiles, reason_of

MAX_TOKEN_BYTES = 4096


class Token:
    """The token as its digest; None lets everybody in. May be exchanged at any time."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._digest = None if file is None else self._read(file)

    def __bool__(self) -> bool:
        return self._digest is not None

    def admits(self, header: str) -> bool:
        """Whether an `Authorization` header has it; takes as long for any token of any length."""
        if self._digest is None:
            return True
        scheme, _, given = header.partition(" ")
        digest = hashlib.sha256(given.strip().encode("utf-8", "surrogateescape")).digest()
        return hmac.compare_digest(digest, self._digest) and scheme.lower() == "bearer"

    def watch(self) -> list[WatchedFiles]:
        """Keeps it that of the file."""
        file = self._file
        if file is None:
            return []

        def take() -> str:
            self._digest = self._read(file)
            return "in use"

        return [WatchedFiles(f"token of the admin API ({file})", [file], take)]

    @staticmethod
    def _read(file: Path) -> bytes:
        """Raises OSError, ValueError."""
        with file.open("rb") as opened:
            return hashlib.sha256(checked_key(opened.read(MAX_TOKEN_BYTES).decode("latin-1").strip()).encode()).digest()


def load_token(settings: AdminSettings) -> Token:
    """Raises ConfigError."""
    try:
        return Token(settings.token_file)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{settings.token_file}: admin.token_file: {reason_of(error)}") from None
