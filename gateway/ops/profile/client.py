"""Sends one turn and watches the clock.

Rule of this room: an ordinary streaming chat client with a stop watch. It measures at its own end, from before the
request is sent to the event of the first token, as the gateway's clients would see it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import aiohttp
import msgspec

from gateway.net.headers import ROUTE
from gateway.ops.profile.measure import Limits

Message = dict[str, str]


@dataclass(slots=True)
class Answer:
    """What came of one turn. `problem` is None when it came to a good end; times are of `time.monotonic`."""

    sent_s: float
    problem: str | None = None
    first_s: float | None = None
    last_s: float | None = None
    route: str | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int | None = None
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class _Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None

    @property
    def text(self) -> str | None:
        """Of a token, "" when its bytes are no whole character yet; None for the event that only opens the answer."""
        text = self.content or self.reasoning_content or self.reasoning
        return text or (self.content if self.role is None else None)


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None


_decode = msgspec.json.Decoder(_Event).decode
_FAILURES = (aiohttp.ClientError, OSError, TimeoutError, msgspec.MsgspecError)


class ChatClient:
    """`async with ChatClient(model, limits) as client`."""

    def __init__(self, model: str, limits: Limits) -> None:
        self._model = model
        self._limits = limits

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=None, sock_read=None)
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def turn(
        self,
        url: str,
        messages: Sequence[Message],
        output_tokens: int,
        on_first: Callable[[float], None] = lambda _: None,
    ) -> Answer:
        """Ask for exactly `output_tokens`; on_first is told the time when the first of them is there."""
        body = msgspec.json.encode(
            {
                "model": self._model,
                "messages": messages,
                "max_tokens": output_tokens,
                "min_tokens": output_tokens,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )
        answer = Answer(time.monotonic())
        headers = {"Content-Type": "application/json"}
        try:
            async with asyncio.timeout(self._limits.patience_s) as patience:
                latest_s = asyncio.get_running_loop().time() + self._limits.whole_turn_s(output_tokens)

                def first(now_s: float) -> None:
                    answer.first_s = now_s
                    patience.reschedule(latest_s)
                    on_first(now_s)

                async with self._session.post(f"{url}/v1/chat/completions", data=body, headers=headers) as response:
                    await _read(response, answer, first)
        except _FAILURES as error:
            answer.problem = " ".join(f"{type(error).__name__} {error}".split())
        if answer.problem is None and answer.output_tokens != output_tokens:
            answer.problem = f"{answer.output_tokens} tokens instead of {output_tokens}"
        return answer


async def _read(response: aiohttp.ClientResponse, answer: Answer, on_first: Callable[[float], None]) -> None:
    answer.route = response.headers.get(ROUTE)
    if response.status != 200:
        answer.problem = f"status {response.status}: {(await response.text())[:200]}"
        return
    async for line in response.content:
        if not line.startswith(b"data: {"):
            continue
        event = _decode(line[6:])
        now_s = time.monotonic()
        for choice in event.choices:
            text = choice.delta.text
            if text is None and choice.finish_reason is None:
                continue
            answer.pieces.append(text or "")
            answer.last_s = now_s
            if answer.first_s is None:
                on_first(now_s)
        if event.usage is not None:
            answer.prompt_tokens, answer.output_tokens = event.usage.prompt_tokens, event.usage.completion_tokens
            details = event.usage.prompt_tokens_details
            answer.cached_tokens = details.cached_tokens if details else None
    if answer.first_s is None:
        answer.problem = "the stream ended without a token"
