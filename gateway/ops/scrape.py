"""One scrape for all workers: each offers its metrics on a Unix socket, and whichever is scraped collects them.

Rule of this room: every sample gets the label `worker`; a worker that does not answer is shown as down, not waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path

from gateway.net.exchange import Page

ANSWER_S = 1.0


class Siblings:
    """The workers of one gateway, seen from one of them.

    folder: where the sockets are, `1.sock` and so on. make: this worker's own page.
    """

    def __init__(self, folder: Path, number: int, count: int, make: Callable[[], Page]) -> None:
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
        own = self._make()
        others = [number for number in range(1, self._count + 1) if number != self._number]
        asked = await asyncio.gather(*(_ask(socket_of(self._folder, number)) for number in others))
        pages = {self._number: own.body.decode(), **dict(zip(others, asked, strict=True))}
        return Page(own.content_type, merged(pages).encode())

    async def _offer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self._make().body)
        with contextlib.suppress(OSError):
            await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def socket_of(folder: Path, number: int) -> Path:
    """A worker's socket; there once it serves."""
    return folder / f"{number}.sock"


def merged(pages: Mapping[int, str | None]) -> str:
    """Expositions of several workers as one. None: that worker did not answer."""
    families: dict[str, tuple[list[str], list[str]]] = {}
    for number, page in sorted(pages.items()):
        name = ""
        for line in (page or "").splitlines():
            if line.startswith(("# HELP ", "# TYPE ")):
                name = line.split(" ", 3)[2]
                head, _ = families.setdefault(name, ([], []))
                if line not in head and len(head) < 2:
                    head.append(line)
            elif line and not line.startswith("#"):
                families.setdefault(name, ([], []))[1].append(_labelled(line, number))
    lines = [line for head, samples in families.values() for line in (*head, *samples)]
    lines += ["# HELP ppd_worker_up 1 when the worker answered this scrape.", "# TYPE ppd_worker_up gauge"]
    lines += [f'ppd_worker_up{{worker="{number}"}} {float(page is not None)}' for number, page in sorted(pages.items())]
    return "\n".join(lines) + "\n"


def _labelled(sample: str, number: int) -> str:
    name, brace, rest = sample.partition("{")
    if brace and " " not in name:
        return f'{name}{{worker="{number}",{rest}'
    name, _, value = sample.partition(" ")
    return f'{name}{{worker="{number}"}} {value}'


async def _ask(path: Path) -> str | None:
    try:
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                return (await reader.read()).decode()
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
    except (OSError, TimeoutError):
        return None
