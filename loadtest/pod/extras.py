"""What pods of other kinds serve: embeddings, and speech to text.

Rule of this room: just enough to see what reaches a pod and how its answer comes back; only on a pod that is told to
(`PodOptions.extras`), since a pod with a generative model has none of these routes.
"""

import asyncio

import orjson
from aiohttp import web

from loadtest.pod import tokenizer
from loadtest.pod.info import answer
from loadtest.pod.state import PodState


class ExtraEndpoints:
    """`/v1/embeddings` and `/v1/audio/transcriptions`."""

    def __init__(self, state: PodState) -> None:
        self._state = state

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/embeddings", self.embeddings),
            web.post("/v1/audio/transcriptions", self.transcriptions),
        ]

    async def embeddings(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        body = orjson.loads(raw)
        headers = {name.lower(): value for name, value in request.headers.items()}
        record = self._state.journal.open(request.method, request.path_qs, headers, body, raw)
        ids = tokenizer.encode(str(body["input"]))
        record.outcome, record.status, record.prompt_tokens = "ok", 200, len(ids)
        data = [{"index": 0, "object": "embedding", "embedding": [i / 1000 for i in ids[:4]]}]
        usage = {"prompt_tokens": len(ids), "total_tokens": len(ids), "completion_tokens": 0}
        return answer({"object": "list", "data": data, "model": self._state.model.name, "usage": usage})

    async def transcriptions(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        record = self._state.journal.open(request.method, request.path_qs, headers, None, raw)
        record.outcome, record.status = "ok", 200
        if b'name="stream"' not in raw:
            return answer({"text": f"heard {len(raw)} bytes"})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for word in ("heard", "a", "river"):
            await response.write(b'data: {"choices":[{"delta":{"content":"%s"}}]}\n\n' % word.encode())
            await asyncio.sleep(0)
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response
