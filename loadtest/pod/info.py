"""The endpoints that do not generate: models, tokenizer, version, health, load, metrics.

Rule of this room: short answers about the pod, shaped as vLLM's (vllm/entrypoints/serve/…). Key order is the class's.
"""

import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from aiohttp import web

from loadtest.pod import fields, metrics, template, tokenizer
from loadtest.pod.body import read_json
from loadtest.pod.errors import ApiError, not_found, wrong_field
from loadtest.pod.event_publisher import RANK
from loadtest.pod.reply import SERVER, Reply
from loadtest.pod.state import VERSION, PodState

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def answer(value: Any, status: int = 200) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(value), content_type="application/json", headers=SERVER)


class InfoEndpoints:
    def __init__(self, state: PodState) -> None:
        self._state = state
        self._started = int(time.time())

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/models", self._struck(self.models)),
            web.post("/tokenize", self._struck(self.tokenize)),
            web.post("/detokenize", self._struck(self.detokenize)),
            web.get("/kv_event_sources", self._struck(self.kv_event_sources)),
            web.get("/version", self._struck(self.version)),
            web.get("/health", self._struck(self.health)),
            web.get("/ping", self._struck(self.health)),
            web.get("/load", self._struck(self.load)),
            web.get("/metrics", self._struck(self.metrics)),
        ]

    def _struck(self, handler: Handler) -> Handler:
        """The handler, behind whatever fault was ordered for its path."""

        async def handle(request: web.Request) -> web.StreamResponse:
            fault = self._state.faults.strike(request.path, generates=False)
            if fault is not None:
                try:
                    await Reply(request, fault, self._state.faults.cleared).before_headers()
                except ApiError as error:
                    return answer(error.body(), error.status)
            return await handler(request)

        return handle

    async def models(self, _: web.Request) -> web.Response:
        permission = {
            "id": f"modelperm-{uuid.uuid4().hex[:16]}",
            "object": "model_permission",
            "created": int(time.time()),
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        model = self._state.model
        rows: list[tuple[str, str, str | None, int | None]] = [(model.name, model.name, None, model.max_model_len)]
        rows += [(name, path, model.name, None) for name, path in model.adapters.items()]
        cards = [
            {
                "id": name,
                "object": "model",
                "created": int(time.time()),
                "owned_by": "vllm",
                "root": root,
                "parent": parent,
                "max_model_len": limit,
                "permission": [permission],
            }
            for name, root, parent, limit in rows
        ]
        return answer({"object": "list", "data": cards})

    async def tokenize(self, request: web.Request) -> web.Response:
        try:
            body = await self._body(request)
            if "messages" in body:
                text = template.render(
                    fields.array("messages", body["messages"]),
                    tools=body.get("tools"),
                    add_generation_prompt=body.get("add_generation_prompt", True),
                    continue_final_message=body.get("continue_final_message", False),
                )
            elif "prompt" in body:
                text = fields.string("prompt", body["prompt"])
            else:
                raise wrong_field("prompt", "missing", "Field required", body)
        except ApiError as error:
            return answer(error.body(), error.status)
        ids = tokenizer.encode(text)
        strings = tokenizer.text_of_tokens(ids) if body.get("return_token_strs") else None
        return answer(
            {
                "count": len(ids),
                "max_model_len": self._state.model.max_model_len,
                "tokens": ids,
                "token_strs": strings,
            }
        )

    async def detokenize(self, request: web.Request) -> web.Response:
        try:
            body = await self._body(request)
            if "tokens" not in body:
                raise wrong_field("tokens", "missing", "Field required", body)
            ids = fields.integers("tokens", body["tokens"])
            return answer({"prompt": tokenizer.decode(ids)})
        except ApiError as error:
            return answer(error.body(), error.status)
        except ValueError as error:
            return answer(ApiError(400, str(error), "BadRequestError").body(), 400)

    async def _body(self, request: web.Request) -> dict[str, Any]:
        body, problem = read_json(request, await request.read())
        if problem:
            raise problem
        body = fields.mapping("", body)
        name = body.get("model")
        model = self._state.model
        if name and name != model.name and name not in model.adapters:
            raise not_found(name, model.name)
        return body

    async def version(self, _: web.Request) -> web.Response:
        return answer({"version": VERSION})

    async def kv_event_sources(self, _: web.Request) -> web.Response:
        """Publishers by data-parallel rank (vllm/entrypoints/serve/instrumentator/basic.py); none: `{}`."""
        events = self._state.events
        return answer({str(RANK): events.config()} if events else {})

    async def health(self, _: web.Request) -> web.Response:
        return web.Response(status=503 if self._state.running.dead else 200, headers=SERVER)

    async def load(self, _: web.Request) -> web.Response:
        return answer({"server_load": self._state.server_load})

    async def metrics(self, _: web.Request) -> web.Response:
        return web.Response(
            body=metrics.render(self._state).encode(),
            headers={**SERVER, "Content-Type": "text/plain; version=1.0.0; charset=utf-8"},
        )
