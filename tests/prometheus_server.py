"""The real Prometheus for tests: its own process, port and folder, nothing kept.

`python -m tests.prometheus_server` makes sure that there is one on this machine, and what the production guide calls
besides: what is missing is installed from Debian's packages if that can be (root and apt). The tests that need it are
skipped without, loudly.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Self

import aiohttp
import pytest

from tests import debian

WORDS = "PROMETHEUS TESTS SKIPPED: prometheus and promtool are not on PATH"
GUIDE_WORDS = "PRODUCTION GUIDE NOT RUN: it needs bash, curl, jq and prometheus on PATH"
_INSTALL_S = 180


def there() -> bool:
    """Whether both programs can be run."""
    return shutil.which("prometheus") is not None and shutil.which("promtool") is not None


def guide_there() -> bool:
    """Whether everything can be run that docs/production.md calls."""
    return there() and all(shutil.which(program) is not None for program in ("bash", "curl", "jq"))


needs_guide_tools = pytest.mark.skipif(not guide_there(), reason=GUIDE_WORDS)
needs_prometheus = pytest.mark.skipif(not there(), reason=WORDS)


def promtool(*arguments: str | Path, given: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run it to its end; `given` is its standard input."""
    command = ["promtool", *map(str, arguments)]
    return subprocess.run(command, input=given, capture_output=True, text=True, timeout=600)


class PrometheusServer:
    """Use with `async with`. configuration: the text of prometheus.yml; rule files by absolute path."""

    def __init__(self, configuration: str, session: aiohttp.ClientSession) -> None:
        self._configuration = configuration
        self._session = session
        self._folder = Path(tempfile.mkdtemp(prefix="ppd-prometheus-"))
        self._process: asyncio.subprocess.Process | None = None
        self._url = ""

    async def __aenter__(self) -> Self:
        file = self._folder / "prometheus.yml"
        file.write_text(self._configuration, encoding="utf-8")
        for _ in range(5):
            port = _free_port()
            self._url = f"http://127.0.0.1:{port}"
            self._process = await asyncio.create_subprocess_exec(
                "prometheus",
                f"--config.file={file}",
                f"--storage.tsdb.path={self._folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--log.level=error",
            )
            if await self._ready():
                return self
        shutil.rmtree(self._folder, ignore_errors=True)
        raise AssertionError("prometheus does not start")

    async def __aexit__(self, *_: object) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def get(self, path: str, **query: str) -> dict[str, Any]:
        """An answer of the HTTP API: `status`, and `data` or `error`."""
        async with self._session.get(f"{self._url}/api/v1/{path}", params=query) as response:
            return dict(await response.json())

    async def _ready(self) -> bool:
        assert self._process is not None
        async with asyncio.timeout(30):
            while self._process.returncode is None:
                try:
                    async with self._session.get(f"{self._url}/-/ready") as response:
                        if response.status == 200:
                            return True
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.02)
        return False


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def install() -> bool:
    """Install Debian's packages; False when that cannot be."""
    return debian.install(["prometheus", "curl", "jq"], guide_there, _INSTALL_S)


def main() -> int:
    if not guide_there() and not install():
        words = GUIDE_WORDS if there() else WORDS
        line = "!" * len(words)
        sys.stdout.write(f"\n{line}\n{words}\n{line}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
