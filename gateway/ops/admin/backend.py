"""Calls of the admin API between HTTP and the handlers: checks what came, runs it here and at the other workers.

Rule of this room: what comes from another worker is checked here as what comes from a client is.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

import msgspec

from gateway.core.canary import CanaryState, CanaryStatus
from gateway.ops.admin.fan import Answer, Ask, Fan, Place
from gateway.ops.admin.handlers import ApiError, Call, Control
from gateway.ops.admin.routes import BY_NAME, Reach, Route
from gateway.ops.admin.schemas import ErrorAnswer, ErrorDetail

_PATTERN = re.compile("Expected `str` matching regex '.*'")
HEARD = "canary_heard"
"""A worker tells the others what its canary is now."""


class Heard(msgspec.Struct):
    state: CanaryState
    percent: float
    why: str
    since_s: float


class Backend:
    """One process's calls. place: which worker this is, where there are several. `start` first, `stop` in the end."""

    def __init__(self, control: Control, place: Place | None = None) -> None:
        self.control = control
        self.fan = None if place is None else Fan(place, self.run, control.decisions)
        self._telling: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        if self.fan is not None:
            await self.fan.start()
            self.control.canary.tell = self._tell

    async def stop(self) -> None:
        self.control.decisions.drop_all()
        if self.fan is not None:
            await self.told()
            await self.fan.stop()

    async def told(self) -> None:
        """Wait until the other workers know what this one's canary is."""
        await asyncio.gather(*self._telling, return_exceptions=True)

    def forget(self, *targets: str) -> None:
        """What was set at run time no longer counts for workers that start."""
        if self.fan is not None:
            self.fan.forget(*targets)

    async def call(self, ask: Ask) -> Answer:
        """Make a call wherever it has to be made."""
        own = await self.run(ask)
        await self.told()
        route, fan = BY_NAME[ask.name], self.fan
        if fan is None:
            return own
        if route.reach is Reach.ALL and own.status < 400:
            await fan.change(ask, _target(ask))
        elif route.reach is Reach.FIRST and own.status == 404:
            others = await fan.everywhere(ask)
            return next((answer for answer in others if answer.status == 200), own)
        elif route.reach is Reach.MERGED and own.status < 400 and route.merge is not None:
            answers = [own, *(answer for answer in await fan.everywhere(ask) if answer.status < 400)]
            parts: list[Any] = [msgspec.json.decode(answer.body, type=route.answer) for answer in answers]
            return Answer(
                own.status,
                msgspec.Raw(
                    msgspec.json.encode(route.merge(parts, msgspec.convert(ask.query, route.query, strict=False)))
                ),
            )
        return own

    async def run(self, ask: Ask) -> Answer:
        """Make a call in this process."""
        if ask.name == HEARD:
            heard = msgspec.json.decode(ask.body, type=Heard)
            self.control.canary.heard(CanaryStatus(heard.state, heard.percent, heard.why, heard.since_s))
            return Answer(200, msgspec.Raw(b"null"))
        route = BY_NAME.get(ask.name)
        try:
            if route is None:
                raise ApiError(404, "not_found", "There is no such call.")
            return Answer(route.status, await self._made(route, ask))
        except ApiError as error:
            return refusal(error)

    async def _made(self, route: Route, ask: Ask) -> msgspec.Raw:
        try:
            query: Any = msgspec.convert(ask.query, route.query, strict=False)
            body = None if route.body is None else msgspec.json.decode(ask.body, type=route.body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            said = _PATTERN.sub("Must be like http://host:8000", str(error))
            raise ApiError(400, "invalid_request", f"{said}.") from None
        return msgspec.Raw(msgspec.json.encode(await route.handler(self.control, Call(ask.path, query, body))))

    def _tell(self, status: CanaryStatus) -> None:
        assert self.fan is not None
        body = msgspec.json.encode(Heard(status.state, status.percent, status.why, status.since_s))
        task = asyncio.ensure_future(self.fan.change(Ask(HEARD, body=msgspec.Raw(body)), "canary"))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)


def refusal(error: ApiError) -> Answer:
    """The one shape of errors."""
    body = msgspec.json.encode(ErrorAnswer(ErrorDetail(error.message, error.kind)))
    return Answer(error.status, msgspec.Raw(body))


def _target(ask: Ask) -> str:
    """What a change changes: a later change of the same makes an earlier one void."""
    given: Any = ask.query or (msgspec.json.decode(ask.body) or {})
    subject = ask.name.removeprefix("set_").removesuffix("_pod").removeprefix("un")
    word = "entry" if subject in ("add", "remove") else subject
    return f"{word} {given['url']}" if "url" in given else word
