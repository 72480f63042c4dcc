"""`/render` behind the path of each API that generates: what the pod would give its engine, without running it.

Rule of this room: key order and left-out defaults are those of vLLM's `GenerateRequest` and of the `SamplingParams` in
it (vllm/entrypoints/scale_out/render/serving.py, …/token_in_token_out/protocol.py, vllm/sampling_params.py). A stock
pod answers 403 unless it was started with `--enable-scale-out`.
"""

import uuid
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from loadtest.pod import generation, messages, responses
from loadtest.pod.body import read_json
from loadtest.pod.errors import ApiError
from loadtest.pod.generation import Generation, PodModel
from loadtest.pod.info import answer
from loadtest.pod.reply import Reply
from loadtest.pod.shapes import Json
from loadtest.pod.state import PodState

DEFAULT_MAX_TOKENS = 16
"""`SamplingParams.max_tokens`; a request that wants just this many does not show it."""
FINAL_ONLY, DELTA = 2, 1
DISABLED = ApiError(
    403,
    "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.",
    "PermissionDeniedError",
)
Reader = Callable[[Mapping[str, Any], PodModel], Generation]
Shown = Callable[[Generation, str], Any]
"""What is answered, from the request and its id."""


class RenderEndpoints:
    def __init__(self, state: PodState) -> None:
        self._state = state

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/chat/completions/render", self.chat),
            web.post("/v1/completions/render", self.completion),
            web.post("/v1/messages/render", self.messages),
            web.post("/v1/responses/render", self.responses),
        ]

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(request, generation.read_chat, _chat)

    async def completion(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(request, generation.read_completion, _completions)

    async def messages(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(request, messages.read, _chat)

    async def responses(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(request, _read_response, _response)

    async def _serve(self, request: web.Request, reader: Reader, shown: Shown) -> web.StreamResponse:
        raw = await request.read()
        fault = self._state.faults.strike(request.path, generates=False)
        try:
            await Reply(request, fault, self._state.faults.cleared).before_headers()
            if not self._state.scale_out:
                raise DISABLED
            body, problem = read_json(request, raw)
            if problem:
                raise problem
            wanted = reader(body, self._state.model)
        except ApiError as error:
            return answer(error.body(), error.status)
        base = request.headers.get("X-Request-Id") or wanted.request_id or uuid.uuid4().hex[:16]
        return answer(shown(wanted, base))


def _chat(wanted: Generation, base: str) -> Json:
    return _rendered(wanted, 0, f"chatcmpl-{base}", is_chat=True)


def _completions(wanted: Generation, base: str) -> list[Json]:
    many = len(wanted.prompts) > 1
    names = [f"cmpl-{base}-{index}" if many else f"cmpl-{base}" for index in range(len(wanted.prompts))]
    return [_rendered(wanted, index, name, is_chat=False) for index, name in enumerate(names)]


def _response(wanted: Generation, _: str) -> Json:
    """No header makes its id."""
    made = _rendered(wanted, 0, f"resp_{uuid.uuid4().hex[:16]}", is_chat=True)
    sampling = made["sampling_params"]
    extra = sampling.pop("extra_args", {})
    ends = {name: sampling.pop(name) for name in ("bad_words", "skip_reading_prefix_cache")}
    shown = {"sampling_params": {**sampling, "extra_args": extra, **ends}, "stream_options": None}
    return {**made, **shown, "kv_transfer_params": wanted.kv_transfer_params}


def _read_response(body: Any, model: PodModel) -> Generation:
    if isinstance(body, Mapping) and body.get("previous_response_id") is not None:
        problem = "previous_response_id is not supported by the stateless render endpoint."
        raise ApiError(400, problem, "invalid_request_error", "previous_response_id")
    return responses.read(body, model, [])


def _rendered(wanted: Generation, prompt: int, request_id: str, *, is_chat: bool) -> Json:
    """One `GenerateRequest`."""
    options = wanted.body.get("stream_options") or {}
    streams = {"include_usage": False, "continuous_usage_stats": False} | options if wanted.stream and options else None
    return {
        "request_id": request_id,
        "token_ids": list(wanted.prompts[prompt]),
        "token_offsets": None,
        "features": None,
        "content_parts": None,
        "sampling_params": _sampling(wanted, prompt, is_chat=is_chat),
        "model": wanted.body.get("model"),
        "reasoning_ended": None,
        "reasoning_parser_kwargs": None,
        "return_token_ids": None,
        "output_mode": "tokens",
        "stream": wanted.stream,
        "stream_options": streams,
        "cache_salt": wanted.cache_salt,
        "priority": wanted.body.get("priority", 0),
        "kv_transfer_params": None,
        "ec_transfer_params": None,
    }


def _sampling(wanted: Generation, prompt: int, *, is_chat: bool) -> Json:
    """`SamplingParams` as JSON. Constants are always there, other fields when they are not the default.

    Structured output and logit bias are left out here; vLLM shows them.
    """
    body = wanted.body
    greedy = body.get("temperature") == 0
    alternatives = (0 if is_chat else None) if wanted.logprobs is None else wanted.logprobs
    optional: Json = {
        "ignore_eos": wanted.ignore_eos or None,
        "max_tokens": None if wanted.max_tokens[prompt] == DEFAULT_MAX_TOKENS else wanted.max_tokens[prompt],
        "min_tokens": wanted.min_tokens or None,
        "logprobs": alternatives if body.get("logprobs") is not None and body["logprobs"] is not False else None,
        "prompt_logprobs": body.get("prompt_logprobs"),
        "skip_special_tokens": None if wanted.skip_special else False,
        "include_stop_str_in_output": wanted.include_stop or None,
    }
    extra = dict(body.get("vllm_xargs") or {})
    if wanted.kv_transfer_params:
        extra["kv_transfer_params"] = wanted.kv_transfer_params
    shown: Json = {
        **({"n": wanted.n} if wanted.n > 1 else {}),
        "presence_penalty": body.get("presence_penalty", 0.0),
        "frequency_penalty": body.get("frequency_penalty", 0.0),
        "repetition_penalty": body.get("repetition_penalty", 1.0),
        "temperature": body.get("temperature", 1.0),
        **({} if greedy else {"top_p": body.get("top_p", 1.0)}),
        **({"top_k": body["top_k"]} if body.get("top_k") and not greedy else {}),
        **({} if greedy else {"min_p": body.get("min_p", 0.0)}),
        **({"seed": body["seed"]} if "seed" in body else {}),
        "stop": list(wanted.stop),
        "stop_token_ids": sorted(wanted.stop_token_ids),
        **{name: value for name, value in optional.items() if value is not None},
        "output_kind": DELTA if wanted.stream else FINAL_ONLY,
        "skip_clone": True,
        **({"extra_args": extra} if extra else {}),
        "bad_words": [],
        "skip_reading_prefix_cache": "prompt_logprobs" in body,
    }
    return shown
