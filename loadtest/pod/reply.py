"""Writes one HTTP answer, with the fault it is to meet.

Rule of this room: every byte of an API answer goes through here, so every fault is carried out here.
"""

import asyncio
from typing import Any

import orjson
from aiohttp import web

from loadtest.pod.errors import ApiError
from loadtest.pod.faults import Fault, Kind

SERVER = {"Server": "uvicorn", "Vary": "Origin"}


class ConnectionReset(Exception):
    """The pod reset the connection on purpose; nothing more can be written."""


class Reply:
    """The answer to one request: either `json`, or `start`, `event`s and `end`."""

    def __init__(self, request: web.Request, fault: Fault | None) -> None:
        self._request = request
        self._fault = fault
        self._stream: web.StreamResponse | None = None
        self._events = 0

    async def before_headers(self) -> None:
        """Faults that strike before the pod has looked at the request."""
        if self._fault is None:
            return
        match self._fault.kind:
            case Kind.SLOW_HEADERS:
                await asyncio.sleep(self._fault.seconds)
            case Kind.HANG_BEFORE_HEADERS:
                await asyncio.Event().wait()
            case Kind.RESET_BEFORE_HEADERS:
                self._reset()
            case Kind.REFUSE_5XX:
                raise ApiError(self._fault.status, "The pod was told to refuse.", "InternalServerError")

    async def json(self, status: int, value: Any) -> web.StreamResponse:
        """A whole answer."""
        body = orjson.dumps(value)
        kind = self._fault.kind if self._fault else None
        if kind not in (Kind.RESET_AFTER_EVENTS, Kind.STALL_AFTER_EVENTS, Kind.ONE_BYTE_WRITES):
            return web.Response(status=status, body=body, content_type="application/json", headers=SERVER)
        response = web.StreamResponse(
            status=status,
            headers={**SERVER, "Content-Type": "application/json", "Content-Length": str(len(body))},
        )
        await response.prepare(self._request)
        if kind is Kind.ONE_BYTE_WRITES:
            await self._byte_by_byte(response, body)
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

    async def event(self, data: bytes) -> None:
        """One `data:` event."""
        await self._strike()
        self._events += 1
        assert self._stream is not None
        event = b"data: " + data + b"\n\n"
        if self._fault and self._fault.kind is Kind.ONE_BYTE_WRITES:
            await self._byte_by_byte(self._stream, event)
        else:
            await self._stream.write(event)

    async def end(self) -> web.StreamResponse:
        await self.event(b"[DONE]")
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

    def _reset(self) -> None:
        transport = self._request.transport
        if transport is not None:
            transport.abort()
        raise ConnectionReset

    @staticmethod
    async def _byte_by_byte(response: web.StreamResponse, data: bytes) -> None:
        for position in range(len(data)):
            await response.write(data[position : position + 1])
            await asyncio.sleep(0)
