"""Streams: what the client receives is what one plain pod would have sent."""

from __future__ import annotations

import re

import pytest

from tests.net.world import CHAT, COMPLETIONS, World, user, world


def normal(body: bytes) -> bytes:
    """A stream with the ids, times and pod names that differ between any two calls made equal."""
    body = re.sub(rb'"id":"(chatcmpl|cmpl|call|chatcmpl-tool)-[^"]*"', rb'"id":"\1-x"', body)
    body = re.sub(rb'"created":\d+', b'"created":0', body)
    return re.sub(rb'"system_fingerprint":"[^"]*"', b'"system_fingerprint":"x"', body)


def events(body: bytes) -> list[bytes]:
    return normal(body).split(b"\n\n")


BODIES = {
    "plain": {},
    "usage": {"stream_options": {"include_usage": True}},
    "usage refused": {"stream_options": {"include_usage": False}},
    "continuous": {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    "continuous without usage": {"stream_options": {"include_usage": False, "continuous_usage_stats": True}},
    "logprobs": {"logprobs": True, "top_logprobs": 2},
    "stop": {"stop": ["e"]},
    "two choices": {"n": 2, "temperature": 1.0, "seed": 1},
}


@pytest.mark.parametrize("policy", ["pd", "local"])
@pytest.mark.parametrize("fields", BODIES.values(), ids=BODIES.keys())
async def test_a_chat_stream_is_byte_for_byte_the_plain_pods(policy: str, fields: dict[str, object]) -> None:
    async with world(policy=policy) as w:
        plain = await w.add("replica")
        body = {"model": "sim", "messages": [user()], "max_tokens": 12, "stream": True, **fields}
        for _ in range(2):
            expected = await w.post(CHAT, body, url=plain.url)
            plain.reset_prefix_cache()
            w.prefill[0].reset_prefix_cache()
            got = await w.post(CHAT, body)
            assert got.status == 200
            assert got.headers["content-type"] == expected.headers["content-type"]
            assert events(got.body) == events(expected.body)


@pytest.mark.parametrize("fields", [{}, {"stream_options": {"include_usage": True}}], ids=["plain", "usage"])
async def test_a_completions_stream_is_byte_for_byte_the_plain_pods(fields: dict[str, object]) -> None:
    async with world() as w:
        plain = await w.add("replica")
        body = {"model": "sim", "prompt": "once upon a time " * 30, "max_tokens": 12, "stream": True, **fields}
        expected = await w.post(COMPLETIONS, body, url=plain.url)
        got = await w.post(COMPLETIONS, body)
        assert events(got.body) == events(expected.body)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_whole_answer_is_byte_for_byte_the_plain_pods(path: str) -> None:
    async with world() as w:
        plain = await w.add("replica")
        prompt = {"messages": [user()]} if path == CHAT else {"prompt": "once upon a time " * 30}
        body = {"model": "sim", "max_tokens": 12, **prompt}
        expected = await w.post(path, body, url=plain.url)
        got = await w.post(path, body)
        assert normal(got.body) == normal(expected.body)
        assert int(got.headers["content-length"]) == len(got.body)


async def read_events(w: World, body: dict[str, object], count: int) -> bytes:
    """Read a stream until `count` events have come, then leave."""
    async with w.session.post(w.url + CHAT, json=body) as response:
        seen = b""
        while seen.count(b"\n\n") < count:
            chunk = await response.content.readany()
            assert chunk, "the stream ended early"
            seen += chunk
        return seen


async def test_events_reach_the_client_while_the_pod_is_still_writing() -> None:
    async with world(prefill=0, decode=1) as w:
        w.decode[0].fault("stall_after_events", events=5)
        body = {"model": "sim", "messages": [user()], "max_tokens": 30, "stream": True}
        seen = await read_events(w, body, 5)
        assert b"[DONE]" not in seen
        await w.settled()


async def test_a_pod_that_writes_byte_by_byte_changes_nothing() -> None:
    async with world(prefill=0, decode=1) as w:
        body = {"model": "sim", "messages": [user()], "max_tokens": 6, "stream": True}
        expected = await w.post(CHAT, body)
        w.decode[0].fault("one_byte_writes")
        got = await w.post(CHAT, body)
        assert events(got.body) == events(expected.body)


async def test_tokens_and_times_of_a_stream_are_learned_though_the_client_did_not_ask() -> None:
    async with world() as w:
        await w.chat([user()], stream=True, max_tokens=12)
        record = await w.record(1)
        assert record.output_tokens == 12
        assert record.prompt_tokens
        assert record.ttft_s is not None
        assert record.tpot_s is not None
        assert record.prefill_s is not None
        assert 0 < record.prefill_s <= record.ttft_s <= record.total_s
