"""The endpoints that agents speak: messages and responses.

Rule of this room: as in `generate`, whose handlers these are; only the words differ.
"""

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import orjson
from aiohttp import web

from loadtest.pod import messages, responses
from loadtest.pod.answer import Delta
from loadtest.pod.body import read_json
from loadtest.pod.errors import ApiError, generation_failed
from loadtest.pod.generate import GenerateEndpoints
from loadtest.pod.generation import Generation, PodModel
from loadtest.pod.info import answer
from loadtest.pod.journal import Record
from loadtest.pod.reply import Reply
from loadtest.pod.responses import Response
from loadtest.pod.run import Run
from loadtest.pod.shapes import Json
from loadtest.pod.side import SideClient
from loadtest.pod.state import PodState

Event = tuple[str, Json]


class EventStream(Protocol):
    """The events of one streamed answer, by name."""

    def start(self) -> list[Event]: ...

    def more(self, delta: Delta) -> list[Event]: ...

    def end(self) -> list[Event]: ...

    def failed(self) -> list[Event]: ...


class NamedEvents(GenerateEndpoints):
    """Answers whose stream has named events and no [DONE]."""

    def _full(self, run: Run) -> Json:
        raise NotImplementedError

    def _events_of(self, run: Run) -> EventStream:
        raise NotImplementedError

    async def _answer(self, run: Run, reply: Reply, record: Record, *, is_chat: bool) -> web.StreamResponse:
        if run.wanted.stream:
            async with self._heartbeats(run):
                return await self._stream(run, reply, record, is_chat=is_chat)
        async with self._heartbeats(run):
            if reply.fails_now:
                raise generation_failed()
            await run.finish(self._state.running)
        self._note(record, run, "ok")
        return await reply.json(200, self._full(run))

    async def _stream(self, run: Run, reply: Reply, record: Record, *, is_chat: bool) -> web.StreamResponse:
        await reply.start()
        stream, outcome = self._events_of(run), "ok"

        async def send(events: list[Event]) -> None:
            for name, data in events:
                if reply.fails_now:
                    raise generation_failed()
                await reply.event(orjson.dumps(data), name)

        try:
            begun = False
            async for event in self._events(run):
                if not begun:
                    await send(stream.start())
                    begun = True
                if isinstance(event, ApiError):
                    raise event
                await send(stream.more(event[1]))
            await send(stream.end())
        except ApiError:
            for name, data in stream.failed():
                await reply.event(orjson.dumps(data), name)
            outcome = "error"
        self._note(record, run, outcome)
        return await reply.finish()


class MessagesEndpoints(NamedEvents):
    """`/v1/messages` and its `count_tokens`."""

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/messages", self.messages),
            web.post("/v1/messages/count_tokens", self.count_tokens),
        ]

    async def messages(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(request, messages.read, is_chat=True)

    async def count_tokens(self, request: web.Request) -> web.StreamResponse:
        return await self._say(request, lambda body: messages.count(body, self._state.model))

    async def _say(self, request: web.Request, make: Callable[[Any], Json]) -> web.StreamResponse:
        body, problem = read_json(request, await request.read())
        try:
            if problem:
                raise problem
            return answer(make(body))
        except ApiError as error:
            return answer(self._error_body(error), error.status)

    def _error_body(self, error: ApiError) -> Json:
        return messages.error_body(error)

    def _full(self, run: Run) -> Json:
        return messages.full(run, block_size=self._state.block_size)

    def _events_of(self, run: Run) -> EventStream:
        return messages.Stream(run, self._state.block_size)


class ResponsesEndpoints(NamedEvents):
    """`/v1/responses`, and what the pod remembers of it (`VLLM_ENABLE_RESPONSES_API_STORE`)."""

    def __init__(self, state: PodState, side: SideClient, *, remembers: bool) -> None:
        super().__init__(state, side)
        self._remembers = remembers
        self._kept: dict[str, Json] = {}
        self._messages: dict[str, list[Json]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/responses", self.responses),
            web.get("/v1/responses/{id}", self.retrieve),
            web.post("/v1/responses/{id}/cancel", self.cancel),
        ]

    async def responses(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(request, self._reader, is_chat=True)

    def _reader(self, body: Any, model: PodModel) -> Generation:
        if isinstance(body, dict) and body.get("background") and not self._remembers:
            raise responses.no_store()
        earlier_id = body.get("previous_response_id") if isinstance(body, dict) else None
        if earlier_id is not None and earlier_id not in self._kept:
            raise responses.unknown(earlier_id)
        found = responses.read(body, model, self._messages.get(earlier_id or "", []))
        return dataclasses.replace(found, body=dict(body))

    async def retrieve(self, request: web.Request) -> web.StreamResponse:
        found = self._kept.get(request.match_info["id"])
        if found is None:
            error = responses.unknown(request.match_info["id"])
            return answer(error.body(), error.status)
        return answer(found)

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        response_id = request.match_info["id"]
        found = self._kept.get(response_id)
        error = responses.unknown(response_id) if found is None else None
        if found is not None and found["status"] not in ("queued", "in_progress"):
            error = responses.not_running()
        if found is None or error is not None:
            assert error is not None
            return answer(error.body(), error.status)
        found["status"] = "cancelled"
        if (task := self._tasks.get(response_id)) is not None:
            task.cancel()
        return answer(found)

    async def _answer(self, run: Run, reply: Reply, record: Record, *, is_chat: bool) -> web.StreamResponse:
        body = run.wanted.body
        if not body.get("background"):
            return await super()._answer(run, reply, record, is_chat=is_chat)
        response = Response(body, run, self._state.block_size)
        queued = response.shown("queued", [], None)
        self._kept[response.id] = queued
        self._tasks[response.id] = asyncio.create_task(self._work(response, run))
        self._note(record, run, "ok")
        return await reply.json(200, queued)

    async def _work(self, response: Response, run: Run) -> None:
        await run.finish(self._state.running)
        self._keep(response, response.full())

    def _full(self, run: Run) -> Json:
        response = Response(run.wanted.body, run, self._state.block_size)
        made = response.full()
        self._keep(response, made)
        return made

    def _events_of(self, run: Run) -> EventStream:
        return Response(run.wanted.body, run, self._state.block_size, self._keep)

    def _keep(self, response: Response, made: Json) -> None:
        body = response.body
        if not self._remembers or body.get("store") is False:
            return
        self._kept[response.id] = made
        earlier = self._messages.get(body.get("previous_response_id") or "", [])
        said = [message for item in made["output"] if (message := responses.message_of(item)) is not None]
        self._messages[response.id] = [*responses.messages_of(body, earlier), *said]
