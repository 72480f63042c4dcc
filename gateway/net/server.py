"""The HTTP server, today on aiohttp.

Rule of this room: the only place in the request path that knows the server library. It offers `exchange.Incoming`
and `exchange.Outgoing` to a handler and cancels the handler when the client goes away.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

from gateway.net.exchange import ClientGoneError, Headers, Incoming, Outgoing
from gateway.wire.errors import BadRequestError, BodyTooLargeError

Handle = Callable[[Incoming, Outgoing], Awaitable[None]]


class _Incoming:
    def __init__(self, request: web.BaseRequest) -> None:
        self._request = request
        self.method = request.method
        self.path = request.path
        self.target = request.raw_path

    @property
    def headers(self) -> Mapping[str, str]:
        return self._request.headers

    def header_items(self) -> Headers:
        return list(self._request.headers.items())

    async def body(self, limit: int) -> bytes:
        request = self._request
        if (request.content_length or 0) > limit:
            raise _too_large(limit)
        pieces: list[bytes] = []
        size = 0
        try:
            while piece := await request.content.readany():
                size += len(piece)
                if size > limit:
                    raise _too_large(limit)
                pieces.append(piece)
        except web.RequestPayloadError:
            raise BadRequestError("The request body could not be read.") from None
        return b"".join(pieces)


class _Outgoing:
    def __init__(self, request: web.BaseRequest) -> None:
        self._request = request
        self.response: web.StreamResponse | None = None

    @property
    def started(self) -> bool:
        return self.response is not None

    async def send(self, status: int, headers: Headers, body: bytes) -> None:
        response = self._make(status, headers)
        response.content_length = len(body)
        await self._guard(response.prepare(self._request))
        if self._request.method != "HEAD":
            await self._guard(response.write(body))
        await self._guard(response.write_eof())

    async def start(self, status: int, headers: Headers) -> None:
        response = self._make(status, headers)
        if self._request.version >= (1, 1):
            response.enable_chunked_encoding()
        await self._guard(response.prepare(self._request))

    async def write(self, data: bytes) -> None:
        assert self.response is not None
        await self._guard(self.response.write(data))

    async def end(self) -> None:
        assert self.response is not None
        await self._guard(self.response.write_eof())

    def _make(self, status: int, headers: Headers) -> web.StreamResponse:
        self.response = web.StreamResponse(status=status)
        self.response.headers.extend(headers)
        return self.response

    @staticmethod
    async def _guard(step: Awaitable[object]) -> None:
        try:
            await step
        except ConnectionError as error:
            raise ClientGoneError from error


def _too_large(limit: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"The request body is larger than {limit} bytes.")


class HttpServer:
    """Listens on one address until `stop`."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._runner = web.ServerRunner(web.Server(self._serve, handler_cancellation=True, access_log=None))
        self._site: web.SockSite | None = None

    async def start(self, host: str, port: int, *, shared: bool = False) -> int:
        """Bind and listen; returns the port (the kernel's choice when `port` is 0). Raises OSError.

        shared: other processes of this user listen there too; the kernel spreads connections over all of them.
        """
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=4096, reuse_port=shared)
        await self._runner.setup()
        self._site = web.SockSite(self._runner, listener, backlog=4096)
        await self._site.start()
        return int(listener.getsockname()[1])

    async def stop_accepting(self) -> None:
        """Close the listening socket; connections in use go on."""
        if self._site is not None:
            await self._site.stop()
            self._site = None

    async def stop(self) -> None:
        """Close everything."""
        await self._runner.cleanup()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        outgoing = _Outgoing(request)
        try:
            await self._handle(_Incoming(request), outgoing)
        except ClientGoneError:
            request.protocol.force_close()
        return outgoing.response or web.Response(status=500)
