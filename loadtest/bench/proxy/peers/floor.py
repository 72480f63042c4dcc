"""The floor: what a two-leg relay without any feature costs in Python.

Rule of this room: httptools and uvloop at their best and nothing that a user would want. What comes from the decode pod
goes to the client byte for byte, its framing included; the parser only finds the end.
`python -m loadtest.bench.proxy.peers.floor --prefill PORT --decode PORT` prints the port it listens on.
"""

from __future__ import annotations

import argparse
import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import httptools
import orjson
import uvloop

ASK_P = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
BAD_GATEWAY = b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n"
READY = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


class Leg(asyncio.Protocol):
    """A kept-alive connection to a pod; it serves one client at a time."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._parser = httptools.HttpResponseParser(self)
        self.transport: Any = None
        self.client: Client | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.abort()

    def on_message_complete(self) -> None:
        client, self.client = self.client, None
        self._pool.idle.append(self)
        if client is not None:
            self.done(client, self._parser.get_status_code())

    def done(self, client: Client, status: int) -> None:
        """The answer is complete."""

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self._pool.idle:
            self._pool.idle.remove(self)
        if self.client is not None:
            self.client.leg_lost()


class PrefillLeg(Leg):
    """Keeps the answer for the hand-over."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool)
        self._pieces: list[bytes] = []

    def on_body(self, piece: bytes) -> None:
        self._pieces.append(piece)

    def done(self, client: Client, status: int) -> None:
        body = b"".join(self._pieces)
        self._pieces.clear()
        client.prefilled(status, body)


class DecodeLeg(Leg):
    """Passes the answer on as it comes."""

    def data_received(self, data: bytes) -> None:
        if self.client is not None:
            self.client.transport.write(data)
        super().data_received(data)

    def done(self, client: Client, status: int) -> None:
        client.leg = None


class Pool:
    """The connections to one pod."""

    def __init__(self, port: int, make: Callable[[Pool], Leg]) -> None:
        self._port = port
        self._make = make
        self._dialling: set[asyncio.Task[None]] = set()
        self.idle: list[Leg] = []

    def ask(self, client: Client, path: bytes, body: bytes) -> None:
        """Send the client's request, on a new connection if none is idle."""
        head = (
            b"POST %b HTTP/1.1\r\nhost: 127.0.0.1:%d\r\ncontent-type: application/json\r\n"
            b"x-request-id: %b\r\ncontent-length: %d\r\n\r\n" % (path, self._port, client.request_id, len(body))
        )
        if self.idle:
            self._send(self.idle.pop(), client, head, body)
            return
        task = asyncio.get_running_loop().create_task(self._dial(client, head, body))
        self._dialling.add(task)
        task.add_done_callback(self._dialling.discard)

    async def _dial(self, client: Client, head: bytes, body: bytes) -> None:
        try:
            _, leg = await asyncio.get_running_loop().create_connection(
                lambda: self._make(self), "127.0.0.1", self._port
            )
        except OSError:
            client.transport.write(BAD_GATEWAY)
            return
        self._send(leg, client, head, body)

    @staticmethod
    def _send(leg: Leg, client: Client, head: bytes, body: bytes) -> None:
        leg.client = client
        client.leg = leg
        leg.transport.writelines((head, body))


class Client(asyncio.Protocol):
    """A client's connection."""

    def __init__(self, prefill: Pool, decode: Pool) -> None:
        self._prefill = prefill
        self._decode = decode
        self._parser = httptools.HttpRequestParser(self)
        self._pieces: list[bytes] = []
        self._path = b""
        self._fields: dict[str, Any] = {}
        self.transport: Any = None
        self.request_id = b""
        self.leg: Leg | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.abort()

    def on_url(self, url: bytes) -> None:
        self._path = url

    def on_body(self, piece: bytes) -> None:
        self._pieces.append(piece)

    def on_message_complete(self) -> None:
        body = b"".join(self._pieces)
        self._pieces.clear()
        if not body:
            self.transport.write(READY)
            return
        self._fields = orjson.loads(body)
        self.request_id = uuid.uuid4().hex.encode()
        fields = {**self._fields, "stream": False, "max_tokens": 1, "kv_transfer_params": ASK_P}
        fields.pop("stream_options", None)
        self._prefill.ask(self, self._path, orjson.dumps(fields))

    def prefilled(self, status: int, body: bytes) -> None:
        """The prefill pod has answered."""
        self.leg = None
        if status != 200:
            self.transport.write(BAD_GATEWAY)
            return
        self._fields["kv_transfer_params"] = orjson.loads(body).get("kv_transfer_params")
        self._decode.ask(self, self._path, orjson.dumps(self._fields))

    def leg_lost(self) -> None:
        """The pod went away in the middle."""
        self.transport.abort()

    def pause_writing(self) -> None:
        if self.leg is not None:
            self.leg.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.leg is not None:
            self.leg.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.leg is not None:
            self.leg.client = None
            self.leg.transport.abort()


async def serve(prefill_port: int, decode_port: int) -> None:
    """Listen until cancelled."""
    prefill, decode = Pool(prefill_port, PrefillLeg), Pool(decode_port, DecodeLeg)
    server = await asyncio.get_running_loop().create_server(
        lambda: Client(prefill, decode), "127.0.0.1", 0, backlog=4096
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--prefill", type=int, required=True)
    parser.add_argument("--decode", type=int, required=True)
    options = parser.parse_args()
    uvloop.run(serve(options.prefill, options.decode))


if __name__ == "__main__":
    main()
