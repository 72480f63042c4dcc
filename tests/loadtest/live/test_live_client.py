"""One request at a time against servers that work and servers that break."""

from __future__ import annotations

import asyncio
import ssl as tls_library
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme

from loadtest.live.client import Client, Patience
from loadtest.live.endpoint import endpoint_of, trust
from loadtest.live.talks import STREAMED, Dialogue, Talk, Turn
from loadtest.pod.simulated import SimulatedPod

Heard = tuple[str, list[bytes]]
Tls = tls_library.SSLContext
PATIENT = Patience(5.0, 5.0, 10.0)


def body(tokens: int = 8, api: str = "chat", **fields: object) -> bytes:
    return Dialogue(api, "sim", Talk("", ()), "", {**STREAMED, **fields}).say(Turn("The long road home", tokens))


@asynccontextmanager
async def asking(url: str, patience: Patience = PATIENT, api: str = "chat", **options: object) -> AsyncIterator[Client]:
    made = Client(endpoint_of(url, **options), api, patience, time.perf_counter, "X-Session-ID")
    try:
        yield made
    finally:
        made.close()
        await asyncio.sleep(0)


@asynccontextmanager
async def scripted(*answers: bytes, close: bool = True, ssl: Tls | None = None) -> AsyncIterator[Heard]:
    """A server that answers request n with these bytes (none: hangs up); gives its address and what it heard."""
    heard: list[bytes] = []
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        try:
            while len(heard) < len(answers):
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
                heard.append(head + await reader.readexactly(length))
                writer.write(answers[len(heard) - 1])
                await writer.drain()
                if close or not answers[len(heard) - 1]:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=ssl)
    async with server:
        scheme = "http" if ssl is None else "https"
        yield f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}", heard
        for writer in writers:
            writer.close()


def http(content: bytes, status: str = "200 OK", kind: str = "text/event-stream", more: str = "") -> bytes:
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\n{more}\r\n".encode() + content
    )


TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize("api", ["chat", "completions"])
async def test_a_stream_is_measured_and_its_connection_kept(plain: SimulatedPod, api: str) -> None:
    async with asking(plain.url, api=api) as client:
        for number in (1, 2):
            came = await client.ask(body(api=api), "c", number)
            assert (came.fault, came.status, came.output_tokens, came.has_usage) == (None, 200, 8, True)
            assert came.text
            assert came.prompt_tokens
            assert came.sent_s <= came.first_s <= came.last_s <= came.end_s
            assert len(came.times) == 8
        assert client.opened == 1
    assert [record.headers["x-request-id"] for record in plain.requests] == ["c-1", "c-2"]
    assert {record.headers["x-session-id"] for record in plain.requests} == {"c"}


async def test_the_text_is_what_the_server_says_unstreamed(plain: SimulatedPod) -> None:
    async with asking(plain.url) as client:
        came = await client.ask(body(32, temperature=0), "c", 1)
        whole = await client.ask_plain(
            "POST", "/v1/chat/completions", body(32, temperature=0, stream=False, stream_options=None)
        )
    assert came.text.encode() in whole.body


FAULTS = [
    ({"kind": "refuse_5xx", "status": 503}, "http_503"),
    ({"kind": "reset_before_headers", "times": 2}, "reset"),
    ({"kind": "reset_after_events", "events": 3}, "reset"),
    ({"kind": "close_without_response", "times": 2}, "reset"),
    ({"kind": "malformed_head"}, "malformed"),
    ({"kind": "malformed_chunk", "events": 2}, "malformed"),
    ({"kind": "malformed_sse", "events": 2}, "malformed"),
    ({"kind": "finish_error", "events": 2}, "error_InternalServerError"),
    ({"kind": "hang_before_headers"}, "timeout_first_token"),
    ({"kind": "stall_after_events", "events": 3}, "timeout"),
]


@pytest.mark.parametrize(("order", "fault"), FAULTS, ids=[order["kind"] for order, _ in FAULTS])
async def test_a_broken_answer_is_a_class_of_failure_and_the_next_one_is_whole(
    plain: SimulatedPod, order: dict[str, object], fault: str
) -> None:
    plain.fault(**order)
    patience = {"timeout_first_token": Patience(5.0, 0.1, 5.0), "timeout": Patience(5.0, 5.0, 0.6)}.get(fault, PATIENT)
    async with asking(plain.url, patience) as client:
        assert (await client.ask(body(), "c", 1)).fault == fault
        if fault.startswith("timeout"):
            client.patience = PATIENT
        if order.get("times") != 2:
            assert (await client.ask(body(), "c", 2)).fault is None


async def test_a_slow_trickle_is_over_at_the_time_out() -> None:
    endless = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + TOKEN
    async with scripted(endless, b"", close=False) as (url, _):
        async with asking(url, Patience(5.0, 5.0, 0.5)) as client:
            came = await client.ask(body(), "c", 1)
    assert (came.fault, len(came.times)) == ("timeout", 1)
    assert came.end_s - came.sent_s == pytest.approx(0.5, abs=0.5)


async def test_a_connection_the_server_closed_meanwhile_is_not_the_servers_fault() -> None:
    async with scripted(http(TOKEN + DONE), b"", http(TOKEN + DONE), close=False) as (url, heard):
        async with asking(url) as client:
            first, second = [await client.ask(body(), "c", number) for number in (1, 2)]
    assert (first.fault, first.resent, second.fault, second.resent) == (None, False, None, True)
    assert client.opened == 2
    assert [head.partition(b"X-Request-Id: ")[2][:3] for head in heard] == [b"c-1", b"c-2", b"c-2"]


async def test_a_stream_without_an_end_is_incomplete() -> None:
    async with scripted(http(TOKEN), http(b"{}", kind="application/json"), http(TOKEN + DONE)) as (url, _):
        async with asking(url) as client:
            first, second, third = [await client.ask(body(), "c", number) for number in (1, 2, 3)]
    assert (first.fault, first.detail) == ("incomplete", "")
    assert (second.fault, second.detail) == ("incomplete", "no stream of events")
    assert (third.fault, third.output_tokens, third.has_usage) == (None, 1, False)


async def test_a_new_connection_that_closes_is_the_servers_fault() -> None:
    async with scripted(b"", http(TOKEN + DONE)) as (url, heard):
        async with asking(url) as client:
            came = await client.ask(body(), "c", 1)
    assert (came.fault, came.resent, len(heard)) == ("reset", False, 1)


async def test_a_redirect_is_not_followed() -> None:
    async with scripted(http(b"", "307 Temporary Redirect", more="Location: http://elsewhere/v1\r\n")) as (url, heard):
        async with asking(url) as client:
            came = await client.ask(body(), "c", 1)
    assert (came.fault, came.detail) == ("http_307", "to http://elsewhere/v1")
    assert len(heard) == 1


async def test_nobody_there_is_said_so() -> None:
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    await server.wait_closed()
    async with asking(url) as client:
        came = await client.ask(body(), "c", 1)
    assert came.fault == "connect"
    assert came.detail


async def test_tls_and_who_is_trusted(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = tls_library.create_default_context(tls_library.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    async with scripted(http(TOKEN + DONE), http(TOKEN + DONE), close=False, ssl=context) as (url, heard):
        async with asking(url, tls=trust(tmp_path / "ca.pem")) as client:
            assert (await client.ask(body(), "c", 1)).fault is None
        async with asking(url) as client:
            came = await client.ask(body(), "c", 1)
            assert (came.fault, came.detail[:5]) == ("connect", "TLS: ")
        async with asking(url, tls=trust(insecure=True)) as client:
            assert (await client.ask(body(), "c", 2)).fault is None
    assert len(heard) == 2
