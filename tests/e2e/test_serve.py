"""The installed command, as an operator runs it, and the official client in front of it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import openai
import pytest

from loadtest.pod.simulated import SimulatedPod

COMMAND = [sys.executable, "-m", "gateway.ops.cli"]
NO_SELFTEST = ("--selftest", "false")
"""Where a fault is meant for the test's own request, or requests are counted."""
QUESTION = "Tell me about the river and the engine of the world. " * 10


def environment(**more: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PPD_")} | more


async def run(*arguments: str, **env: str) -> tuple[int, str, str]:
    """Run the command to its end: (status, standard output, standard error)."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(**env),
    )
    async with asyncio.timeout(30):
        out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


class Served:
    """A gateway in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process, url: str, lines: list[str]) -> None:
        self.process = process
        self.url = url
        self.lines = lines

    async def read_log(self) -> None:
        stderr = self.process.stderr
        assert stderr is not None
        async for line in stderr:
            self.lines.append(line.decode())

    async def said(self, words: str) -> str:
        """Wait for a line of the log that has these words in it."""
        async with asyncio.timeout(30):
            while not (found := [line for line in self.lines if words in line]):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return found[0]


@asynccontextmanager
async def served(*arguments: str, **env: str) -> AsyncIterator[Served]:
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "serve", *arguments, stderr=asyncio.subprocess.PIPE, env=environment(**env)
    )
    assert process.stderr is not None
    lines: list[str] = []
    try:
        async with asyncio.timeout(30):
            while not (found := re.search(r" on (http://\S+),", lines[-1] if lines else "")):
                line = (await process.stderr.readline()).decode()
                assert line, "".join(lines)
                lines.append(line)
        gateway = Served(process, found[1], lines)
        reading = asyncio.create_task(gateway.read_log())
        await until_ready(gateway.url)
        yield gateway
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            await process.wait()
    await reading


async def until_ready(url: str) -> None:
    """Ask /ready until it says yes; the pods are probed at once, so this is a matter of milliseconds."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    async with asyncio.timeout(30):
        while True:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET /ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            status = (await reader.readline()).split()[1]
            await reader.read()
            writer.close()
            await writer.wait_closed()
            if status == b"200":
                return


@asynccontextmanager
async def pods() -> AsyncIterator[tuple[SimulatedPod, SimulatedPod]]:
    async with SimulatedPod(role="prefill") as prefill, SimulatedPod(role="decode") as decode:
        yield prefill, decode


BAD = [
    (["--decode", "ftp://x"], "flag --decode: decode: 'ftp://x' is not a URL"),
    (["--decode", "http://a:1", "--prefill", "http://a:1/"], "is already a"),
    (["--prefill", "http://a:1"], "decode: at least one decode pod is needed"),
    (["--decode", "http://a:1", "--policy", "ppd", "--table", "/nowhere"], "/nowhere: is not a table set"),
    (["--decode", "http://a:1", "--port", "x"], "flag --port: port: must be a whole number"),
    (["--decode", "http://a:1", "--config", "/nowhere.toml"], "/nowhere.toml: No such file"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[message[:25] for _, message in BAD])
async def test_a_bad_configuration_is_one_line_and_exit_status_2(arguments: list[str], message: str) -> None:
    status, out, err = await run("serve", *arguments)
    assert status == 2
    assert message in err
    assert err.startswith("ppd-gateway: ")
    assert len(err.splitlines()) == 1
    assert out == ""


async def test_config_check_names_the_key_and_the_file(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text('decode = ["http://d:1"]\nprefill = ["http://p:1"]\n[timeouts]\nconnect_s = 1\n')
    bad.write_text('decode = ["http://d:1"]\n[timeouts]\nconect_s = 1\n')
    status, out, _ = await run("config", "check", str(good))
    assert (status, out) == (0, f"{good}: ok (policy ppd; pods: 1 prefill, 1 decode, 0 replica)\n")
    status, _, err = await run("config", "check", str(bad))
    assert status == 2
    assert err == f"ppd-gateway: {bad}: timeouts.conect_s: unknown key (did you mean timeouts.connect_s?)\n"


async def test_a_taken_port_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        status, _, err = await run("serve", "--decode", "http://127.0.0.1:1", "--port", str(taken.getsockname()[1]))
    assert status == 1
    assert "cannot listen on 127.0.0.1:" in err
    assert "Traceback" not in err


async def test_the_openai_client_async_streamed_and_not() -> None:
    async with pods() as (prefill, decode):
        async with served(
            "--prefill", prefill.url, "--decode", decode.url, "--port", "0", PPD_POLICY="local"
        ) as gateway:
            async with openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="key-secret") as client:
                messages = [{"role": "user", "content": QUESTION}]
                first = await client.chat.completions.create(model="sim", messages=messages, max_tokens=8)  # type: ignore[call-overload]
                messages += [
                    {"role": "assistant", "content": first.choices[0].message.content},
                    {"role": "user", "content": "And then? " + QUESTION},
                ]
                stream = await client.chat.completions.create(
                    model="sim", messages=messages, max_tokens=8, stream=True, stream_options={"include_usage": True}
                )  # type: ignore[call-overload]
                chunks = [chunk async for chunk in stream]
                assert chunks[-1].usage.prompt_tokens_details.cached_tokens > 0
                listed = [model.id async for model in client.models.list()]
                assert listed == ["sim"]
                with pytest.raises(openai.NotFoundError):
                    await client.chat.completions.create(model="nope", messages=messages, max_tokens=8)  # type: ignore[call-overload]
        lines = [line for line in gateway.lines if "path=/v1/chat/completions" in line]
        assert [re.findall(r" route=(\w+) ", line) for line in lines[:2]] == [["pd"], ["local"]]
        assert "secret" not in "".join(gateway.lines)
        assert QUESTION[:20] not in "".join(gateway.lines)


async def test_the_openai_client_sync_streamed_and_not() -> None:
    async with pods() as (prefill, decode):
        async with served("--prefill", prefill.url, "--decode", decode.url, "--port", "0") as gateway:

            def talk() -> tuple[str, str]:
                with openai.OpenAI(base_url=gateway.url + "/v1", api_key="x") as client:
                    whole = client.completions.create(model="sim", prompt=QUESTION, max_tokens=8)
                    stream = client.completions.create(model="sim", prompt=QUESTION, max_tokens=8, stream=True)
                    return whole.choices[0].text, "".join(chunk.choices[0].text for chunk in stream)

            whole, streamed = await asyncio.to_thread(talk)
            assert whole
            assert whole == streamed


async def test_a_broken_stream_is_an_error_for_the_openai_client() -> None:
    async with pods() as (prefill, decode):
        decode.fault("reset_after_events", events=3)
        async with served("--prefill", prefill.url, "--decode", decode.url, "--port", "0", *NO_SELFTEST) as gateway:
            async with openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="x", max_retries=0) as client:
                stream = await client.chat.completions.create(
                    model="sim", messages=[{"role": "user", "content": QUESTION}], max_tokens=50, stream=True
                )
                with pytest.raises(openai.APIError, match="stream broke"):
                    async for _ in stream:
                        pass


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_the_requests_in_flight_end(number: signal.Signals) -> None:
    async with pods() as (prefill, decode):
        decode.fault("hold")
        async with served("--prefill", prefill.url, "--decode", decode.url, "--port", "0", *NO_SELFTEST) as gateway:
            async with openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="x", max_retries=0) as client:
                request = asyncio.create_task(client.completions.create(model="sim", prompt=QUESTION, max_tokens=8))
                while not decode.requests:  # noqa: ASYNC110
                    await asyncio.sleep(0)
                gateway.process.send_signal(number)
                await gateway.said("stopping: 1 requests in flight")
                decode.clear_faults()
                assert (await request).choices[0].text
                assert await gateway.process.wait() == 0
