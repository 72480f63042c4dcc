"""Requests whose answers a simulated pod must shape as a real one does, and what 'shape' means.

Rule of this room: probes are data; nothing here sends them. A shape keeps status, content type, key order at every
level, nulls, event order and the values that are words of the protocol; it forgets texts, ids, numbers and how many
content events a stream had.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Where = Literal["plain", "decode", "prefill", "handover"]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
LEG_ONE: dict[str, Any] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
_NOWHERE: dict[str, Any] = {
    "do_remote_decode": False,
    "do_remote_prefill": True,
    "remote_engine_id": "nobody",
    "remote_request_id": "nothing",
    "remote_block_ids": [[1, 2]],
    "remote_host": "127.0.0.1",
    "remote_port": 9,
    "tp_size": 1,
}
_HELLO = [{"role": "user", "content": "Say something about the sea and the sky and the long road home."}]
_TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"enum": ["Oslo"]}}, "required": ["city"]},
    },
}


@dataclass(frozen=True, slots=True)
class Probe:
    """One request. `handover`: leg 1 to a prefill pod, then `body` with its parameters to a decode pod."""

    name: str
    path: str
    body: Any = None
    where: Where = "plain"
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    """Sent instead of `body`."""

    def payload(self, model: str) -> bytes:
        """The bytes to send; `model` fills in for the name `MODEL`."""
        if self.raw is not None:
            return self.raw
        return json.dumps(self.body).replace('"MODEL"', json.dumps(model)).encode()


def _limit(more: Mapping[str, Any]) -> int:
    """Answers of a few tokens; streams long enough that a busy pod does not send all of it in one event."""
    return 32 if more.get("stream") is True else 6


def _chat(name: str, *, where: Where = "plain", **more: Any) -> Probe:
    body = {
        "model": "MODEL",
        "messages": _HELLO,
        "max_tokens": _limit(more),
        "temperature": 0,
        "ignore_eos": True,
    } | more
    return Probe(name, CHAT, {key: value for key, value in body.items() if value != "OMIT"}, where)


def _completion(name: str, *, where: Where = "plain", **more: Any) -> Probe:
    body = {
        "model": "MODEL",
        "prompt": "The long road home",
        "max_tokens": _limit(more),
        "temperature": 0,
        "ignore_eos": True,
    }
    return Probe(name, COMPLETIONS, body | more, where)


_USAGE = {"include_usage": True}
_CONTINUOUS = {"include_usage": True, "continuous_usage_stats": True}
_SCHEMA = {
    "type": "json_schema",
    "json_schema": {
        "name": "a",
        "schema": {"type": "object", "properties": {"ok": {"const": True}}, "required": ["ok"]},
    },
}

PROBES: tuple[Probe, ...] = (
    # answers
    _chat("chat"),
    _chat("chat_stream", stream=True),
    _chat("chat_stream_usage", stream=True, stream_options=_USAGE),
    _chat("chat_stream_continuous_usage", stream=True, stream_options=_CONTINUOUS),
    _chat("chat_n2", n=2, temperature=1.0),
    _chat("chat_n2_stream", n=2, temperature=1.0, stream=True, stream_options=_USAGE),
    _chat("chat_logprobs", logprobs=True, top_logprobs=2),
    _chat("chat_logprobs_without_alternatives", logprobs=True),
    _chat("chat_logprobs_stream", logprobs=True, top_logprobs=2, stream=True),
    _chat("chat_token_ids", return_token_ids=True),
    _chat("chat_token_ids_stream", return_token_ids=True, stream=True),
    _chat("chat_stop", stop=["e", "a", "o", "i"], max_tokens=64),
    _chat("chat_stop_stream", stop=["e", "a", "o", "i"], max_tokens=64, stream=True),
    _chat("chat_max_completion_tokens", max_tokens="OMIT", max_completion_tokens=3),
    _chat("chat_content_parts", messages=[{"role": "user", "content": [{"type": "text", "text": "hello"}]}]),
    _chat("chat_json_schema", response_format=_SCHEMA, max_tokens=64, ignore_eos=False),
    _chat("chat_unknown_field", nonsense=1),
    _completion("completion"),
    _completion("completion_stream", stream=True),
    _completion("completion_stream_usage", stream=True, stream_options=_USAGE),
    _completion("completion_stream_continuous_usage", stream=True, stream_options=_CONTINUOUS),
    _completion("completion_token_ids", prompt=[300, 301, 302], return_token_ids=True),
    _completion("completion_token_ids_stream", prompt=[300, 301, 302], return_token_ids=True, stream=True),
    _completion("completion_batch", prompt=["one two", "three"]),
    _completion("completion_batch_of_ids", prompt=[[300, 301], [302]]),
    _completion("completion_batch_stream", prompt=["one two", "three"], stream=True, stream_options=_USAGE),
    _completion("completion_n2", n=2, temperature=1.0),
    _completion("completion_logprobs", logprobs=2),
    _completion("completion_logprobs_stream", logprobs=2, stream=True),
    _completion("completion_echo", echo=True),
    _completion("completion_echo_stream", echo=True, stream=True),
    # tools
    _chat("tool_auto", tools=[_TOOL]),
    _chat("tool_auto_stream", tools=[_TOOL], stream=True),
    _chat(
        "tool_named",
        tools=[_TOOL],
        tool_choice={"type": "function", "function": {"name": "weather"}},
        max_tokens=64,
        ignore_eos=False,
    ),
    _chat(
        "tool_named_stream",
        tools=[_TOOL],
        tool_choice={"type": "function", "function": {"name": "weather"}},
        max_tokens=64,
        stream=True,
        ignore_eos=False,
    ),
    _chat("tool_choice_without_tools", tool_choice="auto"),
    _chat("tool_choice_unknown", tools=[_TOOL], tool_choice={"type": "function", "function": {"name": "no"}}),
    _chat("tools_empty", tools=[]),
    # hand-over
    _chat("leg_one", where="prefill", max_tokens=1, kv_transfer_params=LEG_ONE),
    _chat("leg_one_of_three_tokens", where="prefill", max_tokens=3, kv_transfer_params=LEG_ONE),
    _completion("completion_leg_one", where="prefill", max_tokens=1, kv_transfer_params=LEG_ONE),
    _chat("leg_one_stream", where="prefill", max_tokens=1, kv_transfer_params=LEG_ONE, stream=True),
    _chat("leg_two", where="handover"),
    _chat("leg_two_stream", where="handover", stream=True, stream_options=_USAGE),
    _completion("completion_leg_two", where="handover"),
    _chat("leg_two_unknown_engine", where="decode", kv_transfer_params=_NOWHERE),
    _chat("leg_two_unknown_engine_stream", where="decode", kv_transfer_params=_NOWHERE, stream=True),
    _chat("append_prefill", where="decode"),
    _chat("kv_params_on_a_pod_without_connector", kv_transfer_params=LEG_ONE),
    # refusals
    _chat("unknown_model", model="no-such-model"),
    _chat("empty_model", model=""),
    _completion("completion_unknown_model", model="no-such-model"),
    _chat("greedy_n2", n=2),
    _chat("n_zero", n=0),
    _chat("temperature_too_high", temperature=3.0),
    _chat("temperature_is_a_word", temperature="hot"),
    _chat("max_tokens_is_a_word", max_tokens="many"),
    _chat("max_tokens_is_a_digit_string", max_tokens="3"),
    _chat("max_tokens_zero", max_tokens=0),
    _chat("max_tokens_beyond_context", max_tokens=1_000_000),
    _chat("min_tokens_above_max", min_tokens=9),
    _chat("top_p_zero", top_p=0.0),
    _chat("stream_is_a_word", stream="sometimes"),
    _chat("messages_is_a_string", messages="hello"),
    _chat("messages_missing", messages="OMIT"),
    _chat("messages_empty", messages=[]),
    _chat("message_without_role", messages=[{"content": "hello"}]),
    _chat("stream_options_without_stream", stream_options=_USAGE),
    _chat("top_logprobs_without_logprobs", top_logprobs=2),
    _chat("stop_empty", stop=[""]),
    _chat("five_stops", stop=["a", "b", "c", "d", "e"]),
    _chat("json_schema_without_schema", response_format={"type": "json_schema"}),
    _chat("response_format_unknown", response_format={"type": "yaml"}),
    _completion("completion_prompt_too_long", prompt=[300] * 9000),
    _completion("completion_prompt_fills_the_context", prompt=[300] * 8192),
    _chat("prompt_too_long", messages=[{"role": "user", "content": "1 2 3 4 5 6 7 8 9 " * 3000}]),
    _completion("completion_prompt_empty", prompt=""),
    _completion("completion_prompt_is_a_number", prompt=5),
    _completion("completion_token_out_of_vocabulary", prompt=[2_000_000_000]),
    Probe("json_broken", CHAT, raw=b'{"model": "MODEL", '),
    Probe("json_is_a_list", CHAT, raw=b"[]"),
    Probe("body_empty", CHAT, raw=b""),
    Probe("media_type_text", CHAT, raw=b"{}", headers={"Content-Type": "text/plain"}),
    # the small endpoints
    Probe("models", "/v1/models", method="GET"),
    Probe("version", "/version", method="GET"),
    Probe("health", "/health", method="GET"),
    Probe("load", "/load", method="GET"),
    Probe("not_found", "/v1/nothing", method="GET"),
    Probe("wrong_method", CHAT, method="GET"),
    Probe("tokenize_prompt", "/tokenize", {"model": "MODEL", "prompt": "hello there"}),
    Probe("tokenize_strings", "/tokenize", {"prompt": "hello", "return_token_strs": True}),
    Probe("tokenize_messages", "/tokenize", {"model": "MODEL", "messages": _HELLO}),
    Probe("tokenize_unknown_model", "/tokenize", {"model": "no-such-model", "prompt": "hello"}),
    Probe("tokenize_nothing", "/tokenize", {"model": "MODEL"}),
    Probe("detokenize", "/detokenize", {"model": "MODEL", "tokens": [300, 301]}),
    Probe("detokenize_nothing", "/detokenize", {"model": "MODEL"}),
)

_WORDS = frozenset({"object", "role", "finish_reason", "type", "param", "code", "owned_by", "transfer_mode"})
"""Fields whose values are part of the protocol."""


def shape_of(value: Any, key: str = "") -> Any:
    """Keys in order, nulls, types, and the protocol's own words."""
    if isinstance(value, dict):
        if key == "top_logprobs":
            return "by token"
        return [(name, shape_of(item, name)) for name, item in value.items()]
    if isinstance(value, list):
        shapes = [shape_of(item, key) for item in value]
        return [shape for index, shape in enumerate(shapes) if shape not in shapes[:index]]
    if value is None:
        return None
    if key in _WORDS:
        return value
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def shape_of_stream(body: str) -> dict[str, list[Any]]:
    """The shapes of a stream's events in order, choice by choice, runs of one shape counted once.

    Events of different choices come in any order; events of no choice (usage, errors, the end) are under `-`. How a
    tool call is cut into deltas is forgotten: a busy pod sends several tokens in one.
    """
    shapes: dict[str, list[Any]] = {}
    for block in body.split("\n\n"):
        if not block:
            continue
        name, _, data = block.partition(": ")
        event = None if data == "[DONE]" else json.loads(data)
        choices = event.get("choices") if event else None
        if choices and choices[0].get("delta") == {} and choices[0]["finish_reason"] is None:
            continue  # half a character: vLLM sends its token ids or log probabilities with an empty delta
        line = shapes.setdefault(str(choices[0]["index"]) if choices else "-", [])
        for choice in choices or ():
            if "delta" in choice and ("tool_calls" in choice["delta"] or not choice["delta"]):
                choice["delta"] = "part of a tool call"
        shape = (name, data if event is None else shape_of(event))
        if not line or line[-1] != shape:
            line.append(shape)
    return dict(sorted(shapes.items()))


def shape_of_answer(status: int, headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
    """What is compared. `headers` must look names up without regard to case."""
    content_type = headers.get("content-type", "")
    text = body.decode()
    shape: Any = text and "text"
    if content_type.startswith("text/event-stream"):
        shape = shape_of_stream(text)
    elif content_type.startswith("application/json"):
        shape = shape_of(json.loads(text))
    return {
        "status": status,
        "content-type": content_type,
        "chunked": headers.get("transfer-encoding"),
        "server": headers.get("server"),
        "body": shape,
    }
