"""Calls to pods.

Rule of this room: every way a pod can fail before it has answered becomes one PodFault with a word for the log;
what has been sent to a pod once is not sent to it again, except when a kept-alive connection turned out stale.
"""

from __future__ import annotations

import asyncio
import io
import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import aiohttp

from gateway.net.exchange import Headers

POD_KEEPALIVE_S = 4.0
"""vLLM's HTTP server closes idle connections after 5 s (VLLM_HTTP_TIMEOUT_KEEP_ALIVE)."""

_STALE_WITHIN_S = 1.0
_LARGE_BODY_BYTES = 1 << 20


class PodFault(Exception):
    """A pod failed.

    word: "connect", "reset", "timeout", "malformed".
    process_gone: True when nothing listens there any more.
    reached: False when the pod certainly has not seen the request.
    """

    def __init__(self, word: str, detail: str, *, process_gone: bool = False, reached: bool = True) -> None:
        super().__init__(f"{word}: {detail}")
        self.word = word
        self.detail = detail
        self.process_gone = process_gone
        self.reached = reached


@dataclass(slots=True)
class PodAnswer:
    """The head of a pod's answer; its body is read by `read` or piece by piece by `next_chunk`."""

    status: int
    headers: Headers
    content_type: str
    _response: aiohttp.ClientResponse

    async def read(self, timeout_s: float) -> bytes:
        """The whole body. Raises PodFault."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._response.read()
        except TimeoutError:
            self.close()
            raise PodFault("timeout", f"the body took more than {timeout_s:g} s") from None
        except aiohttp.ClientError as error:
            self.close()
            raise _broken(error) from error

    async def next_chunk(self, timeout_s: float) -> bytes:
        """What has arrived, at least a byte; empty at the proper end. Raises PodFault."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._response.content.readany()
        except TimeoutError:
            self.close()
            raise PodFault("timeout", f"silent for more than {timeout_s:g} s") from None
        except aiohttp.ClientError as error:
            self.close()
            raise _broken(error) from error

    def close(self) -> None:
        """Close the connection, which makes the pod abort the request. Harmless after the end."""
        self._response.close()


class PodClient:
    """One connection pool to all pods. Use as an async context manager."""

    def __init__(self, connect_s: float) -> None:
        self._connect_s = connect_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> PodClient:
        trace = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(_note_reuse)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=POD_KEEPALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_s),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept", "Content-Type"),
            trace_configs=[trace],
            read_bufsize=1 << 18,
            max_line_size=1 << 16,
            max_field_size=1 << 16,
        )
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def call(
        self, method: str, pod_url: str, target: str, headers: Headers, body: bytes, timeout_s: float
    ) -> PodAnswer:
        """Send a request and wait up to `timeout_s` for the head of the answer. Raises PodFault."""
        for is_last in (False, True):
            context: dict[str, Any] = {"reused": False}
            started = time.monotonic()
            try:
                async with asyncio.timeout(timeout_s):
                    response = await self._request(method, pod_url + target, headers, body, context)
            except TimeoutError as error:
                if isinstance(error, aiohttp.ConnectionTimeoutError):
                    raise PodFault("connect", f"no connection within {self._connect_s:g} s", reached=False) from error
                raise PodFault("timeout", f"no answer within {timeout_s:g} s") from error
            except aiohttp.ClientConnectorError as error:
                gone = isinstance(error.os_error, ConnectionRefusedError)
                raise PodFault("connect", str(error.os_error), process_gone=gone, reached=False) from error
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                quick = time.monotonic() - started < _STALE_WITHIN_S
                if context["reused"] and quick and not is_last:
                    continue
                raise _broken(error) from error
            except aiohttp.ClientError as error:
                raise PodFault("malformed", f"{type(error).__name__} before the head was complete") from error
            return PodAnswer(
                status=response.status,
                headers=[(name, value) for name, value in response.headers.items()],
                content_type=response.content_type,
                _response=response,
            )
        raise AssertionError("unreachable: the second try returns or raises")

    async def _request(
        self, method: str, url: str, headers: Headers, body: bytes, context: dict[str, Any]
    ) -> aiohttp.ClientResponse:
        if self._session is None:
            raise RuntimeError("PodClient is used outside its context")
        data: Any = io.BytesIO(body) if len(body) > _LARGE_BODY_BYTES else body or None
        return await self._session.request(
            method,
            url,
            data=data,
            headers=headers,
            allow_redirects=False,
            trace_request_ctx=context,
        )


async def _note_reuse(
    session: aiohttp.ClientSession, context: SimpleNamespace, params: aiohttp.TraceConnectionReuseconnParams
) -> None:
    context.trace_request_ctx["reused"] = True


def _broken(error: aiohttp.ClientError) -> PodFault:
    return PodFault("reset", type(error).__name__)
