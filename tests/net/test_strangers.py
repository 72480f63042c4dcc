"""Whoever has no key must not make the gateway take in a long body."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from gateway.net.connection import STRANGERS_BYTES
from tests.net.test_keys import ALICE, UNAUTHORIZED, bearer, body, guarded
from tests.net.world import CHAT, LONG, World, user, world

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
PIECE = b"x" * 4096


async def said(w: World, head: bytes, piece: bytes = b"", count: int = 0) -> tuple[bytes, int]:
    """Send a head, then pieces until the gateway answers; what it said, and how much of the body it took before."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(w.url.rpartition(":")[2]))
    try:
        writer.write(head)
        answer = asyncio.ensure_future(reader.readuntil(b"\r\n\r\n"))
        sent = 0
        with suppress(ConnectionError):  # it answered and closed
            while sent < count and not answer.done():
                writer.write(piece)
                sent += 1
                await writer.drain()
                await asyncio.sleep(0)
        async with asyncio.timeout(30):
            head = await answer
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            return head + await reader.readexactly(length), sent
    finally:
        writer.transport.abort()


async def test_a_long_body_is_refused_by_its_announcement(tmp_path: Path) -> None:
    async with guarded(tmp_path, prefill=0, decode=1) as w:
        answer, _ = await said(w, HEAD + b"Content-Length: 33000000\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert b"www-authenticate: bearer" in answer.lower()
        assert str(UNAUTHORIZED["error"]["message"]).encode() in answer


async def test_nobody_without_a_key_is_told_to_go_on(tmp_path: Path) -> None:
    async with guarded(tmp_path, prefill=0, decode=1) as w:
        answer, _ = await said(w, HEAD + b"Expect: 100-continue\r\nContent-Length: 1000000\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 401 ")


async def test_a_body_that_does_not_say_how_long_it_is_is_refused_once_it_is_long(tmp_path: Path) -> None:
    async with guarded(tmp_path, prefill=0, decode=1) as w:
        chunk = b"1000\r\n" + PIECE + b"\r\n"
        answer, sent = await said(w, HEAD + b"Transfer-Encoding: chunked\r\n\r\n", chunk, 10_000)
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert STRANGERS_BYTES / len(PIECE) < sent < 10_000


@pytest.mark.parametrize("size", [10, STRANGERS_BYTES + 10])
async def test_with_a_key_bodies_are_as_long_as_they_were(tmp_path: Path, size: int) -> None:
    async with guarded(tmp_path, prefill=0, decode=1) as w:
        reply = await w.post(CHAT, body(user(LONG), user="u" * size), bearer(ALICE))
        assert reply.status == 200
        again = await w.post(CHAT, body(user("x " * 40), user="u" * size), bearer(ALICE))
        assert again.status == 200


async def test_a_short_body_is_refused_on_a_connection_that_stays(tmp_path: Path) -> None:
    async with guarded(tmp_path, prefill=0, decode=1) as w:
        first = await w.post(CHAT, body(user()))
        assert (first.status, first.headers.get("connection")) == (401, None)


async def test_without_keys_nobody_is_asked() -> None:
    async with world(prefill=0, decode=1) as w:
        assert (await w.post(CHAT, body(user(), user="u" * 200_000))).status == 200
