"""Plays scripted conversations through any OpenAI-compatible server, with the official client.

Rule of this room: the client behaves like an ordinary chat client. It sends the whole history each turn, asks for a
stream with usage, and measures at its own end; it knows nothing of gateways, pods or policies.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import httpx
from openai import AsyncOpenAI, DefaultAsyncHttpxClient, OpenAIError
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletionMessageParam


@dataclass(frozen=True, slots=True)
class UserTurn:
    """What the user says next, `think_s` seconds after the last answer ended (turn 1: after the play began)."""

    text: str
    max_tokens: int
    think_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Script:
    """One conversation before it is played."""

    name: str
    system: str
    turns: tuple[UserTurn, ...]


@dataclass(frozen=True, slots=True)
class PlayedTurn:
    """One turn as the client saw it; `turn` counts from 1.

    context_tokens: what earlier turns left (the last turn's prompt and answer), new_tokens: the rest of the prompt.
    cached_tokens: as `usage` says it, None when it does not.
    ttft_s: from sending to the first piece of text. tpot_s: mean gap between the tokens after it, None for one token.
    """

    conversation: str
    turn: int
    request_id: str
    prompt_tokens: int
    context_tokens: int
    output_tokens: int
    cached_tokens: int | None
    ttft_s: float
    tpot_s: float | None
    finish_reason: str | None
    text: str

    @property
    def new_tokens(self) -> int:
        return self.prompt_tokens - self.context_tokens


class TurnFailedError(Exception):
    """A turn did not end in a whole answer; says which and why."""

    def __init__(self, conversation: str, turn: int, request_id: str, why: str) -> None:
        super().__init__(f"conversation {conversation}, turn {turn} (request {request_id}): {why}")


class Audience(Protocol):
    """Who is told while conversations are played. Called on the event loop; must not block."""

    def sent(self, conversation: str, turn: int) -> None:
        """A turn's request goes out."""

    def spoke(self, conversation: str, turn: int, ttft_s: float) -> None:
        """Its first text has arrived."""

    def ended(self, played: PlayedTurn) -> None:
        """Its answer is complete."""


_FAILURES = (OpenAIError, httpx.HTTPError, json.JSONDecodeError)
"""How the client tells that a turn went wrong; before its version 3 it let httpx's own errors through in a stream."""

NameRequest = Callable[[str, int], str]
"""Makes the `X-Request-Id` of a conversation's turn."""


def connect(url: str, *, timeout_s: float = 60.0) -> AsyncOpenAI:
    """A client for the server at `url`: no retries, which would hide failures, and no proxy from the environment."""
    return AsyncOpenAI(
        base_url=f"{url}/v1",
        api_key="none",
        max_retries=0,
        timeout=timeout_s,
        http_client=DefaultAsyncHttpxClient(trust_env=False),
    )


async def play_all(
    client: AsyncOpenAI, model: str, scripts: Sequence[Script], name: NameRequest, audience: Audience
) -> list[PlayedTurn]:
    """Play all conversations at once. Raises TurnFailedError of the first turn that fails, and ends the others."""
    failure: TurnFailedError | None = None
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(play(client, model, script, name, audience)) for script in scripts]
    except* TurnFailedError as failures:
        failure = _first(failures)
    if failure is not None:
        raise failure
    return [played for task in tasks for played in task.result()]


async def play(
    client: AsyncOpenAI, model: str, script: Script, name: NameRequest, audience: Audience
) -> list[PlayedTurn]:
    """Play one conversation turn by turn. Raises TurnFailedError."""
    messages: list[ChatCompletionMessageParam] = [{"role": "system", "content": script.system}]
    played: list[PlayedTurn] = []
    for number, said in enumerate(script.turns, start=1):
        await asyncio.sleep(said.think_s)
        messages.append({"role": "user", "content": said.text})
        left_behind = played[-1].prompt_tokens + played[-1].output_tokens if played else 0
        turn = _Turn(script.name, number, name(script.name, number), left_behind, audience)
        done = await turn.take(client, model, messages, said.max_tokens)
        messages.append({"role": "assistant", "content": done.text})
        played.append(done)
    return played


@dataclass(slots=True)
class _Turn:
    """One request on its way."""

    conversation: str
    number: int
    request_id: str
    left_behind: int
    audience: Audience

    async def take(
        self, client: AsyncOpenAI, model: str, messages: list[ChatCompletionMessageParam], max_tokens: int
    ) -> PlayedTurn:
        self.audience.sent(self.conversation, self.number)
        try:
            done = await self._stream(client, model, messages, max_tokens)
        except _FAILURES as error:
            raise self._failed(f"{type(error).__name__}: {error}") from error
        self.audience.ended(done)
        return done

    async def _stream(
        self, client: AsyncOpenAI, model: str, messages: list[ChatCompletionMessageParam], max_tokens: int
    ) -> PlayedTurn:
        pieces: list[str] = []
        usage: CompletionUsage | None = None
        finish: str | None = None
        first_s = last_s = 0.0
        began_s = time.perf_counter()
        stream = await client.chat.completions.create(
            model=model,
            messages=messages,
            max_tokens=max_tokens,
            stream=True,
            stream_options={"include_usage": True},
            extra_headers={"X-Request-Id": self.request_id},
        )
        async with stream:
            async for chunk in stream:
                usage = chunk.usage or usage
                for choice in chunk.choices:
                    finish = choice.finish_reason or finish
                    last_s = time.perf_counter()
                    if not choice.delta.content:
                        continue
                    if not pieces:
                        first_s = last_s
                        self.audience.spoke(self.conversation, self.number, first_s - began_s)
                    pieces.append(choice.delta.content)
        if usage is None or finish is None or not pieces:
            raise self._failed("the stream ended without text, finish reason or usage")
        return PlayedTurn(
            conversation=self.conversation,
            turn=self.number,
            request_id=self.request_id,
            prompt_tokens=usage.prompt_tokens,
            context_tokens=min(self.left_behind, usage.prompt_tokens),
            output_tokens=usage.completion_tokens,
            cached_tokens=usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else None,
            ttft_s=first_s - began_s,
            tpot_s=time_per_token_s(first_s, last_s, usage.completion_tokens),
            finish_reason=finish,
            text="".join(pieces),
        )

    def _failed(self, why: str) -> TurnFailedError:
        return TurnFailedError(self.conversation, self.number, self.request_id, why)


def time_per_token_s(first_s: float, last_s: float, output_tokens: int) -> float | None:
    """TPOT: from the first text to the end of the answer, over the tokens after the first."""
    return (last_s - first_s) / (output_tokens - 1) if output_tokens > 1 else None


def _first(failures: BaseExceptionGroup[TurnFailedError]) -> TurnFailedError:
    error: BaseException = failures
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, TurnFailedError)
    return error
