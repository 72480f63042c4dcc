"""Calls to pods, over a pool of kept-alive connections.

Rule of this room: what has been sent to a pod once is not sent to it again, except when a kept-alive connection turned
out stale before a byte came back.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections import deque
from time import monotonic
from urllib.parse import urlsplit
from weakref import WeakSet

from gateway.net.exchange import Headers, RawHeaders
from gateway.net.fault import PodFault
from gateway.net.headers import signed
from gateway.net.pod_connection import PodConnection, Sink, head_of

__all__ = ["PodAnswer", "PodClient", "PodFault"]

POD_KEEPALIVE_S = 4.0
"""vLLM's HTTP server closes idle connections after 5 s (VLLM_HTTP_TIMEOUT_KEEP_ALIVE)."""

_STALE_WITHIN_S = 1.0

OWN_TROUBLE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL)
"""Why a connection could not be made, where it is not the pod's fault."""


class PodAnswer:
    """The head of a pod's answer. Its body is read whole (`read`), in pieces (`next_chunk`), or passed on (`pipe`)."""

    __slots__ = ("_connection", "_pool", "raw_headers", "status")

    def __init__(self, connection: PodConnection, pool: _Pool) -> None:
        self._connection: PodConnection | None = connection
        self._pool: _Pool = pool
        self.status = connection.status
        self.raw_headers: RawHeaders = connection.raw_headers

    @property
    def headers(self) -> Headers:
        """In order, as the pod sent them; `raw_headers` is what they were read from."""
        return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in self.raw_headers]

    @property
    def content_type(self) -> str:
        """The media type in lower case, without parameters."""
        for name, value in self.raw_headers:
            if name.lower() == b"content-type":
                return value.decode("latin-1").partition(";")[0].strip().lower()
        return ""

    async def read(self, timeout_s: float) -> bytes:
        """The whole body. Raises PodFault."""
        connection = self._connection
        if connection is None:
            raise PodFault("reset", "the answer was closed")
        body = connection.take() if connection.complete else await connection.until_complete(timeout_s)
        self._connection = None
        self._pool.put(connection)
        return body

    async def next_chunk(self, timeout_s: float) -> bytes:
        """What has arrived, at least a byte; empty at the proper end. Raises PodFault."""
        if self._connection is None:
            return b""
        data = await self._connection.until_more(timeout_s)
        if not data:
            self.close()
        return data

    async def pipe(self, sink: Sink, gap_s: float) -> None:
        """Hand the rest of the body to `sink` as it comes, until the proper end. Raises PodFault, and what `sink`
        raises."""
        if self._connection is None:
            return
        await self._connection.pipe(sink, gap_s)
        self.close()

    def pause(self) -> None:
        """Let the pod wait."""
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        """Let the pod go on."""
        if self._connection is not None:
            self._connection.resume()

    def close(self) -> None:
        """Close the connection, which makes the pod abort the request. Harmless after the end."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._pool.put(connection)


class _Pool:
    """The connections to one pod. The one used last is used first, so that the others may close."""

    def __init__(self, url: str, tls: ssl.SSLContext | None) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = tls if parts.scheme == "https" else None
        self._loop = asyncio.get_running_loop()
        self._idle: deque[PodConnection] = deque()
        self._made: WeakSet[PodConnection] = WeakSet()
        self.shut = False
        self.name = parts.netloc

    def take(self) -> PodConnection | None:
        """A connection that is still good, as far as can be seen."""
        idle = self._idle
        oldest = monotonic() - POD_KEEPALIVE_S
        while idle and (idle[0].closed or idle[0].silent_since < oldest):
            idle.popleft().close()
        while idle:
            connection = idle.pop()
            if not connection.closed:
                return connection
        return None

    def put(self, connection: PodConnection) -> None:
        """Nobody waits for the answer on it any more."""
        if connection.rest() and not self.shut:
            self._idle.append(connection)
        else:
            connection.close()

    async def dial(self, connect_s: float) -> PodConnection:
        """A new connection. Raises PodFault."""
        try:
            async with asyncio.timeout(connect_s):
                _, connection = await self._loop.create_connection(PodConnection, self._host, self._port, ssl=self._tls)
        except TimeoutError:
            raise PodFault("connect", f"no connection within {connect_s:g} s", reached=False) from None
        except OSError as error:
            if error.errno in OWN_TROUBLE:
                raise PodFault("local", str(error), reached=False) from error
            gone = isinstance(error, ConnectionRefusedError)
            raise PodFault("connect", str(error), process_gone=gone, reached=False) from error
        if self.shut:
            connection.close()
            raise PodFault("connect", "the pod was removed", reached=False)
        self._made.add(connection)
        return connection

    def close(self) -> None:
        """Close all idle connections."""
        while self._idle:
            self._idle.pop().close()

    def end(self) -> int:
        """The pod is removed: close all connections, those in use too; gives how many of these there were."""
        self.shut = True
        self.close()
        busy = [connection for connection in self._made if not connection.closed]
        for connection in busy:
            connection.break_off(PodFault("reset", "the pod was removed"))
        return len(busy)

    @property
    def idle(self) -> int:
        """Connections that wait for a request."""
        return len(self._idle)


class PodClient:
    """One pool of connections per pod. Use as an async context manager.

    key: the pods' own, in place of what clients sent; may be exchanged at any time.
    """

    def __init__(self, connect_s: float, tls: ssl.SSLContext | None = None, key: str | None = None) -> None:
        self.key = key
        self._connect_s = connect_s
        self._tls = tls
        self._pools: dict[str, _Pool] = {}
        self._open = False

    async def __aenter__(self) -> PodClient:
        self._open = True
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._open = False
        for pool in self._pools.values():
            pool.close()
        await asyncio.sleep(0)

    def drop(self, pod_url: str) -> int:
        """A pod was removed: close its connections; gives how many of them were in use."""
        pool = self._pools.pop(pod_url, None)
        return 0 if pool is None else pool.end()

    async def call(
        self, method: str, pod_url: str, target: str, headers: Headers, body: bytes, timeout_s: float
    ) -> PodAnswer:
        """Send a request and wait up to `timeout_s` for the head of the answer. Raises PodFault.

        Every call to a pod is made here, so the pods' own key is put on every one of them here.
        """
        if not self._open:
            raise RuntimeError("PodClient is used outside its context")
        if self.key is not None:
            headers = signed(headers, self.key)
        pool = self._pools.get(pod_url) or self._pool_of(pod_url)
        head = head_of(method, pool.name, target, headers, len(body))
        connection = pool.take()
        while True:
            if connection is None:
                connection = await pool.dial(min(self._connect_s, timeout_s))
            try:
                connection.ask(head, body)
                await connection.until_head(timeout_s, bodyless=method == "HEAD")
                if self.key is not None and connection.status == 401:
                    raise PodFault("status", "401: the pod does not take the gateway's key")
                return PodAnswer(connection, pool)
            except PodFault as fault:
                connection.close()
                lasted_s = monotonic() - connection.silent_since
                stale = connection.used > 1 and not connection.heard and lasted_s <= _STALE_WITHIN_S
                if not stale or fault.word != "reset" or pool.shut:
                    raise
                connection = None
            except BaseException:
                connection.close()
                raise

    def _pool_of(self, pod_url: str) -> _Pool:
        tls = self._tls or (ssl.create_default_context() if pod_url.startswith("https:") else None)
        pool = self._pools[pod_url] = _Pool(pod_url, tls)
        return pool
