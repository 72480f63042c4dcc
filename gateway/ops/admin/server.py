"""The admin API over HTTP: who may call, and every answer in one shape.

Rule of this room: nothing here knows what a call does. Without a token only this machine is listened to, and a web page
that somebody on it has open may not speak in their name: a foreign `Origin` or `Host` is refused. The same holds for
looking without a token, where that is allowed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from gateway.net.exchange import Page
from gateway.net.gateway import MakePage, where
from gateway.net.keys import is_loopback
from gateway.ops.admin.backend import Backend, refusal
from gateway.ops.admin.fan import Ask
from gateway.ops.admin.handlers import ApiError
from gateway.ops.admin.openapi import document
from gateway.ops.admin.routes import ROUTES, Route
from gateway.ops.admin.token import Token
from gateway.ops.logs import MAIN

MAX_BODY_BYTES = 64 << 10
HEARTBEAT_S = 15.0
ACCESS = "/ui/access"
"""Tells the live page what its token is good for."""

_BUG = "bug"


@dataclass(frozen=True, slots=True)
class OpenPage:
    """A page that needs no token because there is nothing in it to protect."""

    make: MakePage
    headers: Mapping[str, str] = field(default_factory=dict)


class AdminServer:
    """Listens until `stop`.

    pages: more GET paths. Those in an OpenPage need no token. view: nothing that only shows does.
    """

    def __init__(
        self,
        backend: Backend,
        token: Token,
        pages: Mapping[str, MakePage | OpenPage] | None = None,
        *,
        view: bool = False,
    ) -> None:
        self._backend = backend
        self._token = token
        self._view = view
        self._open = {"/health", ACCESS}
        self._host = ""
        self._runner: web.AppRunner | None = None
        app = web.Application(middlewares=[self._every_request], client_max_size=MAX_BODY_BYTES)
        for route in ROUTES:
            app.router.add_route(route.method, route.path, self._serving(route))
        app.router.add_get("/health", self._page(lambda: Page("application/json", b'{"status":"ok"}')))
        app.router.add_get("/openapi.json", self._page(self._document))
        app.router.add_get(ACCESS, self._access)
        for path, page in (pages or {}).items():
            if isinstance(page, OpenPage):
                self._open.add(path)
                app.router.add_get(path, self._page(page.make, page.headers))
            else:
                app.router.add_get(path, self._page(page))
        self._app = app

    async def start(self, host: str, port: int) -> str:
        """Listen; gives the URL. Raises OSError."""
        self._host = host
        self._runner = web.AppRunner(
            self._app, access_log=None, handle_signals=False, shutdown_timeout=1.0, logger=_quiet()
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        found = self._runner.addresses[0][1]
        return f"http://{f'[{host}]' if ':' in host else host}:{found}"

    async def stop(self) -> None:
        """Listen no more; streams end."""
        self._backend.control.decisions.drop_all()
        if self._runner is not None:
            await self._runner.cleanup()

    def _document(self) -> Page:
        return Page("application/json", msgspec.json.encode(document(with_token=bool(self._token))))

    # ---- every request

    @web.middleware
    async def _every_request(self, request: web.Request, handler: Any) -> web.StreamResponse:
        try:
            self._admit(request)
            answer: web.StreamResponse = await handler(request)
            answer.headers.setdefault("Cache-Control", "no-store")
            answer.headers["X-Content-Type-Options"] = "nosniff"
        except ApiError as error:
            headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else None
            return _json(refusal(error).body, error.status, headers)
        except web.HTTPException as error:
            kept = {name: error.headers[name] for name in ("Allow",) if name in error.headers}
            return _json(refusal(ApiError(error.status, "http_error", error.reason)).body, error.status, kept)
        except Exception as error:  # noqa: BLE001 - the last resort; the text of an error is not for the log
            MAIN.error("bug in the admin API: %s", where(error))
            return _json(refusal(ApiError(500, _BUG, "Internal error.")).body, 500)
        return answer

    def _admit(self, request: web.Request) -> None:
        """Raises ApiError."""
        if not self._token:
            self._same_origin(request)
        elif request.path in self._open or self._token.admits(request.headers.get("Authorization", "")):
            return
        elif self._may_view(request) and request.method in ("GET", "HEAD"):
            self._same_origin(request)
        else:
            raise ApiError(401, "unauthorized", "The token is missing or wrong.")

    def _may_view(self, request: web.Request) -> bool:
        """Whoever gives no token may look, where that is allowed; a wrong token is wrong."""
        return self._view and "Authorization" not in request.headers

    def _same_origin(self, request: web.Request) -> None:
        """Raises ApiError for what a foreign web page makes a browser send."""
        host = request.headers.get("Host", "")
        if not is_loopback(host.rpartition(":")[0].strip("[]") if _has_port(host) else host.strip("[]")):
            raise ApiError(403, "forbidden", "Without a token only loopback names are answered to.")
        origin = request.headers.get("Origin")
        if origin is not None and origin != f"http://{host}":
            raise ApiError(403, "forbidden", "Without a token no other origin is answered to.")

    # ---- what is served

    def _page(self, make: MakePage, headers: Mapping[str, str] | None = None) -> Any:
        async def serve(request: web.Request) -> web.StreamResponse:
            made = make()
            page = made if isinstance(made, Page) else await made
            kept = {**(headers or {}), "Content-Type": page.content_type}
            return web.Response(body=page.body, status=page.status, headers=kept)

        return serve

    async def _access(self, request: web.Request) -> web.StreamResponse:
        """What whoever asks may do: look, and change things."""
        change = self._token.admits(request.headers.get("Authorization", ""))
        return _json(msgspec.json.encode({"view": change or self._may_view(request), "change": change}), 200)

    def _serving(self, route: Route) -> Any:
        async def serve(request: web.Request) -> web.StreamResponse:
            ask = await _asked(request, route)
            if route.streams and _wants_stream(ask):
                return await self._stream(request)
            answer = await self._backend.call(ask)
            return _json(answer.body, answer.status)

        return serve

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        """Decisions as server-sent events. A reader that does not keep up is cut off."""
        decisions, fan = self._backend.control.decisions, self._backend.fan
        reader = decisions.follow()
        if reader is None:
            raise ApiError(429, "too_many_readers", "Too many follow the decisions already.")
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        try:
            await answer.prepare(request)
            if fan is None:
                await _pour(reader.next, answer)
            else:
                async with fan.following(reader):
                    await _pour(reader.next, answer)
        except (ConnectionResetError, ConnectionError):
            return answer
        finally:
            decisions.leave(reader)
        return answer


def _quiet() -> logging.Logger:
    """Of what aiohttp would say of bad requests, which quotes them, nothing is logged."""
    logger = logging.getLogger("ppd_gateway.admin_http")
    logger.setLevel(logging.CRITICAL + 1)
    return logger


async def _pour(following: Any, answer: web.StreamResponse) -> None:
    await answer.write(b": decisions\n\n")
    coming = asyncio.ensure_future(following())
    try:
        while True:
            await asyncio.wait([coming], timeout=HEARTBEAT_S)
            if not coming.done():
                await answer.write(b": still here\n\n")
                continue
            decision = coming.result()
            if decision is None:
                return
            await answer.write(b"data: " + decision + b"\n\n")
            coming = asyncio.ensure_future(following())
    finally:
        coming.cancel()


async def _asked(request: web.Request, route: Route) -> Ask:
    """Raises ApiError."""
    query = dict(request.query)
    if len(query) != len(request.query):
        raise ApiError(400, "invalid_request", "A parameter is given more than once.")
    if any(value.lower() == "null" for value in query.values()):
        raise ApiError(400, "invalid_request", "A parameter is null; leave it out.")
    body = b"null"
    if route.body is not None:
        if request.content_type != "application/json":
            raise ApiError(415, "unsupported_media_type", "The body must be application/json.")
        body = await request.read()
        try:
            msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise ApiError(400, "invalid_request", "The body is not JSON.") from None
    return Ask(route.name, dict(request.match_info), query, msgspec.Raw(body))


def _wants_stream(ask: Ask) -> bool:
    return str(ask.query.get("follow", "")).lower() in ("1", "true")


def _has_port(host: str) -> bool:
    return host.rpartition(":")[2].isdigit() and (host.startswith("[") or host.count(":") == 1)


def _json(body: Any, status: int, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(
        body=bytes(body), status=status, headers={"Content-Type": "application/json", **(headers or {})}
    )
