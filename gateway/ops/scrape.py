"""One scrape for all workers: each offers its metrics on a Unix socket, and whichever is scraped collects them.

Rule of this room: every worker has put its label `worker` on its samples already, so whole families are laid side by
side, unread; a worker that does not answer is shown as down, not waited for. Nothing is added up here: Prometheus
does, with `sum without (worker)`, and with `max` where all workers see the same (a pod's state, the canary's).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path

from gateway.net.exchange import Page
from gateway.ops.metrics.turns import joined

ANSWER_S = 1.0
_HEAD = b"# HELP "


class Siblings:
    """The workers of one gateway, seen from one of them.

    folder: where the sockets are, `1.sock` and so on. make: this worker's own page.
    """

    def __init__(self, folder: Path, number: int, count: int, make: Callable[[], Awaitable[Page]]) -> None:
        self._folder = folder
        self._number = number
        self._count = count
        self._make = make
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Offer this worker's metrics."""
        path = socket_of(self._folder, self._number)
        path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._offer, path)

    async def stop(self) -> None:
        """Offer nothing any more."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def page(self) -> Page:
        """Everyone's metrics."""
        others = [number for number in range(1, self._count + 1) if number != self._number]
        asked = asyncio.gather(*(_ask(socket_of(self._folder, number)) for number in others))
        own = await self._make()
        pages = {self._number: own.body, **dict(zip(others, await asked, strict=True))}
        return Page(own.content_type, await joined(merged(pages)))

    async def _offer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await self._make()).body)
        with contextlib.suppress(OSError):
            await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def socket_of(folder: Path, number: int) -> Path:
    """A worker's socket; there once it serves."""
    return folder / f"{number}.sock"


def merged(pages: Mapping[int, bytes | None]) -> Iterator[bytes]:
    """Expositions of several workers as one, every family in one place, in pieces. None: that worker did not answer."""
    families: dict[bytes, list[bytes]] = {}
    for _, page in sorted(pages.items()):
        for family in (page or b"").removeprefix(_HEAD).removesuffix(b"\n").split(b"\n" + _HEAD):
            name, _, rest = family.partition(b" ")
            if name in families:
                _, _, rest = rest.partition(b"\n")
                _, _, rest = rest.partition(b"\n")
                families[name].append(rest)
            elif name:
                families[name] = [_HEAD + family]
        yield b""
    for samples in families.values():
        yield b"\n".join([*filter(None, samples), b""])
    yield b"# HELP ppd_worker_up 1 when the worker answered this scrape.\n# TYPE ppd_worker_up gauge\n"
    for number, page in sorted(pages.items()):
        yield f'ppd_worker_up{{worker="{number}"}} {float(page is not None)}\n'.encode()


async def _ask(path: Path) -> bytes | None:
    try:
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                return await reader.read()
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
    except (OSError, TimeoutError):
        return None
