"""Probes of `/v1/messages` and `/v1/responses`, and the shape of their streams.

Rule of this room: as in `probes`; the two lists are sent by the same test.
"""

import json
from typing import Any

from loadtest.pod.probes import LEG_ONE, Probe, Where, shape_of

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
_HELLO = [{"role": "user", "content": "Say something about the sea and the sky and the long road home."}]
_SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Oslo"]}}, "required": ["city"]}
_GOES_ON = ("content_block_delta", "response.output_text.delta", "response.function_call_arguments.delta")


def _message(name: str, where: Where = "plain", **more: Any) -> Probe:
    return Probe(
        name, MESSAGES, {"model": "MODEL", "messages": _HELLO, "max_tokens": 8, "temperature": 0} | more, where
    )


def _response(name: str, where: Where = "plain", **more: Any) -> Probe:
    body = {"model": "MODEL", "input": _HELLO, "max_output_tokens": 8, "temperature": 0, "ignore_eos": True}
    return Probe(name, RESPONSES, body | more, where)


def _without(probe: Probe, field: str) -> Probe:
    body = {name: value for name, value in probe.body.items() if name != field}
    return Probe(probe.name, probe.path, body, probe.where)


_BLOCKS = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
_TOOL_LOOP = [
    *_HELLO,
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "weather", "input": {"city": "Oslo"}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "rain"}]},
]
_ITEM_LOOP = [
    *_HELLO,
    {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "rain"},
]
_M_TOOL = {"name": "weather", "description": "d", "input_schema": _SCHEMA}
_R_TOOL = {"type": "function", "name": "weather", "description": "d", "parameters": _SCHEMA}

AGENT_PROBES: tuple[Probe, ...] = (
    _message("messages"),
    _message("messages_stream", stream=True),
    _message("messages_system", system="Be brief."),
    _message("messages_blocks", messages=_BLOCKS, system=[{"type": "text", "text": "Be brief."}]),
    _message("messages_tools", tools=[_M_TOOL]),
    _message("messages_tool_loop", messages=_TOOL_LOOP, tools=[_M_TOOL]),
    _message("messages_stop", stop_sequences=["e", "a", "o", "i"], max_tokens=64),
    _message("messages_stop_stream", stop_sequences=["e", "a", "o", "i"], max_tokens=64, stream=True),
    _message("messages_leg_one", "prefill", max_tokens=1, kv_transfer_params=LEG_ONE),
    _message("messages_leg_two", "handover"),
    _message("messages_unknown_model", model="no-such-model"),
    _message("messages_max_tokens_zero", max_tokens=0),
    _without(_message("messages_without_limit"), "max_tokens"),
    _without(_message("messages_without_messages"), "messages"),
    Probe("messages_broken", MESSAGES, raw=b"{"),
    Probe("count_tokens", f"{MESSAGES}/count_tokens", {"model": "MODEL", "messages": _HELLO}),
    Probe("count_tokens_unknown_model", f"{MESSAGES}/count_tokens", {"model": "no-such-model", "messages": _HELLO}),
    _response("responses"),
    _response("responses_stream", stream=True),
    _response("responses_text", input="hello", instructions="Be brief."),
    _response("responses_tools", tools=[_R_TOOL]),
    _response("responses_tool_loop", input=_ITEM_LOOP, tools=[_R_TOOL]),
    _response("responses_leg_one", "prefill", max_output_tokens=1, store=False, kv_transfer_params=LEG_ONE),
    _response("responses_leg_two", "handover"),
    _response("responses_unknown_model", model="no-such-model"),
    _response("responses_limit_zero", max_output_tokens=0),
    _response("responses_previous", previous_response_id="resp_nobody"),
    _response("responses_background", background=True),
    _without(_response("responses_without_input"), "input"),
    Probe("responses_get", f"{RESPONSES}/resp_nobody", method="GET"),
    Probe("responses_cancel", f"{RESPONSES}/resp_nobody/cancel", {}),
)


def shape_of_events(body: str) -> list[Any]:
    """The shapes of a stream's named events in order; how often one repeats is forgotten."""
    shapes: list[Any] = []
    for block in body.split("\n\n"):
        if not block:
            continue
        name, _, data = block.partition("\n")
        shape = (name, shape_of(json.loads(data.removeprefix("data: "))))
        if not shapes or shapes[-1] != shape or not name.endswith(_GOES_ON):
            shapes.append(shape)
    return shapes
