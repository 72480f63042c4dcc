"""What a connection to a pod makes of reads of any size."""

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
    connection.ask(b"POST / HTTP/1.1\r\n\r\n", b"", bodyless=False)
    return connection


async def test_a_long_body_may_come_in_the_read_that_brings_the_head() -> None:
    connection = asked()
    connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY)
    await connection.until_head()
    assert (connection.raw_headers, await connection.until_complete()) == (
        [(b"Content-Length", b"%d" % len(BODY))],
        BODY,
    )
    assert connection.reusable


@pytest.mark.parametrize("line", [b"X-Long: %b\r\n", b"HTTP/1.1 103 Early Hints\r\nX-Long: %b\r\n\r\n"])
async def test_a_head_without_end_is_given_up(line: bytes) -> None:
    connection = asked()
    if line.startswith(b"X"):
        connection.data_received(b"HTTP/1.1 200 OK\r\n")
    for _ in range(MAX_HEAD_BYTES // 1000 + 1):
        connection.data_received(line % (b"x" * 1000))
    with pytest.raises(PodFault, match="head of the answer is too large"):
        await connection.until_head()
    assert connection.closed
