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
from gateway.net.keys import Door, check_path
from gateway.net.parts import Parts
from gateway.net.passing import Passing
from gateway.net.records import Outcome, RequestRecord
from gateway.wire.dialects import OPENAI
from gateway.wire.endpoints import ENDPOINTS, Endpoint
from gateway.wire.errors import (
    ClientVisibleError,
    NoPodError,
    UnknownPathError,
    WrongContentTypeError,
    WrongMethodError,
)
from gateway.wire.paths import OF_A_RESPONSE, PASS_THROUGH, response_of

Handler = Callable[[Incoming, Outgoing, RequestRecord], Awaitable[None]]
MakePage = Callable[[], Page | Awaitable[Page]]


@dataclass(frozen=True, slots=True)
class _Entry:
    methods: tuple[str, ...]
    handler: Handler


class Gateway:
    """Serves requests with the parts it is given.

    pages: further GET paths, such as /metrics, each a function that makes the page, now or soon. door: lets requests
    in; without one, everybody's.
    """

    def __init__(self, parts: Parts, pages: Mapping[str, MakePage] | None = None, door: Door | None = None) -> None:
        self.parts = parts
        self.door = door or Door()
        self.health = Health(parts)
        self.draining = False
        self.in_flight = 0
        """Requests being served now."""
        self._idle = asyncio.Event()
        made: dict[str, MakePage] = {"/health": self._live, "/ready": self._ready}
        made["/"] = self._live
        made |= pages or {}
        self._table = {path: _Entry(("GET", "HEAD"), self._page(make)) for path, make in made.items()}
        self._table["/v1/models"] = _Entry(("GET", "HEAD"), self._models)
        self._table |= {path: _Entry(("POST",), self._generation(row)) for path, row in ENDPOINTS.items()}
        self._table |= {path: _Entry((method,), self._pass_through) for path, method in PASS_THROUGH.items()}
        self._table |= {path: _Entry(methods, self._of_response) for path, methods in OF_A_RESPONSE.items()}

    async def drain(self, grace_s: float) -> bool:
        """Say "not ready", and wait up to `grace_s` for the requests in flight. True when all have ended."""
        self.draining = True
        if not self.in_flight:
            return True
        self._idle.clear()
        try:
            async with asyncio.timeout(grace_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def vet(self, head: Incoming) -> ClientVisibleError | None:
        """What is wrong with a request, as far as its head tells, before its body is taken in."""
        try:
            self.door.admit(head)
        except ClientVisibleError as error:
            return error
        return None

    async def handle(self, incoming: Incoming, outgoing: Outgoing) -> None:
        """Serve one request to its end."""
        observer, began, path = self.parts.observer, time.monotonic(), incoming.path
        entry = self._table.get(path)
        known = path if entry is not None else _known(path)
        request_id = names.request_id_of(incoming.headers.get(names.GIVEN_REQUEST_ID))
        record = RequestRecord(request_id, incoming.method, known)
        self.in_flight += 1
        observer.started(record)
        try:
            incoming = self.door.admit(incoming)
            if entry is None:
                check_path(path)
                entry = self._table.get(known)
            await _handler(entry, incoming.method)(incoming, outgoing, record)
        except ClientVisibleError as error:
            record.outcome = Outcome.REJECTED if error.status < 500 else Outcome.FAILED
            await self._say(outgoing, record, error)
        except (ClientGoneError, asyncio.CancelledError):
            record.outcome = Outcome.CANCELLED
            raise
        except Exception as error:  # noqa: BLE001 - the last resort: one bad request must not take others along
            self.parts.observer.fault("bug", None, record.request_id, where(error))
            await self._say(outgoing, record, ClientVisibleError("Internal error in the gateway."))
        finally:
            self.in_flight -= 1
            if self.draining and not self.in_flight:
                self._idle.set()
            record.total_s = time.monotonic() - began
            self.parts.observer.finished(record)

    async def _say(self, outgoing: Outgoing, record: RequestRecord, error: ClientVisibleError) -> None:
        if outgoing.started:
            raise ClientGoneError
        record.status = error.status
        dialect = ENDPOINTS[record.path].dialect if record.path in ENDPOINTS else OPENAI
        headers = [
            ("Content-Type", "application/json"),
            *error.headers.items(),
            (names.REQUEST_ID, record.request_id),
        ]
        body = dialect.error_body(error.message, error.kind, error.status, error.param)
        outgoing.send(error.status, names.raw(headers), body)

    def _generation(self, endpoint: Endpoint) -> Handler:
        def serve(incoming: Incoming, outgoing: Outgoing, record: RequestRecord) -> Awaitable[None]:
            _require_json(incoming)
            return Generation(self.parts, endpoint, incoming, outgoing, record).run()

        return serve

    def _page(self, make: MakePage) -> Handler:
        async def serve(incoming: Incoming, outgoing: Outgoing, record: RequestRecord) -> None:
            made = make()
            _send(outgoing, record, made if isinstance(made, Page) else await made)

        return serve

    async def _pass_through(self, incoming: Incoming, outgoing: Outgoing, record: RequestRecord) -> None:
        await Passing(self.parts, incoming, outgoing, record).run()

    async def _of_response(self, incoming: Incoming, outgoing: Outgoing, record: RequestRecord) -> None:
        found = response_of(incoming.path)
        assert found is not None
        await Passing(self.parts, incoming, outgoing, record).run_of_response(found[1])

    def _live(self) -> Page:
        return Page("application/json", b'{"status":"ok"}')

    def _ready(self) -> Page:
        if self.draining:
            return Page("application/json", b'{"status":"draining"}', 503)
        if not self.parts.fleet.up(Role.DECODE) and not self.parts.fleet.up(Role.REPLICA):
            return Page("application/json", b'{"status":"no decode or replica pod is up"}', 503)
        if self.parts.admission.full:  # another gateway has the same pods: to be taken out would help nobody
            return Page("application/json", b'{"status":"ready","admission":"full"}')
        return Page("application/json", b'{"status":"ready"}')

    async def _models(self, incoming: Incoming, outgoing: Outgoing, record: RequestRecord) -> None:
        """Those that the asker may use."""
        if not self.health.models:
            raise NoPodError("No pod is up to answer.", headers={"Retry-After": "2"})
        tenancy = self.parts.tenancy
        allowed = None if tenancy is None else tenancy.of(incoming).models
        _send(outgoing, record, Page("application/json", union_of_models(self.health.models, allowed)))


def _known(path: str) -> str:
    """A path that is not in the table, for logs and metrics: one that is there, so that strangers cannot make up new
    ones, or "other"."""
    found = response_of(path)
    return "other" if found is None else found[0]


def _handler(entry: _Entry | None, method: str) -> Handler:
    if entry is None:
        raise UnknownPathError("Unknown path.")
    if method not in entry.methods:
        allowed = ", ".join(entry.methods)
        raise WrongMethodError(f"Method not allowed; use {allowed}.", headers={"Allow": allowed})
    return entry.handler


def where(error: BaseException) -> str:
    """The kind of an exception and the line it came from; never its text, which may quote a message."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__} at {frames[-1].filename}:{frames[-1].lineno}" if frames else type(error).__name__


def _send(outgoing: Outgoing, record: RequestRecord, page: Page) -> None:
    record.status, record.outcome = page.status, Outcome.OK
    headers = [("Content-Type", page.content_type), (names.REQUEST_ID, record.request_id)]
    outgoing.send(page.status, names.raw(headers), page.body)


def _require_json(incoming: Incoming) -> None:
    """As vLLM does (`serve/utils/api_utils.py`, validate_json_request), but with the status that says so."""
    given = incoming.headers.get("content-type", "")
    if given == "application/json":
        return
    media_type = given.partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise WrongContentTypeError("Unsupported Media Type: only 'application/json' is allowed.")
