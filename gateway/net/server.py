"""The HTTP server: a listening socket, its connections, and one task per request.

Rule of this room: connections are watched by one timer in buckets of a tick, never by a timer each, so that a
hundred thousand idle ones cost nothing.
"""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
from collections import defaultdict
from collections.abc import Awaitable, Callable

from gateway.net.connection import Connection, Limits
from gateway.net.exchange import ClientGoneError, Incoming, Outgoing
from gateway.net.request import Request
from gateway.wire.errors import ClientVisibleError

Handle = Callable[[Incoming, Outgoing], Awaitable[None]]
Vet = Callable[[Incoming], ClientVisibleError | None]
"""Says of a request without its body what is wrong with it."""

BACKLOG = 4096
ACCEPT_AT_ONCE = 64


class _Place:
    """Where an open connection is found from the buckets it is in; empty once it is gone, so that they hold nothing."""

    __slots__ = ("connection",)

    def __init__(self, connection: Connection) -> None:
        self.connection: Connection | None = connection


class HttpServer:
    """Listens on one address until `stop`. The handler is cancelled when its client goes away.

    vet: asked before a long body is taken in. tick_s: how exactly the limits' seconds are kept.
    """

    def __init__(
        self,
        handle: Handle,
        limits: Limits | None = None,
        tls: ssl.SSLContext | None = None,
        vet: Vet | None = None,
        *,
        tick_s: float = 1.0,
    ) -> None:
        self.limits = limits or Limits()
        self._tick_s = tick_s
        self._handle = handle
        self._tls = tls
        self._vet = vet
        self._server: asyncio.Server | None = None
        self._listener: socket.socket | None = None
        self._arriving: set[asyncio.Task[None]] = set()
        self._connections: dict[Connection, _Place] = {}
        self._watched: defaultdict[int, set[_Place]] = defaultdict(set)
        self._sweeper: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()

    async def start(self, host: str, port: int, *, shared: bool = False) -> int:
        """Bind and listen; returns the port (the kernel's choice when `port` is 0). Raises OSError.

        shared: other processes listen on the same port (SO_REUSEPORT).
        """
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG, reuse_port=shared)
        return await self.listen(listener)

    async def listen(self, listener: socket.socket) -> int:
        """Take over a socket that is bound already; returns its port."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        self._listener = listener
        self._server = await loop.create_server(
            lambda: Connection(self),
            sock=listener,
            backlog=BACKLOG,
            ssl=self._tls,
            ssl_handshake_timeout=None if self._tls is None else self.limits.head_s,
        )
        self._sweeper = asyncio.ensure_future(self._sweep())
        return int(listener.getsockname()[1])

    @property
    def connections(self) -> int:
        """Open client connections."""
        return len(self._connections)

    async def stop_accepting(self) -> None:
        """Close the listening socket; connections in use go on to the end of their request, idle ones close."""
        self._listener = None
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self._connections):
            connection.last()

    async def stop(self) -> None:
        """Close everything."""
        await self.stop_accepting()
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        await asyncio.gather(*self._arriving)
        for connection in list(self._connections):
            connection.abort()
        while self._connections:
            self._idle.clear()
            await self._idle.wait()

    # ---- what connections ask of their server

    def opened(self, connection: Connection) -> None:
        self._connections[connection] = _Place(connection)
        if self._listener is not None:
            self._accept_more(self._listener)

    def closed(self, connection: Connection) -> None:
        if not connection.busy:
            self._gone(connection)

    def serve(self, connection: Connection, request: Request) -> asyncio.Task[None]:
        return connection.loop.create_task(self._serve(connection, request))

    def vet(self, head: Request) -> ClientVisibleError | None:
        return None if self._vet is None else self._vet(head)

    def watch(self, connection: Connection, deadline: float) -> None:
        if (place := self._connections.get(connection)) is not None:
            self._watched[int(deadline / self._tick_s)].add(place)
            connection.next_look = deadline

    def _accept_more(self, listener: socket.socket) -> None:
        """Take in who else waits. uvloop accepts one client per turn of its loop, so that under load, when turns are
        long, new clients would wait behind each other until they give up."""
        for _ in range(ACCEPT_AT_ONCE):
            try:
                client, _ = listener.accept()
            except OSError:  # nobody waits, or there are no file descriptors, which the loop tells of
                return
            task = asyncio.ensure_future(self._take_in(client))
            self._arriving.add(task)
            task.add_done_callback(self._arriving.discard)

    async def _take_in(self, client: socket.socket) -> None:
        client.setblocking(False)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: Connection(self),
                client,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else self.limits.head_s,
            )
        except OSError:  # it has hung up, or shook no hands
            client.close()

    async def _serve(self, connection: Connection, request: Request) -> None:
        try:
            await self._handle(request, connection)
        except ClientGoneError:
            connection.abort()
        finally:
            connection.finished()

    def _gone(self, connection: Connection) -> None:
        if (place := self._connections.pop(connection, None)) is not None:
            place.connection = None
        if not self._connections:
            self._idle.set()

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        done = int(loop.time() / self._tick_s)
        while True:
            await asyncio.sleep(self._tick_s)
            now = loop.time()
            for tick in range(done, int(now / self._tick_s)):
                for place in self._watched.pop(tick, ()):
                    connection = place.connection
                    if connection is None:
                        continue
                    connection.next_look = math.inf
                    if connection.deadline > now:
                        self.watch(connection, connection.deadline)
                    elif connection.deadline:
                        connection.overdue()
            done = int(now / self._tick_s)
