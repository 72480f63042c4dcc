"""A real Valkey or Redis server for tests: its own process, port and folder, nothing kept.

`python -m tests.redis_server` makes sure that there is one on this machine: where it is missing, Debian's package is
installed if that can be (root and apt). The tests that need a server are skipped without one, loudly.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import Self

from tests import debian

COMMANDS = ("valkey-server", "redis-server")
WORDS = "SHARED-STATE TESTS SKIPPED: neither valkey-server nor redis-server is on PATH"
_INSTALL_S = 120


def command() -> str | None:
    """The server's program, if there is one."""
    return next((found for name in COMMANDS if (found := shutil.which(name))), None)


class RedisServer:
    """Use with `async with`. `url` stays the same over `kill` and `start`."""

    def __init__(self, *options: str) -> None:
        self._options = options
        self._process: asyncio.subprocess.Process | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="ppd-redis-"))
        self.port = 0

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def start(self) -> None:
        """Start it, empty, and wait until it answers. Another port is tried if somebody took ours meanwhile."""
        program = command()
        assert program is not None, WORDS
        for _ in range(5):
            port = self.port or _free_port()
            self._process = await asyncio.create_subprocess_exec(
                program,
                *("--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"),
                *("--dir", str(self._folder), *self._options),
                stdout=asyncio.subprocess.DEVNULL,
            )
            if await self._answers(port):
                self.port = port
                return
        raise AssertionError(f"{program} does not start")

    async def kill(self) -> None:
        """End it at once; what it held is gone."""
        if self._process is not None:
            if self._process.returncode is None:
                self._process.kill()
            await self._process.wait()
            self._process = None

    def hang(self) -> None:
        """Connections are taken, nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Answer again."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    async def _answers(self, port: int) -> bool:
        assert self._process is not None
        async with asyncio.timeout(20):
            while self._process.returncode is None:
                try:
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    await asyncio.sleep(0.01)
                    continue
                writer.write(b"PING\r\n")
                answer = await reader.readline()
                writer.close()
                await writer.wait_closed()
                return answer.startswith((b"+PONG", b"-NOAUTH"))
        return False


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def install() -> bool:
    """Install Debian's package; False when that cannot be."""
    return any(debian.install([name], lambda: command() is not None, _INSTALL_S) for name in reversed(COMMANDS))


def main() -> int:
    if command() is None and not install():
        line = "!" * len(WORDS)
        sys.stdout.write(f"\n{line}\n{WORDS}\n{line}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
