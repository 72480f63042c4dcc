"""Messages as digests: equal for what a model would read alike, however a client wrote it down.

Rule of this room: what a pod's chat template can see counts (vLLM `renderers/chat_utils.py`,
`_parse_chat_message_content`), and nothing else: not the nulls that a client library dumps, not cache markers that
move from turn to turn, not the reasoning that is left out of later turns. Digests out, never text kept.
"""

from __future__ import annotations

from typing import Any

import msgspec
import xxhash

LONG_STRING = 256
"""A string inside a content part that is longer than this (an image as a data URL) goes into the digest as a hash."""

BILLING = "x-anthropic-billing-header"
"""Claude Code's first words: a line that is new in each request, which vLLM takes out of system messages."""

_NOT_SEEN = frozenset({"cache_control", "annotations", "logprobs", "citations", "index", "status"})
_TEXT_TYPES = ("text", "input_text", "output_text")

_sorted_encoder = msgspec.json.Encoder(order="sorted")


def digest(role: object, content: object, *more: object) -> bytes:
    """The digest (16 bytes) of a message. White space around an answer does not count: many a client trims it.

    content: a string or a list of parts. more: whatever else of it the model sees; None is not there.
    """
    if role == "developer":
        role = "system"
    is_system = role == "system"
    seen = content if isinstance(content, str) and not is_system else plain_content(content, is_system=is_system)
    if isinstance(seen, str):
        if role == "assistant":
            seen = seen.strip()
        if isinstance(role, str) and not any(more):
            return xxhash.xxh3_128_digest(f"{role}\0{seen}".encode())
    return xxhash.xxh3_128_digest(b"\1" + _sorted_encoder.encode([role, seen, *more]))


def plain_content(content: object, *, is_system: bool = False) -> object:
    """Content without the ways to write it: no content is "", a list of one text is that text."""
    if isinstance(content, str):
        return _without_billing(content) if is_system else content
    if content is None:
        return ""
    if not isinstance(content, list):
        return content
    parts = [plain_part(part) for part in content]
    if is_system:
        parts = [_without_billing(part) if isinstance(part, str) else part for part in parts]
        parts = [part for part in parts if part != ""]
    if len(parts) < 2:
        return parts[0] if parts else ""
    return parts


def plain_part(part: object) -> object:
    """A text part is its text; of any other part, long strings are only hashes."""
    if isinstance(part, dict) and part.get("type") in _TEXT_TYPES and isinstance(part.get("text"), str):
        return part["text"]
    return shorten(part)


def shorten(value: Any) -> Any:
    """A value for a digest: without nulls and markers, long strings as their hash."""
    if isinstance(value, str):
        return value if len(value) <= LONG_STRING else xxhash.xxh3_128_hexdigest(value.encode())
    if isinstance(value, dict):
        return {key: shorten(item) for key, item in value.items() if item is not None and key not in _NOT_SEEN}
    if isinstance(value, list):
        return [shorten(item) for item in value]
    return value


def plain_calls(calls: object) -> object:
    """Tool calls as [id, name, arguments], None where there are none."""
    if not isinstance(calls, list) or not calls:
        return None
    return [_plain_call(call) for call in calls]


def plain_arguments(arguments: object) -> object:
    """A client may parse the arguments and write them out again: what they say counts."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return arguments


def _plain_call(call: object) -> object:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        return shorten(call)
    return [call.get("id"), function.get("name"), plain_arguments(function.get("arguments"))]


def _without_billing(text: str) -> str:
    return text.partition("\n")[2] if text.startswith(BILLING) else text
