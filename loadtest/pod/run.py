"""Carries one API request through the engine.

Rule of this room: one `Generation` is prompts times n engine requests; what comes back is (answer, delta, output) as it
comes. Leaving the iteration early aborts whatever still runs.
"""

import asyncio
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from loadtest.engine import tokens
from loadtest.engine.realtime import RealtimeEngine
from loadtest.engine.request import EngineOutput, EngineRequest, Finish, KvIntent, PrefillStats
from loadtest.pod import kv_params
from loadtest.pod.answer import Answer, Delta
from loadtest.pod.errors import generation_failed
from loadtest.pod.generation import Generation


@dataclass(slots=True)
class Run:
    """One API request in flight, and what is known of it so far."""

    id: str
    """`chatcmpl-…` or `cmpl-…`."""
    created: int
    wanted: Generation
    intent: KvIntent | None
    hide_params: bool = False
    """Answer without `kv_transfer_params` (a fault)."""
    transfer_mode: str = "pull"
    prompt_tokens_details: bool = True
    prefix_caching: bool = True
    session_id: str | None = None
    answers: list[Answer] = field(default_factory=list)
    prefills: dict[int, PrefillStats] = field(default_factory=dict)
    """By prompt."""
    params: dict[int, dict[str, Any] | None] = field(default_factory=dict)
    """`kv_transfer_params` to answer with, by prompt."""

    def __post_init__(self) -> None:
        count = len(self.wanted.prompts) * self.wanted.n
        self.answers = [Answer(index, self.wanted) for index in range(count)]

    @property
    def prompt_tokens(self) -> int:
        return sum(len(prompt) for prompt in self.wanted.prompts)

    @property
    def completion_tokens(self) -> int:
        return sum(len(answer.token_ids) for answer in self.answers)

    def cached_tokens(self, prompt: int) -> int:
        """What vLLM reports: after a hand-over, P's own hits, if P's parameters said so."""
        source = self.intent.source if self.intent else None
        if self.intent and self.intent.do_remote_prefill and source and source.cached_tokens is not None:
            return source.cached_tokens
        stats = self.prefills.get(prompt)
        return stats.cached_tokens if stats else 0

    def created_cache_tokens(self, prompt: int, block_size: int) -> int:
        """Prompt tokens that this request added to the prefix cache: whole blocks, less what was there."""
        stats = self.prefills.get(prompt)
        if stats is None or not self.prefix_caching:
            return 0
        return max(0, stats.prompt_tokens // block_size * block_size - stats.cached_tokens)

    async def events(self, engine: RealtimeEngine) -> AsyncGenerator[tuple[Answer, Delta, EngineOutput], None]:
        """Everything the engine says. Raises `ApiError` when a request ends in an error."""
        branches = [self._branch(engine, answer) for answer in self.answers]
        stream = branches[0] if len(branches) == 1 else _merge(branches)
        async with aclosing(stream):
            async for event in stream:
                yield event

    async def finish(self, engine: RealtimeEngine) -> None:
        """Run to the end without looking at what happens on the way."""
        async with aclosing(self.events(engine)) as stream:
            async for _ in stream:
                pass

    async def _branch(
        self, engine: RealtimeEngine, answer: Answer
    ) -> AsyncGenerator[tuple[Answer, Delta, EngineOutput], None]:
        prompt, branch = divmod(answer.index, self.wanted.n)
        async with aclosing(engine.generate(self._request(prompt, branch))) as outputs:
            async for output in outputs:
                if output.finish is Finish.ERROR:
                    raise generation_failed()
                if output.prefill is not None:
                    self.prefills.setdefault(prompt, output.prefill)
                if output.finish is not None and not self.hide_params:
                    self.params[prompt] = kv_params.write(output.offer, self.transfer_mode)
                delta = answer.feed(output)
                yield answer, delta, output
                if delta.finish is not None:
                    return

    def _request(self, prompt: int, branch: int) -> EngineRequest:
        wanted = self.wanted
        external = self.id if self.id.startswith("chat") else f"{self.id}-{prompt}"
        prefix = f"{branch}_" if wanted.n > 1 else ""
        return EngineRequest(
            request_id=f"{prefix}{external}-{uuid.uuid4().hex[:8]}",
            prompt=wanted.prompts[prompt],
            max_tokens=wanted.max_tokens[prompt],
            min_tokens=wanted.min_tokens,
            ignore_eos=wanted.ignore_eos,
            stop_token_ids=wanted.stop_token_ids,
            forced=wanted.forced,
            branch=branch,
            salt=tokens.salt(wanted.cache_salt, wanted.adapter) if wanted.adapter else tokens.salt(wanted.cache_salt),
            kv=self.intent,
            session_id=self.session_id,
            cache_salt=wanted.cache_salt,
            report_hits=(wanted.body.get("vllm_xargs") or {}).get("kv_cache_report_mode") == "full",
        )


Event = tuple[Answer, Delta, EngineOutput]


async def _merge(streams: list[AsyncGenerator[Event, None]]) -> AsyncGenerator[Event, None]:
    """Several streams as one, in order of arrival. The first error ends all."""
    queue: asyncio.Queue[Event | Exception | None] = asyncio.Queue()

    async def pump(stream: AsyncGenerator[Event, None]) -> None:
        try:
            async for event in stream:
                await queue.put(event)
        except Exception as error:  # noqa: BLE001  handed to the reader below, which raises it
            await queue.put(error)
        finally:
            await stream.aclose()
        await queue.put(None)

    tasks = [asyncio.create_task(pump(stream)) for stream in streams]
    left = len(tasks)
    try:
        while left:
            event = await queue.get()
            if event is None:
                left -= 1
            elif isinstance(event, Exception):
                raise event
            else:
                yield event
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
