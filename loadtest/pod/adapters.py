"""LoRA adapters that come and go while the pod runs (`VLLM_ALLOW_RUNTIME_LORA_UPDATING`).

Rule of this room: only the names count; an adapter has no weights here, but a prefix cache of its own
(vllm/entrypoints/serve/lora/api_router.py, vllm/entrypoints/openai/models/serving.py).
"""

from typing import Any

from aiohttp import web

from loadtest.pod.body import read_json
from loadtest.pod.errors import ApiError, wrong_field
from loadtest.pod.info import answer
from loadtest.pod.reply import SERVER
from loadtest.pod.state import PodState


class AdapterEndpoints:
    def __init__(self, state: PodState) -> None:
        self._state = state

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/load_lora_adapter", self.load),
            web.post("/v1/unload_lora_adapter", self.unload),
        ]

    async def load(self, request: web.Request) -> web.Response:
        try:
            body = await _body(request, ("lora_name", "lora_path"))
            name = self._state.load_adapter(body["lora_name"], body["lora_path"], in_place=body.get("load_inplace"))
        except ApiError as error:
            return answer(error.body(), error.status)
        return _done(f"Success: LoRA adapter '{name}' added successfully.")

    async def unload(self, request: web.Request) -> web.Response:
        try:
            body = await _body(request, ("lora_name",))
            name = self._state.unload_adapter(body["lora_name"])
        except ApiError as error:
            return answer(error.body(), error.status)
        return _done(f"Success: LoRA adapter '{name}' removed successfully.")


async def _body(request: web.Request, required: tuple[str, ...]) -> dict[str, Any]:
    body, problem = read_json(request, await request.read())
    if problem:
        raise problem
    for name in required:
        if name not in body:
            raise wrong_field(name, "missing", "Field required", body)
    return dict(body)


def _done(words: str) -> web.Response:
    return web.Response(body=words.encode(), headers=SERVER)
