"""A two-leg proxy of the kind that serving engines ship as an example: FastAPI in front, httpx behind.

Rule of this room: it runs in an environment of its own, so it imports nothing of ours, and FastAPI and httpx only when
it runs: `uvicorn fastapi_proxy:app` with PREFILL_URL and DECODE_URL set.
"""

import importlib
import os
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

_fastapi: Any = importlib.import_module("fastapi")
_responses: Any = importlib.import_module("fastapi.responses")
_httpx: Any = importlib.import_module("httpx")

_ASK_P = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


@asynccontextmanager
async def _lifespan(app: Any) -> AsyncIterator[None]:
    limits = _httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with (
        _httpx.AsyncClient(base_url=os.environ["PREFILL_URL"], timeout=None, limits=limits) as prefill,
        _httpx.AsyncClient(base_url=os.environ["DECODE_URL"], timeout=None, limits=limits) as decode,
    ):
        app.state.prefill, app.state.decode = prefill, decode
        yield


app: Any = _fastapi.FastAPI(lifespan=_lifespan)


async def _complete(request: Any) -> Any:
    fields = await request.json()
    headers = {"X-Request-Id": str(uuid.uuid4())}
    first = {**fields, "kv_transfer_params": _ASK_P, "stream": False, "max_tokens": 1}
    first.pop("stream_options", None)
    answer = await app.state.prefill.post(request.url.path, json=first, headers=headers)
    answer.raise_for_status()
    fields["kv_transfer_params"] = answer.json().get("kv_transfer_params")

    async def pieces() -> AsyncIterator[bytes]:
        async with app.state.decode.stream("POST", request.url.path, json=fields, headers=headers) as stream:
            stream.raise_for_status()
            async for piece in stream.aiter_bytes():
                yield piece

    kind = "text/event-stream" if fields.get("stream") else "application/json"
    return _responses.StreamingResponse(pieces(), media_type=kind)


_complete.__annotations__["request"] = _fastapi.Request
app.post("/v1/chat/completions")(_complete)
app.post("/v1/completions")(_complete)
