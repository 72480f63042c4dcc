"""Asks a pod over HTTP and notes when each token came.

Rule of this room: as little Python per token as can be, since client and pods share the machine's cores.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from gateway.wire.contract import Api
from gateway.wire.fields import parse
from gateway.wire.legs import prefill_body

PATH = "/v1/completions"
PATIENCE_S = 120.0
_LIMIT = 1 << 24


class PodAnswerError(RuntimeError):
    """A pod did not answer as asked; the message says which and what it said."""


@dataclass(slots=True)
class Timed:
    """Seconds on the monotonic clock. `token_s` has an entry per event with text, so per token."""

    sent_s: float
    token_s: list[float] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    """Where the request has `return_token_ids`."""
    cached_tokens: int = 0

    @property
    def ttft_s(self) -> float:
        return self.token_s[0] - self.sent_s

    @property
    def tpot_s(self) -> float:
        """Mean over the tokens after the first."""
        return (self.token_s[-1] - self.token_s[0]) / (len(self.token_s) - 1)


def body_for(model: str, prompt: list[int], max_tokens: int, salt: str) -> dict[str, Any]:
    """A completion of exactly `max_tokens` greedy tokens that shares no prefix cache with other salts."""
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "cache_salt": salt,
    }


async def stream(url: str, body: dict[str, Any], *, sent_s: float | None = None) -> Timed:
    """Stream one completion. `sent_s`: count from then (an earlier leg's start). Raises PodAnswerError."""
    payload = json.dumps(body | {"stream": True, "stream_options": {"include_usage": True}}).encode()
    async with asyncio.timeout(PATIENCE_S):
        timed, events = Timed(time.monotonic() if sent_s is None else sent_s), list[bytes]()
        reader, writer = await _send(url, payload)
        try:
            await _check_status(url, reader)
            while line := await reader.readline():
                if not line.startswith(b"data: {"):
                    if line.startswith(b"data: [DONE]"):
                        break
                    continue
                now = time.monotonic()
                if b'"choices":[]' in line:
                    timed.cached_tokens = _cached(json.loads(line[6:]))
                else:
                    timed.token_s.append(now)
                    events.append(line)
        finally:
            writer.close()
    if body.get("return_token_ids"):
        for event in events:
            timed.token_ids += json.loads(event[6:])["choices"][0].get("token_ids") or []
    if not timed.token_s:
        raise PodAnswerError(f"{url} sent no token")
    return timed


async def hand_over(prefill: str, decode: str, body: dict[str, Any]) -> tuple[Timed, float]:
    """Through P, then D. Returns D's times counted from the start of P's leg, and the seconds of P's leg."""
    leg = prefill_body(Api.COMPLETIONS, parse(json.dumps(body).encode()))
    began_s = time.monotonic()
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await _send(prefill, leg)
        try:
            length = await _check_status(prefill, reader)
            answer = json.loads(await reader.readexactly(length))
        finally:
            writer.close()
    prefill_s = time.monotonic() - began_s
    handed = answer.get("kv_transfer_params")
    if not handed:
        raise PodAnswerError(f"{prefill} is no prefill pod: its answer has no kv_transfer_params")
    return await stream(decode, body | {"kv_transfer_params": handed}, sent_s=began_s), prefill_s


async def _send(url: str, payload: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    where = urlsplit(url)
    try:
        reader, writer = await asyncio.open_connection(where.hostname, where.port or 80, limit=_LIMIT)
    except OSError as error:
        raise PodAnswerError(f"{url} cannot be reached ({error.strerror or error})") from error
    head = f"POST {PATH} HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    writer.write(head.encode() + f"Content-Length: {len(payload)}\r\n\r\n".encode() + payload)
    return reader, writer


async def _check_status(url: str, reader: asyncio.StreamReader) -> int:
    """Read the head of an answer; gives its content length (0 for a stream)."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    status, _, lines = head.partition("\r\n")
    fields = dict(line.lower().split(": ", 1) for line in lines.split("\r\n") if ": " in line)
    if " 200 " not in f"{status} ":
        said = await reader.read(400)
        raise PodAnswerError(f"{url}: {status.strip()} {said[:200]!r}")
    return int(fields.get("content-length", 0))


def _cached(event: dict[str, Any]) -> int:
    details = (event.get("usage") or {}).get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens") or 0)
