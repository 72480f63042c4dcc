"""Requests that are over are freed at once: they leave no reference cycles for the garbage collector.

The gateway lets the collector run rarely, so that what waits for it is memory that grows.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.net.world import LONG, World, assistant, user, world

FAULTS: list[dict[str, Any]] = [
    {"kind": "refuse_5xx", "status": 503},
    {"kind": "close_without_response", "times": 2},
    {"kind": "reset_before_headers", "times": 2},
    {"kind": "reset_after_events", "events": 3},
    {"kind": "malformed_head"},
    {"kind": "malformed_chunk", "events": 2},
    {"kind": "finish_error", "events": 2},
    {"kind": "hang_before_headers"},
    {"kind": "drop_kv_params"},
]


SHORT = {"timeouts.prefill_s": 0.3, "timeouts.first_byte_s": 0.3, "timeouts.unstreamed_s": 0.3}


@contextmanager
def garbage() -> Iterator[Counter[str]]:
    """Counts, at its end, the gateway's objects that only the collector could have freed."""
    left: Counter[str] = Counter()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield left
        gc.collect()
        left.update(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.garbage if _ours(each))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def _ours(each: object) -> bool:
    return type(each).__module__.startswith("gateway.")


async def two_turns(w: World, stream: bool) -> None:
    messages = [user(LONG)]
    reply = await w.chat(messages, stream=stream)
    if reply.status == 200 and not stream:
        messages += [assistant(reply.json["choices"][0]["message"]["content"]), user("And then?")]
    await w.chat(messages, stream=stream)


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_nothing_is_left_to_the_garbage_collector(role: str, stream: bool) -> None:
    async with world(prefill=1, decode=2, **SHORT) as w:
        pods = w.prefill if role == "prefill" else w.decode
        await two_turns(w, stream)
        with garbage() as left:
            for fault in FAULTS:
                for pod in pods:
                    pod.fault(**fault)
                await two_turns(w, stream)
                for pod in pods:
                    pod.clear_faults()
            await w.settled()
        assert left == {}
