"""What a connection to a pod makes of reads of any size."""

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest

from gateway.net.fault import PodFault
from gateway.net.pod_connection import MAX_HEAD_BYTES, PodConnection

BODY = b"x" * 4 * MAX_HEAD_BYTES


def asked() -> PodConnection:
    transport: Any = Mock()
    transport.get_extra_info.return_value = None
    connection = PodConnection()
    connection.connection_made(transport)
    connection.ask(b"POST / HTTP/1.1\r\n\r\n", b"")
    return connection


async def test_a_long_body_may_come_in_the_read_that_brings_the_head() -> None:
    connection = asked()
    connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY)
    await connection.until_head(5.0)
    assert (connection.raw_headers, await connection.until_complete(5.0)) == (
        [(b"Content-Length", b"%d" % len(BODY))],
        BODY,
    )
    assert connection.rest()


@pytest.mark.parametrize("line", [b"X-Long: %b\r\n", b"HTTP/1.1 103 Early Hints\r\nX-Long: %b\r\n\r\n"])
async def test_a_head_without_end_is_given_up(line: bytes) -> None:
    connection = asked()
    if line.startswith(b"X"):
        connection.data_received(b"HTTP/1.1 200 OK\r\n")
    for _ in range(MAX_HEAD_BYTES // 1000 + 1):
        connection.data_received(line % (b"x" * 1000))
    with pytest.raises(PodFault, match="head of the answer is too large"):
        await connection.until_head(5.0)
    assert connection.closed


ANSWERS = {
    b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none": b"one",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\ntwo\r\n0\r\nX-Trailer: x\r\n\r\n": b"two",
    b"HTTP/1.1 204 No Content\r\nX-A: b\r\n\r\n": b"",
    b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 404 No\r\nContent-Length: 4\r\n\r\nfour": b"four",
}


async def test_answers_of_every_frame_follow_one_another_on_one_connection() -> None:
    connection = asked()
    for _ in range(2):
        for answer, body in ANSWERS.items():
            connection.data_received(answer)
            await connection.until_head(5.0)
            head = answer[answer.rindex(b"HTTP/") :].partition(b"\r\n\r\n")[0].split(b"\r\n")
            assert connection.status == int(head[0].split()[1])
            assert [b": ".join(item) for item in connection.raw_headers] == head[1:], "and nothing of the one before"
            assert (await connection.until_complete(5.0), connection.rest()) == (body, True)
            connection.ask(b"GET / HTTP/1.1\r\n\r\n", b"")
    assert connection.used == 9


BEHIND = [
    b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n",
    b"HTTP/1.1 500 No\r\nX: y\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\ntwo",
    b"garbage\r\n\r\n",
    b"H",
]


@pytest.mark.parametrize("behind", BEHIND)
async def test_what_comes_behind_a_stream_is_nobodys_and_the_stream_is_whole(behind: bytes) -> None:
    connection = asked()
    connection.data_received(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
    await connection.until_head(5.0)
    heard: list[bytes] = []
    piping = asyncio.ensure_future(connection.pipe(heard.append, 5.0))
    await asyncio.sleep(0)
    connection.data_received(b"4\r\nlast\r\n0\r\n\r\n" + behind)
    await piping
    assert heard == [b"one", b"last"]
    assert not connection.rest()


@pytest.mark.parametrize("behind", BEHIND)
async def test_what_comes_behind_an_answer_changes_nothing_of_it(behind: bytes) -> None:
    connection = asked()
    connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none" + behind)
    await connection.until_head(5.0)
    assert (connection.status, connection.raw_headers) == (200, [(b"Content-Length", b"3")])
    assert await connection.until_complete(5.0) == b"one"
    assert not connection.rest(), "what comes next cannot be told apart"


async def test_a_timer_that_fires_while_nobody_waits_changes_nothing() -> None:
    connection = asked()
    connection.data_received(next(iter(ANSWERS)))
    await connection.until_head(0.001)
    assert await connection.until_complete(0.001) == b"one"
    await asyncio.sleep(0.01)
    assert connection.rest()
    connection.ask(b"GET / HTTP/1.1\r\n\r\n", b"")
    with pytest.raises(PodFault, match=r"timeout: no answer within 0\.01 s"):
        await connection.until_head(0.01)
    assert connection.closed
