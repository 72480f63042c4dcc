"""Writes one HTTP answer, with the fault it is to meet.

Rule of this room: every byte of an API answer goes through here, so every fault is carried out here.
"""

import asyncio
import socket
import struct
from typing import Any

import orjson
from aiohttp import web

from loadtest.pod.errors import ApiError
from loadtest.pod.faults import Fault, Kind

SERVER = {"Server": "uvicorn", "Vary": "Origin"}

_OF_A_BODY = (
    Kind.RESET_AFTER_EVENTS,
    Kind.STALL_AFTER_EVENTS,
    Kind.ONE_BYTE_WRITES,
    Kind.RESET_AT_BYTE,
    Kind.MALFORMED_CHUNK,
    Kind.ENDLESS_BODY,
)
_FILLING = b"x" * (256 * 1024)


def _reset_on_close(transport: asyncio.Transport) -> None:
    """Have the kernel send a reset in place of a proper end."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class ConnectionReset(Exception):
    """The pod reset the connection on purpose; nothing more can be written."""


class Reply:
    """The answer to one request: either `json`, or `start`, `event`s and `end`. cleared: ends a fault that holds."""

    def __init__(self, request: web.Request, fault: Fault | None, cleared: asyncio.Event) -> None:
        self._request = request
        self._fault = fault
        self._cleared = cleared
        self._stream: web.StreamResponse | None = None
        self._events = 0
        self._bytes = 0

    async def before_headers(self) -> None:
        """Faults that strike before the pod has looked at the request."""
        if self._fault is None:
            return
        match self._fault.kind:
            case Kind.SLOW_HEADERS:
                await asyncio.sleep(self._fault.seconds)
            case Kind.HOLD if self._fault.events == 0:
                await self._cleared.wait()
            case Kind.HANG_BEFORE_HEADERS:
                await asyncio.Event().wait()
            case Kind.RESET_BEFORE_HEADERS:
                self._reset()
            case Kind.CLOSE_WITHOUT_RESPONSE:
                self._cut(b"", reset=False)
            case Kind.MALFORMED_HEAD:
                self._cut(b"SSH-2.0-OpenSSH_9.7\r\n", reset=False)
            case Kind.REFUSE_5XX:
                raise ApiError(self._fault.status, "The pod was told to refuse.", "InternalServerError")

    async def json(self, status: int, value: Any) -> web.StreamResponse:
        """A whole answer."""
        body = orjson.dumps(value)
        kind = self._fault.kind if self._fault else None
        if kind is Kind.MALFORMED_SSE:
            body = body[: len(body) // 2]
        if kind not in _OF_A_BODY:
            return web.Response(status=status, body=body, content_type="application/json", headers=SERVER)
        chunked = kind in (Kind.MALFORMED_CHUNK, Kind.ENDLESS_BODY)
        length = {} if chunked else {"Content-Length": str(len(body))}
        response = web.StreamResponse(
            status=status,
            headers={**SERVER, "Content-Type": "application/json", **length},
        )
        await response.prepare(self._request)
        if kind is Kind.ONE_BYTE_WRITES:
            await self._byte_by_byte(response, body)
        elif kind is Kind.RESET_AT_BYTE:
            await self._up_to_byte(response, body)
        elif kind is Kind.MALFORMED_CHUNK:
            self._cut(b"quite a lot\r\n", reset=False)
        elif kind is Kind.ENDLESS_BODY:
            await self._endless(response)
        else:
            await response.write(body[: len(body) // 2])
            if kind is Kind.RESET_AFTER_EVENTS:
                self._reset()
            await asyncio.Event().wait()
        await response.write_eof()
        return response

    async def start(self) -> None:
        """Headers of an event stream; they leave at once, before there is any event."""
        self._stream = web.StreamResponse(headers={**SERVER, "Content-Type": "text/event-stream; charset=utf-8"})
        await self._stream.prepare(self._request)

    async def event(self, data: bytes, name: str | None = None) -> None:
        """One `data:` event, with its name where it has one."""
        await self._strike()
        self._events += 1
        assert self._stream is not None
        event = b"data: " + data + b"\n\n"
        if name is not None:
            event = b"event: " + name.encode() + b"\n" + event
        kind = self._fault.kind if self._fault else None
        if kind is Kind.ONE_BYTE_WRITES:
            await self._byte_by_byte(self._stream, event)
        elif kind is Kind.RESET_AT_BYTE:
            await self._up_to_byte(self._stream, event)
        else:
            await self._stream.write(event)

    async def end(self) -> web.StreamResponse:
        await self.event(b"[DONE]")
        return await self.finish()

    async def finish(self) -> web.StreamResponse:
        """The end of a stream without [DONE]."""
        await self._strike()
        assert self._stream is not None
        await self._stream.write_eof()
        return self._stream

    @property
    def fails_now(self) -> bool:
        """Whether the engine is to end this request with an error at this point."""
        fault = self._fault
        return fault is not None and fault.kind is Kind.FINISH_ERROR and self._events >= fault.events

    async def _strike(self) -> None:
        fault = self._fault
        if fault is None or self._events < fault.events:
            return
        if fault.kind is Kind.RESET_AFTER_EVENTS:
            self._reset()
        if fault.kind is Kind.STALL_AFTER_EVENTS:
            await asyncio.Event().wait()
        if fault.kind is Kind.HOLD:
            await self._cleared.wait()
        if fault.kind is Kind.MALFORMED_CHUNK:
            self._cut(b"quite a lot\r\n", reset=False)
        if fault.kind is Kind.MALFORMED_SSE and self._events == fault.events and self._stream is not None:
            await self._stream.write(b'data: {"choices": [{"index"\n\n')
        if fault.kind is Kind.ENDLESS_BODY and self._stream is not None:
            await self._stream.write(b'data: {"choices": "')
            await self._endless(self._stream)

    def _reset(self) -> None:
        self._cut(b"", reset=True)

    def _cut(self, last: bytes, *, reset: bool) -> None:
        """Write raw bytes and close the connection, properly or with a reset."""
        transport = self._request.transport
        if transport is not None:
            transport.write(last)
            if reset:
                _reset_on_close(transport)
                transport.abort()
            else:
                transport.close()
        raise ConnectionReset

    async def _up_to_byte(self, response: web.StreamResponse, data: bytes) -> None:
        assert self._fault is not None
        left = self._fault.bytes - self._bytes
        self._bytes += len(data)
        await response.write(data[: max(0, left)])
        if left <= len(data):
            self._reset()

    @staticmethod
    async def _endless(response: web.StreamResponse) -> None:
        while True:
            await response.write(_FILLING)
            await asyncio.sleep(0)

    @staticmethod
    async def _byte_by_byte(response: web.StreamResponse, data: bytes) -> None:
        for position in range(len(data)):
            await response.write(data[position : position + 1])
            await asyncio.sleep(0)
