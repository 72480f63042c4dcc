"""`/v1/messages`: the Anthropic Messages API as vLLM serves it, on top of chat (vllm/entrypoints/anthropic/serving.py).

Rule of this room: a request becomes the chat request that vLLM makes of it; answers have its keys in its order, and
what is null is left out, except where vLLM names it.
"""

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from loadtest.pod.answer import Answer, Delta
from loadtest.pod.errors import ApiError, wrong_field
from loadtest.pod.generation import Generation, PodModel, read_chat
from loadtest.pod.run import Run
from loadtest.pod.shapes import Json

_SAME = (
    "model",
    "max_tokens",
    "stream",
    "temperature",
    "top_p",
    "top_k",
    "cache_salt",
    "kv_transfer_params",
    "vllm_xargs",
    "chat_template_kwargs",
)
Event = tuple[str, Json]


def read(body: Any, model: PodModel) -> Generation:
    """`POST /v1/messages`."""
    _check(body, ("messages", "max_tokens"))
    return read_chat(to_chat(body), model)


def count(body: Any, model: PodModel) -> Json:
    """`POST /v1/messages/count_tokens`."""
    _check(body, ("messages",))
    tokens = len(read_chat({**to_chat(body), "stream": False}, model).prompts[0])
    return {"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}}


def error_body(error: ApiError) -> Json:
    """Errors of the schema come in OpenAI's shape, all others in Anthropic's."""
    if error.kind == "Bad Request":
        return error.body()
    return {"type": "error", "error": {"type": error.kind, "message": error.message}}


def _check(body: Any, required: Sequence[str]) -> None:
    if isinstance(body, Mapping):
        for name in ("model", *required):
            if name not in body:
                raise wrong_field(name, "missing", "Field required", dict(body))
        if "max_tokens" in required and body["max_tokens"] <= 0:
            problem = "Value error, max_tokens must be positive"
            raise wrong_field("max_tokens", "value_error", problem, body["max_tokens"])


def to_chat(body: Mapping[str, Any]) -> Json:
    """The chat request it becomes."""
    if not isinstance(body, Mapping):
        return body
    chat: Json = {name: body[name] for name in _SAME if body.get(name) is not None}
    if body.get("stop_sequences"):
        chat["stop"] = body["stop_sequences"]
    system = _text(body.get("system") or "")
    chat["messages"] = [{"role": "system", "content": system}] if system else []
    for message in body["messages"]:
        chat["messages"] += _messages(message)
    if body.get("tools"):
        chat["tools"] = [_tool(tool) for tool in body["tools"]]
        chat["tool_choice"] = _choice(body.get("tool_choice") or {"type": "auto"})
    if body.get("stream"):
        chat["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    return chat


def _tool(tool: Mapping[str, Any]) -> Json:
    described = {"name": tool["name"], "description": tool.get("description"), "parameters": tool.get("input_schema")}
    return {"type": "function", "function": described}


def _choice(choice: Mapping[str, Any]) -> Any:
    if choice["type"] == "tool":
        return {"type": "function", "function": {"name": choice["name"]}}
    return {"any": "required"}.get(choice["type"], choice["type"])


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(block.get("text") or "" for block in content if block.get("type") == "text")


def _messages(message: Mapping[str, Any]) -> list[Json]:
    content = message["content"]
    if isinstance(content, str):
        return [{"role": message["role"], "content": content}]
    results = [
        {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": _text(block.get("content") or "")}
        for block in content
        if block.get("type") == "tool_result"
    ]
    calls = [
        {
            "id": block["id"],
            "type": "function",
            "function": {"name": block["name"], "arguments": json.dumps(block.get("input") or {})},
        }
        for block in content
        if block.get("type") == "tool_use"
    ]
    text = _text(content)
    said: Json = {"role": message["role"], "content": text} | ({"tool_calls": calls} if calls else {})
    return [*results, *([said] if text or calls else [])]


def _usage(run: Run, block_size: int) -> Json:
    if not run.prompt_tokens_details:
        return {"input_tokens": run.prompt_tokens, "output_tokens": run.completion_tokens}
    read, created = run.cached_tokens(0), run.created_cache_tokens(0, block_size)
    return {
        "input_tokens": max(0, run.prompt_tokens - read - created),
        "output_tokens": run.completion_tokens,
        "cache_creation_input_tokens": created,
        "cache_read_input_tokens": read,
    }


def _stop(answer: Answer, *, tool_used: bool) -> tuple[str, str | None]:
    if answer.finish == "length":
        return "max_tokens", None
    if tool_used:
        return "tool_use", None
    if isinstance(answer.stop_reason, str):
        return "stop_sequence", answer.stop_reason
    return "end_turn", None


def full(run: Run, *, block_size: int) -> Json:
    """The answer in one piece (`messages_full_converter`)."""
    answer, name = run.answers[0], run.wanted.tool_name
    content: Json = {"type": "text", "text": answer.text}
    if answer.finish == "length":
        name = None  # a call that was cut is no call
    if name is not None:
        content = {"type": "tool_use", "id": _call_id(), "name": name, "input": json.loads(answer.text)}
    reason, sequence = _stop(answer, tool_used=name is not None)
    made: Json = {
        "id": run.id,
        "type": "message",
        "role": "assistant",
        "content": [content],
        "model": run.wanted.model,
        "stop_reason": reason,
        "stop_sequence": sequence,
        "usage": _usage(run, block_size),
        "kv_transfer_params": run.params.get(0),
    }
    return {key: value for key, value in made.items() if value is not None}


def _call_id() -> str:
    return f"chatcmpl-tool-{uuid.uuid4().hex[:16]}"


class Stream:
    """The events of one stream (`message_stream_converter`)."""

    def __init__(self, run: Run, block_size: int) -> None:
        self._run = run
        self._block_size = block_size
        self._open = False

    def start(self) -> list[Event]:
        message: Json = {
            "id": self._run.id,
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": self._run.wanted.model,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": self._run.prompt_tokens, "output_tokens": 0},
        }
        return [_event("message_start", message=message)]

    def more(self, delta: Delta) -> list[Event]:
        """Some more text, or of the arguments of the one call."""
        name = self._run.wanted.tool_name
        events: list[Event] = []
        if not self._open and (delta.text or name is not None):
            self._open = True
            block: Json = {"type": "text", "text": ""}
            if name is not None:
                block = {"type": "tool_use", "id": _call_id(), "name": name, "input": {}}
            events.append(_event("content_block_start", content_block=block, index=0))
        if delta.text:
            body: Json = {"type": "text_delta", "text": delta.text}
            if name is not None:
                body = {"type": "input_json_delta", "partial_json": delta.text}
            events.append(_event("content_block_delta", delta=body, index=0))
        return events

    def end(self) -> list[Event]:
        reason, sequence = _stop(self._run.answers[0], tool_used=self._run.wanted.tool_name is not None)
        stop = [_event("content_block_stop", index=0)] if self._open else []
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        usage = _usage(self._run, self._block_size)
        return [*stop, _event("message_delta", delta=delta, usage=usage), _event("message_stop")]

    def failed(self) -> list[Event]:
        """The chat stream's error event does not fit vLLM's model of a chunk, and ends the stream."""
        error = {"type": "internal_error", "message": "4 validation errors for ChatCompletionStreamResponse"}
        return [_event("error", error=error)]


def _event(kind: str, **fields: Any) -> Event:
    return kind, {"type": kind, **fields}
