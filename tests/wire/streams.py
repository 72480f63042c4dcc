"""Streams for the tests of the tap: recordings of a real vLLM 0.32, single events, and a way through.

`recorded/<case>.with.sse` is what the pod sends to a client that asks for usage, `.without` to one that does not,
`.continuous` with usage on every chunk. A pod started with --enable-force-include-usage was seen to send the bytes
of `.continuous` to everyone.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from gateway.wire.sse import StreamTap

RECORDED = Path(__file__).parent / "recorded"
CASES = sorted(path.name.removesuffix(".with.sse") for path in RECORDED.glob("*.with.sse"))
ONE_CHOICE = [case for case in CASES if not case.endswith("_n2")]
TWO_CHOICES = [case for case in CASES if case.endswith("_n2")]
CONTINUOUS = sorted(path.name.removesuffix(".continuous.sse") for path in RECORDED.glob("*.continuous.sse"))
FINGERPRINT = msgspec.Raw(b'"vllm-0.32.0-cf911bc9"')
DONE = b"data: [DONE]\n\n"
HELLO = b'data: {"choices":[{"index":0,"delta":{"content":"Hello"},"finish_reason":null}]}\n\n'
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
THINKING = b'data: {"choices":[{"index":0,"delta":{"reasoning":"hm"},"finish_reason":null}]}\n\n'
FINISH = b'data: {"choices":[{"index":0,"delta":{"content":"!"},"finish_reason":"stop"}]}\n\n'
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":9,"total_tokens":11,"completion_tokens":2,'
    b'"prompt_tokens_details":{"cached_tokens":8}},"system_fingerprint":"fp-1"}\n\n'
)
ERROR = b'data: {"error": {"message": "engine died", "type": "Internal", "param": null, "code": 500}}\n\n'


def recorded(case: str, wish: str) -> bytes:
    return (RECORDED / f"{case}.{wish}.sse").read_bytes()


def events(stream: bytes) -> list[bytes]:
    return [event + b"\n\n" for event in stream.removesuffix(b"\n\n").split(b"\n\n")]


def through(tap: StreamTap, pieces: Iterable[bytes]) -> bytes:
    return b"".join([tap.feed(piece) for piece in pieces]) + tap.finish()


def learned(tap: StreamTap) -> tuple[Any, ...]:
    fingerprint = None if tap.fingerprint is None else bytes(tap.fingerprint)
    return tap.usage, tap.reply_head, fingerprint, tap.done, tap.error, tap.said_something
