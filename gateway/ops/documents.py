"""Keys and tenants that lie in the shared state in place of a file: `api_keys = "state:keys"`.

Rule of this room: a document is what the file would be, whole; who puts one there checks it, who takes one does again.
Redis is asked at the start and every few seconds after, never by a request.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.ops.layers import ConfigError
from gateway.ops.logs import MAIN
from gateway.ops.watch import WATCH_S, WatchedFiles, reason_of

PREFIX = "state:"
_ASK_S = 2.0

Check = Callable[[str], object]
"""Reads a document; raises ValueError with a reason that quotes nothing."""


@dataclass(frozen=True, slots=True)
class Shared:
    """Where the shared state is. url: may hold a password. known: what was read last, by the document's name."""

    url: str = field(repr=False)
    namespace: str
    known: dict[str, str] = field(default_factory=dict, repr=False)

    def read(self, name: str) -> str:
        """A document. Raises OSError when the server is away, ValueError when there is no such document."""
        found = self._ask(lambda client: client.get(self._key(name)))
        if found is None:
            raise ValueError(f"the shared state has no document {name!r} (ppd-gateway publish)")
        self.known[name] = text = str(found.decode("utf-8"))
        return text

    def write(self, name: str, text: str) -> None:
        """Put a document there. Raises OSError."""
        self._ask(lambda client: client.set(self._key(name), text.encode("utf-8")))

    def _key(self, name: str) -> str:
        return f"ppd:{self.namespace}:document:{name}"

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        from redis import Redis  # only those pay who use it
        from redis.exceptions import RedisError

        client = Redis.from_url(self.url, protocol=2, socket_timeout=_ASK_S, socket_connect_timeout=_ASK_S)
        try:
            return question(client)
        except RedisError as error:
            raise OSError(0, f"the shared state does not answer ({type(error).__name__})") from None
        finally:
            client.close()


def name_in_state(path: Path) -> str | None:
    """The document's name, None for a file."""
    text = str(path)
    return text[len(PREFIX) :] if text.startswith(PREFIX) else None


def text_of(path: Path, shared: Shared | None, max_bytes: int) -> str:
    """The text of a file or document. Raises OSError, ValueError."""
    name = name_in_state(path)
    if name is not None:
        if shared is None:
            raise ValueError(f"{PREFIX} needs state")
        return shared.read(name)
    if path.stat().st_size > max_bytes:
        raise ValueError("the file is too large")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError("not UTF-8 text") from None


class WatchedDocument(WatchedFiles):
    """A document of the shared state. A server that is away changes nothing."""

    def __init__(self, what: str, name: str, shared: Shared, take: Callable[[], str], watch_s: float = WATCH_S) -> None:
        super().__init__(what, [], take, watch_s)
        self._name = name
        self._shared = shared
        self._text = shared.known.get(name)  # what is in use, which is not what is there by the first look
        self._away = False

    async def _look(self) -> None:
        try:
            text = await asyncio.to_thread(self._shared.read, self._name)
        except (OSError, ValueError) as error:
            if not self._away:
                MAIN.warning("%s: %s; what was read before stays in use", self._what, reason_of(error))
            self._away = True
            return
        self._away = False
        if text == self._text or await asyncio.to_thread(self._exchange):
            self._text = text


def watched(what: str, path: Path, take: Callable[[], str], shared: Shared | None) -> WatchedFiles:
    """Keeps what `take` reads up to date."""
    name = name_in_state(path)
    if name is None or shared is None:
        return WatchedFiles(what, [path], take)
    return WatchedDocument(what, name, shared, take)


def add_command(commands: Any, checks: dict[str, Check]) -> None:
    """`publish` of `ppd-gateway`. checks: by the document's name."""
    publish = commands.add_parser("publish", help="put the file of keys or tenants into the shared state")
    publish.add_argument("name", choices=sorted(checks), help="what it is")
    publish.add_argument("file", type=Path, metavar="FILE")
    publish.add_argument("--state", required=True, metavar="URL", help="as the gateways have it, redis://host:port/db")
    publish.add_argument("--state-namespace", default="default", metavar="NAME")
    publish.set_defaults(run=lambda options: _publish(options, checks[options.name]))


def _publish(options: argparse.Namespace, check: Check) -> int:
    from gateway.ops import checks

    try:
        shared = Shared(checks.state(options.state), checks.namespace(options.state_namespace))
        text = text_of(options.file, None, 64 << 20)
        check(text)
        shared.write(options.name, text)
    except (OSError, ValueError) as error:
        raise ConfigError(f"publish {options.name}: {reason_of(error)}") from None
    print(f"{options.name} published: use it with {PREFIX}{options.name} in place of the file")
    return 0
