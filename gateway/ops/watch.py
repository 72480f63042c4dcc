"""What is read again when it changes: files of keys, certificates, tenants; what else is watched the same way.

Rule of this room: a file that is not wholly good changes nothing; that is one line in the log, and what was in use
stays.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from gateway.ops.logs import MAIN

WATCH_S = 2.0
UNSEEN = object()
"""Of something that is to be read whatever it looks like."""


class Watcher(abc.ABC):
    """Looks at something when it starts, every `watch_s` seconds, and when it is told to."""

    def __init__(self, watch_s: float = WATCH_S) -> None:
        self._watch_s = watch_s
        self._now = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @abc.abstractmethod
    async def _look(self) -> None:
        """See whether it has changed, and take over what has."""

    def start(self) -> None:
        """Begin to watch."""
        self._task = asyncio.ensure_future(self._watch())

    def reload(self) -> None:
        """Look now (SIGHUP)."""
        self._now.set()

    async def stop(self) -> None:
        """End watching."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            await self._look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._watch_s):
                    await self._now.wait()
            self._now.clear()


class WatchedFiles(Watcher):
    """Some files. what: their name in the log. take: reads them and puts them in use, and says what there is now.

    `take` raises OSError, or ValueError with a reason that quotes nothing.
    """

    def __init__(self, what: str, paths: Sequence[Path], take: Callable[[], str], watch_s: float = WATCH_S) -> None:
        super().__init__(watch_s)
        self._what = what
        self._paths = paths
        self._take = take
        self._seen: object = self._stamp()

    def reload(self) -> None:
        """Read them now, whether they seem changed or not."""
        self._seen = UNSEEN
        super().reload()

    async def _look(self) -> None:
        stamp = self._stamp()
        if stamp != self._seen:
            self._seen = stamp
            self._exchange()

    def _exchange(self) -> bool:
        """Put in use what there is now. False when it could not be read, which another look may find otherwise."""
        try:
            MAIN.info("%s read again: %s", self._what, self._take())
        except (OSError, ValueError) as error:
            MAIN.error("new %s refused, the old ones stay in use: %s", self._what, reason_of(error))
            return not isinstance(error, OSError)
        return True

    def _stamp(self) -> list[tuple[int, int, int] | None]:
        """What changes when a file is written or put in place by rename, be it behind a link."""
        stamps: list[tuple[int, int, int] | None] = []
        for path in self._paths:
            try:
                found = path.stat()
            except OSError:
                stamps.append(None)
            else:
                stamps.append((found.st_ino, found.st_mtime_ns, found.st_size))
        return stamps


def reason_of(error: Exception) -> str:
    """An error in words, without the path, which the caller knows."""
    return error.strerror or type(error).__name__ if isinstance(error, OSError) else str(error)


def read_by_others(path: Path) -> bool:
    """True for a file that every user of the machine may read."""
    try:
        return bool(path.stat().st_mode & stat.S_IROTH)
    except OSError:
        return False
