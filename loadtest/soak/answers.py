"""What a client makes of an answer.

Rule of this room: one word per way to end. "ok" is said of nothing that a client could not use: it has its end, its
usage, and the text that belongs to this very request.
"""

from __future__ import annotations

from typing import Any

import orjson

from loadtest.live.client import Plain

OK, BROKEN = "ok", "broken"
NOT_OURS = "not the answer to this request"


def judge(answer: Plain, *, stream: bool, max_tokens: int, expected: str | None) -> tuple[str, str]:
    """How it ended, and the reply. expected: what the reply must be; None: any."""
    if answer.fault is not None:
        return f"connection: {answer.fault}", ""
    try:
        if answer.status != 200:
            orjson.loads(answer.body)["error"]["message"]
            return str(answer.status), ""
        how, reply, usage = _stream(answer.body) if stream else _whole(answer.body)
        if how != OK:
            return how, ""
        if usage is None:
            return "no usage", ""
        if expected is not None and (reply != expected or usage["completion_tokens"] != max_tokens):
            return NOT_OURS, ""
        return OK, reply
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        return f"not well-formed: {type(error).__name__}", ""


def _whole(body: bytes) -> tuple[str, str, Any]:
    read = orjson.loads(body)
    return OK, str(read["choices"][0]["message"]["content"]), read["usage"]


def _stream(body: bytes) -> tuple[str, str, Any]:
    if not body.endswith(b"\n\n"):
        return "not well-formed: half an event", "", None
    events = body[:-2].split(b"\n\n")
    chunks = [orjson.loads(event.removeprefix(b"data: ")) for event in events if event != b"data: [DONE]"]
    if "error" in chunks[-1]:
        chunks[-1]["error"]["message"]
        return BROKEN, "", None
    if events[-1] != b"data: [DONE]":
        return "not well-formed: no [DONE]", "", None
    reply = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    finished = any(choice["finish_reason"] for chunk in chunks for choice in chunk["choices"])
    return (OK if finished else "no finish reason"), reply, chunks[-1].get("usage")
