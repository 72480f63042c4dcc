"""The command with keys and TLS, in a process of its own (uvloop, which the tests of the parts do not use)."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from pathlib import Path

import aiohttp
import pytest

from gateway.core.keys import hash_of
from loadtest.pod.simulated import SimulatedPod
from tests.net.test_tls import CA, OTHER_CA, client_of, write_pair

COMMAND = [sys.executable, "-m", "gateway.ops.cli", "serve"]


async def line_with(stderr: asyncio.StreamReader, words: str) -> str:
    async with asyncio.timeout(60):
        while line := (await stderr.readline()).decode():
            if words in line:
                return line
    raise AssertionError(f"it ended without saying {words}")


async def test_keys_and_certificates_are_read_again_at_sighup_and_open_connections_stay(tmp_path: Path) -> None:
    pair = write_pair(tmp_path)
    keys = tmp_path / "keys"
    keys.write_text(f"{hash_of('key-1')} alice\n")
    async with SimulatedPod(role="decode") as pod:
        flags = [
            "--decode",
            pod.url,
            "--policy",
            "local",
            "--port",
            "0",
            "--api-keys",
            str(keys),
            "--selftest",
            "false",
        ]
        process = await asyncio.create_subprocess_exec(
            *COMMAND, *flags, "--tls-cert", pair["cert"], "--tls-key", pair["key"], stderr=asyncio.subprocess.PIPE
        )
        assert process.stderr is not None
        try:
            found = re.search(r" on (https://\S+),", await line_with(process.stderr, " on https://"))
            assert found is not None
            await line_with(process.stderr, "up=1")
            connector = aiohttp.TCPConnector(ssl=client_of(), limit=1)
            async with aiohttp.ClientSession(connector=connector, base_url=found[1]) as session:

                async def asked(key: str, stream: bool = False) -> tuple[int, bytes]:
                    message = {"role": "user", "content": "river " * 1000}
                    body = {"model": "sim", "messages": [message], "max_tokens": 100, "stream": stream}
                    headers = {"Authorization": f"Bearer {key}"}
                    async with session.post("/v1/chat/completions", json=body, headers=headers) as response:
                        return response.status, await response.read()

                assert (await asked("key-1"))[0] == 200
                status, stream = await asked("key-1", stream=True)
                assert (status, stream[-14:]) == (200, b"data: [DONE]\n\n")
                write_pair(tmp_path, OTHER_CA)
                keys.write_text(f"{hash_of('key-2')} alice\n")
                process.send_signal(signal.SIGHUP)
                await line_with(process.stderr, "read again: in use for new connections")
                async with asyncio.timeout(30):
                    while (await asked("key-2"))[0] != 200:  # noqa: ASYNC110 - read in any order
                        await asyncio.sleep(0.01)
                assert (await asked("key-1"))[0] == 401
            async with aiohttp.ClientSession() as anew:
                with pytest.raises(aiohttp.ClientConnectorCertificateError):
                    await anew.get(f"{found[1]}/health", ssl=client_of(CA))
                async with anew.get(f"{found[1]}/health", ssl=client_of(OTHER_CA)) as response:
                    assert response.status == 200
        finally:
            process.send_signal(signal.SIGTERM)
            rest = (await process.stderr.read()).decode()
            status = await process.wait()
    assert status == 0
    assert not [word for word in ("key-1", "key-2", "Traceback", "river") if word in rest]
