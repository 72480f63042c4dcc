"""The two generate endpoints.

Rule of this room: read, run, answer, and leave a record; a client that goes away cancels the handler, which aborts the
engine requests (and, for a hand-over, frees the other pod's blocks).
"""

import asyncio
import json
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

import orjson
from aiohttp import web

from loadtest.pod import chat, completion, generation, kv_params
from loadtest.pod.answer import Answer, Delta
from loadtest.pod.body import read_json
from loadtest.pod.errors import ApiError, generation_failed
from loadtest.pod.faults import Fault, Kind
from loadtest.pod.generation import Generation, PodModel
from loadtest.pod.journal import Record
from loadtest.pod.reply import ConnectionReset, Reply
from loadtest.pod.run import Event, Run
from loadtest.pod.shapes import Json
from loadtest.pod.side import SideClient
from loadtest.pod.state import PodState

Reader = Callable[[Mapping[str, Any], PodModel], Generation]


class GenerateEndpoints:
    """`/v1/chat/completions` and `/v1/completions`."""

    def __init__(self, state: PodState, side: SideClient) -> None:
        self._state = state
        self._side = side

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/chat/completions", self.chat),
            web.post("/v1/completions", self.completion),
        ]

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(request, generation.read_chat, is_chat=True)

    async def completion(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(request, generation.read_completion, is_chat=False)

    async def _serve(self, request: web.Request, reader: Reader, *, is_chat: bool) -> web.StreamResponse:
        raw = await request.read()
        body, problem = read_json(request, raw)
        headers = {name.lower(): value for name, value in request.headers.items()}
        record = self._state.journal.open(request.method, request.path, headers, body, raw)
        brings_kv = isinstance(body, dict) and body.get("kv_transfer_params") is not None
        fault = self._state.faults.strike(request.path, direct=not brings_kv)
        record.fault = fault.kind if fault else None
        reply = Reply(request, fault, self._state.faults.cleared)
        self._state.server_load += 1
        self._state.pulse.fire()
        try:
            await reply.before_headers()
            if problem:
                raise problem
            wanted = self._read(reader, body)
            run = self._new_run(request, wanted, is_chat=is_chat, fault=fault)
            record.id, record.prompt_tokens = run.id, run.prompt_tokens
            response = await self._answer(run, reply, record, is_chat=is_chat)
        except ApiError as error:
            record.outcome, record.status = "error", error.status
            return await reply.json(error.status, self._error_body(error))
        except ConnectionReset:
            record.outcome = "reset"
            raise
        except (asyncio.CancelledError, ConnectionError):
            record.outcome = "gone"
            raise
        else:
            return response
        finally:
            self._state.server_load -= 1
            self._state.pulse.fire()

    def _error_body(self, error: ApiError) -> Json:
        return error.body()

    def _read(self, reader: Reader, body: Any) -> Generation:
        try:
            return reader(body, self._state.model)
        except ApiError:
            params = body.get("kv_transfer_params") if isinstance(body, dict) else None
            intent = kv_params.read(params) if isinstance(params, dict) else None
            if intent is not None:
                self._state.running.refuse(intent)
            raise

    def _new_run(self, request: web.Request, wanted: Generation, *, is_chat: bool, fault: Fault | None) -> Run:
        base = request.headers.get("X-Request-Id") or wanted.request_id or uuid.uuid4().hex[:16]
        has_connector = self._state.running.engine.connector is not None
        return Run(
            id=f"{'chatcmpl' if is_chat else 'cmpl'}-{base}",
            created=int(time.time()),
            wanted=wanted,
            intent=kv_params.read(wanted.kv_transfer_params) if has_connector else None,
            prefix_caching=self._state.running.engine.pool.caching,
            prompt_tokens_details=self._state.prompt_tokens_details,
            session_id=_session_id(request, wanted),
            transfer_mode=self._state.transfer_mode,
            hide_params=fault is not None and fault.kind is Kind.DROP_KV_PARAMS,
        )

    async def _answer(self, run: Run, reply: Reply, record: Record, *, is_chat: bool) -> web.StreamResponse:
        async with self._heartbeats(run):
            if run.wanted.stream:
                return await self._stream(run, reply, record, is_chat=is_chat)
            if reply.fails_now:
                raise generation_failed()
            await run.finish(self._state.running)
        self._note(record, run, "ok")
        full = chat.full if is_chat else completion.full
        return await reply.json(200, full(run, fingerprint=self._state.fingerprint, block_size=self._state.block_size))

    async def _stream(self, run: Run, reply: Reply, record: Record, *, is_chat: bool) -> web.StreamResponse:
        await reply.start()
        outcome = "ok"
        try:
            async for chunk in self._chunks(run, is_chat=is_chat):
                if reply.fails_now:
                    raise generation_failed()
                await reply.event(orjson.dumps(chunk))
        except ApiError as error:
            # json.dumps with its default separators, unlike every other event.
            await reply.event(_spaced(error.body()))
            outcome = "error"
        self._note(record, run, outcome)
        return await reply.end()

    async def _chunks(self, run: Run, *, is_chat: bool) -> AsyncGenerator[Json, None]:
        fingerprint = self._state.fingerprint
        begun: set[int] = set()
        async with aclosing(self._events(run)) as events:
            async for event in events:
                if is_chat and not begun:
                    for index in range(run.wanted.n):
                        yield chat.role_chunk(run, index)
                if isinstance(event, ApiError):
                    raise event  # after the role chunk: vLLM's stream has begun when it looks at the outcome
                answer, delta, _ = event
                yield self._chunk(run, answer, delta, fingerprint, is_chat=is_chat, first=answer.index not in begun)
                begun.add(answer.index)
        if run.wanted.include_usage:
            if is_chat:
                yield chat.usage_chunk(run, fingerprint=fingerprint, block_size=self._state.block_size)
            else:
                yield completion.usage_chunk(run, fingerprint=fingerprint)

    async def _events(self, run: Run) -> AsyncGenerator[Event | ApiError, None]:
        async with aclosing(run.events(self._state.running)) as events:
            try:
                async for event in events:
                    yield event
            except ApiError as error:
                yield error

    @staticmethod
    def _chunk(run: Run, answer: Answer, delta: Delta, fingerprint: str, *, is_chat: bool, first: bool) -> Json:
        make = chat.delta_chunk if is_chat else completion.delta_chunk
        return make(run, answer, delta, fingerprint=fingerprint, first=first)

    @asynccontextmanager
    async def _heartbeats(self, run: Run) -> AsyncGenerator[None, None]:
        """While a hand-over waits in this pod, keep the other pod's lease alive."""
        connector = self._state.running.engine.connector
        source = run.intent.source if run.intent and run.intent.do_remote_prefill else None
        if connector is None or source is None:
            yield
            return
        task = asyncio.create_task(self._side.keep_alive(source, connector.config.lease_s), name="heartbeat")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    @staticmethod
    def _note(record: Record, run: Run, outcome: str) -> None:
        """Before the last byte is written, so that a client that has the answer finds the record complete."""
        record.outcome, record.status = outcome, 200
        record.cached_tokens = run.cached_tokens(0)
        record.completion_tokens = run.completion_tokens
        record.text = run.answers[0].text


def _session_id(request: web.Request, wanted: Generation) -> str | None:
    """Body, header, extra arguments, in this order (vllm/entrypoints/generate/base/serving.py, `_get_session_id`)."""
    if named := wanted.body.get("session_id") or request.headers.get("X-Session-ID"):
        return str(named)
    extra = (wanted.body.get("vllm_xargs") or {}).get("session_id")
    return extra if isinstance(extra, str) and extra else None


def _spaced(value: Any) -> bytes:
    return json.dumps(value).encode()
