"""Record streams of a real vLLM pod for `test_sse.py`: `python tests/wire/recorded/record.py http://host:port`.

Each request is sent twice, as a client that asks for usage and as one that does not. What differs from one call to
the next for no reason of interest (ids, times) is made equal; everything else stays byte for byte. A pod under load
sends several tokens in one event now and then, so each request is sent until both clients got the same events.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

HERE = Path(__file__).parent
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "Say something about the sea."}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"enum": ["Oslo"]}}, "required": ["city"]},
    },
}
GREEDY = {"model": "tiny", "temperature": 0, "seed": 7, "max_tokens": 6, "ignore_eos": True}
DICE = GREEDY | {"temperature": 1}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, GREEDY | {"messages": HELLO}),
    "chat_n2": (CHAT, DICE | {"messages": HELLO, "n": 2}),
    "chat_logprobs": (CHAT, GREEDY | {"messages": HELLO, "logprobs": True, "top_logprobs": 2}),
    "chat_tools": (
        CHAT,
        GREEDY | {"messages": HELLO, "tools": [TOOL], "tool_choice": "required", "max_tokens": 30, "ignore_eos": False},
    ),
    "chat_token_ids": (CHAT, GREEDY | {"messages": HELLO, "return_token_ids": True}),
    "completions": (COMPLETIONS, GREEDY | {"prompt": "The sea"}),
    "completions_n2": (COMPLETIONS, DICE | {"prompt": "The sea", "n": 2}),
    "completions_logprobs": (COMPLETIONS, GREEDY | {"prompt": "The sea", "logprobs": 2}),
    "completions_echo": (COMPLETIONS, GREEDY | {"prompt": "The sea", "echo": True}),
}
CONTINUOUS = ("chat", "chat_n2", "completions")
"""Also recorded with usage on every chunk, which is what a pod with --enable-force-include-usage sends to all."""

OPTIONS: dict[str, dict[str, bool] | None] = {
    "without": None,
    "with": {"include_usage": True},
    "continuous": {"include_usage": True, "continuous_usage_stats": True},
}

_SAME = (
    (re.compile(rb'"id":"(chatcmpl|cmpl)-[0-9a-f-]+"'), rb'"id":"\1-0"'),
    (re.compile(rb'"created":\d+'), b'"created":1'),
    (re.compile(rb'"id":"chatcmpl-tool-[0-9a-f]+"'), b'"id":"chatcmpl-tool-0"'),
)


def normalised(stream: bytes) -> bytes:
    """The stream with ids and times that are the same in every recording."""
    for pattern, replacement in _SAME:
        stream = pattern.sub(replacement, stream)
    return stream


def events(stream: bytes) -> list[bytes]:
    """The events of a stream, less all that has to do with usage."""
    bare = re.sub(rb'(,"usage":\{[^{}]*\})|(,"system_fingerprint":"[^"]*")', b"", stream)
    return [event for event in bare.split(b"\n\n") if b'"choices":[]' not in event]


def record(client: httpx.Client, path: str, body: dict[str, Any], wishes: Sequence[str]) -> dict[str, bytes]:
    """One stream per wish, all with the same events."""
    for _ in range(200):
        streams = {}
        for wish in wishes:
            options = {} if OPTIONS[wish] is None else {"stream_options": OPTIONS[wish]}
            content = json.dumps(body | {"stream": True} | options)
            answer = client.post(path, content=content, headers={"Content-Type": "application/json"})
            answer.raise_for_status()
            streams[wish] = normalised(answer.content)
        if all(events(stream) == events(streams[wishes[0]]) for stream in streams.values()):
            return streams
    raise SystemExit(f"{path}: no two streams alike in 200 tries")


def main() -> None:
    """Record all cases from the pod on the command line."""
    with httpx.Client(base_url=sys.argv[1], timeout=120, trust_env=False) as client:
        for name, (path, body) in CASES.items():
            wishes = ["without", "with", *(["continuous"] if name in CONTINUOUS else [])]
            for wish, stream in record(client, path, body, wishes).items():
                (HERE / f"{name}.{wish}.sse").write_bytes(stream)


if __name__ == "__main__":
    main()
