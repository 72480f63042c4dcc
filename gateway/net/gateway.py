"""The gateway as one object: finds the handler of a request and makes sure that every request ends in an answer
and a record.

Rule of this room: whatever goes wrong leaves here as an OpenAI-style error or a closed connection, never as a
stack trace.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from gateway.core.pods import Role
from gateway.net import headers as names
from gateway.net.exchange import ClientGoneError, Incoming, Outgoing, Page
from gateway.net.generation import Generation
from gateway.net.health import Health, union_of_models
from gateway.net.outcome import Finished
from gateway.net.parts import Parts
from gateway.net.records import Outcome, RequestRecord
from gateway.net.upstream import PodFault
from gateway.wire.endpoints import ENDPOINTS, Endpoint
from gateway.wire.errors import (
    ClientVisibleError,
    NoPodError,
    PodFailedError,
    UnknownPathError,
    WrongContentTypeError,
    WrongMethodError,
)

PASS_THROUGH = {"/tokenize": "POST", "/detokenize": "POST", "/version": "GET"}
"""Paths that any healthy pod may answer, and their method."""

Handler = Callable[[Incoming, Outgoing, RequestRecord], Awaitable[None]]
MakePage = Callable[[], Page | Awaitable[Page]]


@dataclass(frozen=True, slots=True)
class _Entry:
    methods: tuple[str, ...]
    handler: Handler


class Gateway:
    """Serves requests with the parts it is given.

    pages: further GET paths, such as /metrics, each a function that makes the page, now or soon.
    """

    def __init__(self, parts: Parts, pages: Mapping[str, MakePage] | None = None) -> None:
        self.parts = parts
        self.health = Health(parts)
        self.draining = False
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()
        made: dict[str, MakePage] = {"/health": self._live, "/ready": self._ready, "/v1/models": self._models}
        made |= pages or {}
        self._table = {path: _Entry(("GET", "HEAD"), self._page(make)) for path, make in made.items()}
        self._table |= {path: _Entry(("POST",), self._generation(row)) for path, row in ENDPOINTS.items()}
        self._table |= {path: _Entry((method,), self._pass_through) for path, method in PASS_THROUGH.items()}

    @property
    def in_flight(self) -> int:
        """Requests being served now."""
        return self._in_flight

    async def drain(self, grace_s: float) -> bool:
        """Say "not ready", and wait up to `grace_s` for the requests in flight. True when all have ended."""
        self.draining = True
        try:
            async with asyncio.timeout(grace_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def handle(self, incoming: Incoming, outgoing: Outgoing) -> None:
        """Serve one request to its end."""
        parts, began = self.parts, time.monotonic()
        record = RequestRecord(
            names.request_id_of(incoming.headers.get(names.REQUEST_ID)), incoming.method, self._known(incoming.path)
        )
        self._enter()
        parts.observer.started(record)
        try:
            await self._find(incoming)(incoming, outgoing, record)
        except ClientVisibleError as error:
            record.outcome = Outcome.REJECTED if error.status < 500 else Outcome.FAILED
            await self._say(outgoing, record, error)
        except (ClientGoneError, asyncio.CancelledError):
            record.outcome = Outcome.CANCELLED
            raise
        except Exception as error:  # noqa: BLE001 - the last resort: one bad request must not take others along
            parts.observer.fault("bug", None, record.request_id, _where(error))
            await self._say(outgoing, record, ClientVisibleError("Internal error in the gateway."))
        finally:
            self._leave()
            record.total_s = time.monotonic() - began
            parts.observer.finished(record)

    def _enter(self) -> None:
        self._in_flight += 1
        self._idle.clear()

    def _leave(self) -> None:
        self._in_flight -= 1
        if self._in_flight == 0:
            self._idle.set()

    def _known(self, path: str) -> str:
        """The path for logs and metrics: one of the table, so that strangers cannot make up new ones."""
        return path if path in self._table else "other"

    def _find(self, incoming: Incoming) -> Handler:
        entry = self._table.get(incoming.path)
        if entry is None:
            raise UnknownPathError("Unknown path.")
        if incoming.method not in entry.methods:
            allowed = ", ".join(entry.methods)
            raise WrongMethodError(f"Method not allowed; use {allowed}.", headers={"Allow": allowed})
        return entry.handler

    async def _say(self, outgoing: Outgoing, record: RequestRecord, error: ClientVisibleError) -> None:
        if outgoing.started:
            raise ClientGoneError
        record.status = error.status
        headers = [
            ("Content-Type", "application/json"),
            *error.headers.items(),
            (names.REQUEST_ID, record.request_id),
        ]
        outgoing.send(error.status, headers, error.body())

    def _generation(self, endpoint: Endpoint) -> Handler:
        async def serve(incoming: Incoming, outgoing: Outgoing, record: RequestRecord) -> None:
            _require_json(incoming)
            await Generation(self.parts, endpoint, incoming, outgoing, record).run()

        return serve

    def _page(self, make: MakePage) -> Handler:
        async def serve(incoming: Incoming, outgoing: Outgoing, record: RequestRecord) -> None:
            made = make()
            page = made if isinstance(made, Page) else await made
            record.status, record.outcome = page.status, Outcome.OK
            headers = [("Content-Type", page.content_type), (names.REQUEST_ID, record.request_id)]
            outgoing.send(page.status, headers, page.body)

        return serve

    async def _pass_through(self, incoming: Incoming, outgoing: Outgoing, record: RequestRecord) -> None:
        answer = await self._any_pod(incoming, incoming.body, record)
        record.status, record.outcome = answer.status, Outcome.OK if answer.status < 400 else Outcome.REJECTED
        outgoing.send(answer.status, names.to_client(answer.headers, record.request_id), answer.body)

    async def _any_pod(self, incoming: Incoming, body: bytes, record: RequestRecord) -> Finished:
        parts, limit_s = self.parts, self.parts.settings.timeouts.first_byte_s
        fault: PodFault | None = None
        pods = sorted((pod for pod in parts.fleet if pod.up), key=lambda pod: pod.load_tokens)
        for pod in pods:
            record.answering = pod.url
            headers = names.to_pod(incoming.header_items(), record.request_id, None)
            try:
                answer = await parts.client.call(incoming.method, pod.url, incoming.target, headers, body, limit_s)
                try:
                    return Finished(answer.status, answer.headers, await answer.read(limit_s))
                finally:
                    answer.close()
            except PodFault as error:
                fault = error
                parts.notice(pod, error)
                parts.observer.fault(f"pass_through_{error.word}", pod.url, record.request_id, error.detail)
        if fault is not None:
            raise PodFailedError(f"No pod could answer ({fault.word}).")
        raise NoPodError("No pod is up to answer.", headers={"Retry-After": "2"})

    def _live(self) -> Page:
        return Page("application/json", b'{"status":"ok"}')

    def _ready(self) -> Page:
        if self.draining:
            return Page("application/json", b'{"status":"draining"}', 503)
        if not self.parts.fleet.up(Role.DECODE):
            return Page("application/json", b'{"status":"no decode pod is up"}', 503)
        return Page("application/json", b'{"status":"ready"}')

    def _models(self) -> Page:
        if not self.health.models:
            raise NoPodError("No pod is up to answer.", headers={"Retry-After": "2"})
        return Page("application/json", union_of_models(self.health.models))


def _where(error: Exception) -> str:
    """The kind of an exception and the line it came from; never its text, which may quote a message."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__} at {frames[-1].filename}:{frames[-1].lineno}" if frames else type(error).__name__


def _require_json(incoming: Incoming) -> None:
    """As vLLM does (`serve/utils/api_utils.py`, validate_json_request), but with the status that says so."""
    media_type = incoming.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise WrongContentTypeError("Unsupported Media Type: only 'application/json' is allowed.")
