"""The chat template: ChatML, with tools in the system part.

Rule of this room: rendering message k never looks at messages after k, so a longer history renders to a longer text
with the same beginning.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from loadtest.pod.errors import bad_request

Message = Mapping[str, Any]
_TEXT_PARTS = ("text", "input_text", "refusal")


def render(
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
) -> str:
    """Messages to prompt text."""
    parts = [_tools(tools)] if tools else []
    for position, message in enumerate(messages):
        text = f"<|im_start|>{message.get('role', 'user')}\n{_content(message)}"
        is_open = continue_final_message and position == len(messages) - 1
        parts.append(text if is_open else text + "<|im_end|>\n")
    if add_generation_prompt and not continue_final_message:
        parts.append("<|im_start|>assistant\n")
    return "".join(parts)


def _tools(tools: Sequence[Mapping[str, Any]]) -> str:
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return f"<|im_start|>system\n# Tools\n<tools>\n{lines}\n</tools><|im_end|>\n"


def _content(message: Message) -> str:
    content = message.get("content")
    text = ""
    if isinstance(content, str):
        text = content
    elif isinstance(content, list):
        text = "\n".join(_part(part) for part in content)
    calls = message.get("tool_calls") or ()
    for call in calls:
        function = call.get("function", {}) if isinstance(call, Mapping) else {}
        body = json.dumps({"name": function.get("name"), "arguments": function.get("arguments")}, ensure_ascii=False)
        text += f"\n<tool_call>\n{body}\n</tool_call>"
    return text


def is_text(message: Message) -> bool:
    """Whether a message has nothing but text in it."""
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    return all(not isinstance(part, Mapping) or part.get("type", "text") in _TEXT_PARTS for part in parts)


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type", "text") if isinstance(part, Mapping) else "?"
    if kind in _TEXT_PARTS:
        return str(part.get("text", part.get("refusal", "")))
    raise bad_request(f"At most 0 {kind.removesuffix('_url')}(s) may be provided in one prompt.")
