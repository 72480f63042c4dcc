"""`/v1/responses`: the Responses API as vLLM serves it (vllm/entrypoints/openai/responses/serving.py).

Rule of this room: a request becomes the chat request with the same prompt; answers have vLLM's keys in its order.
"""

import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from loadtest.pod.answer import Delta
from loadtest.pod.errors import ApiError, wrong_field
from loadtest.pod.generation import Generation, PodModel, read_chat
from loadtest.pod.run import Run
from loadtest.pod.shapes import Json

_SAME = (
    "model",
    "stream",
    "temperature",
    "top_p",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "cache_salt",
    "session_id",
    "kv_transfer_params",
    "vllm_xargs",
    "chat_template_kwargs",
)
Event = tuple[str, Json]


def read(body: Any, model: PodModel, earlier: list[Json]) -> Generation:
    """`POST /v1/responses`. earlier: the messages of the answer it goes on from."""
    if isinstance(body, Mapping) and "input" not in body:
        raise wrong_field("input", "missing", "Field required", dict(body))
    return read_chat(to_chat(body, earlier), model)


def unknown(response_id: str) -> ApiError:
    return ApiError(404, f"Response with id '{response_id}' not found.", "invalid_request_error", "response_id")


def no_store() -> ApiError:
    problem = (
        "This vLLM engine does not support `store=True` and therefore does not support the background mode. To enable "
        "these features, set the environment variable `VLLM_ENABLE_RESPONSES_API_STORE=1` when launching the vLLM "
        "server."
    )
    return ApiError(400, problem, "invalid_request_error", "background")


def not_running() -> ApiError:
    return ApiError(400, "Cannot cancel a synchronous response.", "invalid_request_error", "response_id")


def messages_of(body: Mapping[str, Any], earlier: list[Json]) -> list[Json]:
    """Instructions, what came before, and the input, as chat messages."""
    given = body["input"]
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    first = [{"role": "system", "content": body["instructions"]}] if body.get("instructions") else []
    return [*first, *earlier, *(made for item in items if (made := message_of(item)) is not None)]


def message_of(item: Mapping[str, Any]) -> Json | None:
    """One item of input or output as a chat message."""
    kind = item.get("type") or "message"
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        return {"role": "assistant", "content": "", "tool_calls": [call]}
    if kind == "function_call_output":
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")}
    if kind == "reasoning":
        return None
    content = item.get("content")
    if isinstance(content, list):
        content = "".join(part.get("text") or "" for part in content)
    return {"role": item.get("role"), "content": content}


def to_chat(body: Any, earlier: list[Json]) -> Any:
    if not isinstance(body, Mapping):
        return body
    chat: Json = {name: body[name] for name in _SAME if body.get(name) is not None}
    if body.get("max_output_tokens") is not None:
        chat["max_tokens"] = body["max_output_tokens"]
    chat["messages"] = messages_of(body, earlier)
    if body.get("tools"):
        chat["tools"] = [
            {"type": "function", "function": {name: tool.get(name) for name in ("name", "description", "parameters")}}
            for tool in body["tools"]
        ]
        choice = body.get("tool_choice") or "auto"
        if isinstance(choice, Mapping):
            choice = {"type": "function", "function": {"name": choice.get("name")}}
        chat["tool_choice"] = choice
    return chat


class Response:
    """One response object, from the first event to the last."""

    def __init__(
        self,
        body: Mapping[str, Any],
        run: Run,
        block_size: int,
        on_end: "Callable[[Response, Json], None] | None" = None,
    ) -> None:
        self.id = body.get("request_id") or f"resp_{uuid.uuid4().hex[:16]}"
        self.body = body
        self._block_size = block_size
        self._on_end = on_end
        self._run = run
        self._created = int(time.time())
        self._item_id = f"msg_{uuid.uuid4().hex[:16]}"
        self._sequence = -1
        self._opened = False
        self._said = ""

    def shown(self, status: str, output: list[Json], usage: Json | None, params: Json | None = None) -> Json:
        body, wanted = self.body, self._run.wanted
        return {
            "id": self.id,
            "created_at": self._created,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.get("instructions"),
            "metadata": body.get("metadata"),
            "model": wanted.model,
            "object": "response",
            "output": output,
            "parallel_tool_calls": body.get("parallel_tool_calls", True),
            "temperature": float(body.get("temperature", 1.0)),
            "tool_choice": body.get("tool_choice", "auto") if body.get("tools") else "none",
            "tools": [_tool(tool) for tool in body.get("tools") or ()],
            "top_p": float(body.get("top_p", 1.0)),
            "background": bool(body.get("background")),
            "max_output_tokens": wanted.max_tokens[0],
            "max_tool_calls": body.get("max_tool_calls"),
            "previous_response_id": body.get("previous_response_id"),
            "prompt": None,
            "reasoning": body.get("reasoning"),
            "service_tier": body.get("service_tier", "auto"),
            "status": status,
            "text": body.get("text"),
            "top_logprobs": None,
            "truncation": body.get("truncation", "disabled"),
            "usage": usage,
            "user": body.get("user"),
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "kv_transfer_params": params,
            "ec_transfer_params": None,
            "input_messages": None,
            "output_messages": None,
        }

    def full(self) -> Json:
        """The answer in one piece, once the run has ended."""
        answer = self._run.answers[0]
        status = "incomplete" if answer.finish == "length" else "completed"
        return self.shown(status, [self._item(answer.text)], self._usage(), self._run.params.get(0))

    def _usage(self) -> Json:
        run = self._run
        return {
            "input_tokens": run.prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": run.cached_tokens(0),
                "cache_write_tokens": run.created_cache_tokens(0, self._block_size),
                "input_tokens_per_turn": [],
                "cached_tokens_per_turn": [],
            },
            "output_tokens": run.completion_tokens,
            "output_tokens_details": {
                "reasoning_tokens": 0,
                "tool_output_tokens": 0,
                "output_tokens_per_turn": [],
                "tool_output_tokens_per_turn": [],
            },
            "total_tokens": run.prompt_tokens + run.completion_tokens,
        }

    def _item(self, text: str) -> Json:
        name = self._run.wanted.tool_name
        if name is not None:
            call_id = f"chatcmpl-tool-{self._item_id[4:]}"
            made: Json = {"arguments": text, "call_id": call_id, "name": name, "type": "function_call"}
            ends = {"async": None, "caller": None, "namespace": None, "status": "completed"}
            return made | {"id": f"fc_{self._item_id[4:]}"} | ends
        return {
            "id": self._item_id,
            "content": [self._part(text, None)],
            "role": "assistant",
            "status": "completed",
            "type": "message",
            "phase": None,
        }

    @staticmethod
    def _part(text: str, logprobs: list[Json] | None) -> Json:
        return {"annotations": [], "text": text, "type": "output_text", "logprobs": logprobs}

    # ---- the events of a stream

    def start(self) -> list[Event]:
        shown = self.shown("in_progress", [], None)
        return [self._event(kind, response=shown) for kind in ("response.created", "response.in_progress")]

    def more(self, delta: Delta) -> list[Event]:
        events: list[Event] = []
        if self._run.wanted.tool_name is not None:
            return self._more_of_call(delta)
        if not delta.text:
            return events
        if not self._opened:
            self._opened = True
            item = {**self._item(""), "content": [], "status": "in_progress"}
            events.append(self._event("response.output_item.added", item=item, output_index=0))
            part = self._part("", [])
            events.append(self._place("response.content_part.added", output_index=0, part=part))
        self._said += delta.text
        events.append(self._place("response.output_text.delta", delta=delta.text, logprobs=[], output_index=0))
        return events

    def _more_of_call(self, delta: Delta) -> list[Event]:
        events: list[Event] = []
        place = {"item_id": f"fc_{self._item_id[4:]}", "output_index": 0}
        if not self._opened:
            self._opened = True
            item = {**self._item(""), "status": "in_progress"}
            events.append(self._event("response.output_item.added", item=item, output_index=0))
        if delta.text:
            self._said += delta.text
            events.append(self._event("response.function_call_arguments.delta", delta=delta.text, **place))
        return events

    def end(self) -> list[Event]:
        events: list[Event] = []
        name = self._run.wanted.tool_name
        if self._opened and name is not None:
            place = {"item_id": f"fc_{self._item_id[4:]}", "output_index": 0}
            kind, done = self._event("response.function_call_arguments.done", arguments=self._said, **place)
            events.append((kind, {**done, "name": name}))
            events.append(self._event("response.output_item.done", item=self._item(self._said), output_index=0))
        elif self._opened:
            part = self._part(self._said, None)
            events.append(self._place("response.output_text.done", logprobs=[], output_index=0, text=self._said))
            events.append(self._place("response.content_part.done", output_index=0, part=part))
            done = self._item(self._said)
            events.append(self._event("response.output_item.done", item=done, output_index=0))
        made = self.full()
        if self._on_end is not None:
            self._on_end(self, made)
        return [*events, self._event("response.completed", response=made)]

    def failed(self) -> list[Event]:
        error = {"code": "500", "message": "Internal server error", "param": None}
        return [self._event("error", **error)]

    def _place(self, kind: str, **fields: Any) -> Event:
        placed = {"content_index": 0, "item_id": self._item_id, **fields}
        return self._event(kind, **{name: placed[name] for name in sorted(placed)})

    def _event(self, kind: str, **fields: Any) -> Event:
        self._sequence += 1
        made = {**fields, "sequence_number": self._sequence, "type": kind}
        if "text" in made:
            made = {name: made[name] for name in sorted(made)}
        return kind, made


def _tool(tool: Mapping[str, Any]) -> Json:
    return {
        "name": tool.get("name"),
        "parameters": tool.get("parameters"),
        "strict": tool.get("strict"),
        "type": "function",
        "allowed_callers": None,
        "async": None,
        "defer_loading": None,
        "description": tool.get("description"),
        "output_schema": None,
    }
