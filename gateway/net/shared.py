"""The state that several gateways share, in Redis or Valkey.

Rule of this room: a request waits for it `timeout_s` at most, once, and only when this gateway cannot know the answer
itself; whatever goes wrong, the request goes on with what is known here. Writes are made behind the answers.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable

from gateway.core.chains import Chain
from gateway.core.conversations import Recognition
from gateway.core.memory import Memory
from gateway.core.sharing import (
    Question,
    adopt,
    candidates,
    decode,
    ends_key,
    entry_of,
    offsets_of,
    question,
)
from gateway.net.breaker import Breaker
from gateway.net.redis_link import LinkError, RedisLink, Writer, end

RATE_EVERY_S = 1.0
_MAX_KNOWN_BLOCKS = 20_000


class SharedState:
    """What this gateway asks the others and tells them. `start` first, `stop` in the end.

    counts: by (op, result), as the metric has them. report: told True and False when the server is there again or
    not any more, with the reason.
    others_rate: requests per second at the other gateways, 0 while they are not heard of. link: the connection.
    """

    def __init__(
        self,
        link: RedisLink,
        memory: Memory,
        own_rate: Callable[[], float],
        *,
        timeout_s: float,
        ttl_s: float,
        on_count: Callable[[str, str], None] = lambda op, result: None,
        report: Callable[[bool, str], None] = lambda there, why: None,
    ) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.others_rate = 0.0
        self.breaker = Breaker(report)
        self.link = link
        self._link = link
        self._memory = memory
        self._own_rate = own_rate
        self._timeout_s = timeout_s
        self._on_count = on_count
        self._ends: OrderedDict[bytes, set[int]] = OrderedDict()
        self._writer = Writer(link, ttl_s, self._count)
        self._rates: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to write what is told and to compare rates."""
        self._link.start()
        self._writer.start()
        self._rates = asyncio.ensure_future(self._compare_rates())

    async def stop(self) -> None:
        """Write what is still waiting, if the server takes it at once, and close."""
        await end(self._rates)
        await self._writer.stop()
        await self._link.stop()

    @property
    def pending_writes(self) -> int:
        """Turns the server does not have yet."""
        return len(self._writer)

    async def written(self) -> None:
        """Wait until the server has every turn told so far."""
        await self._writer.idle()

    async def consult(self, conversation_key: bytes | None, chain: Chain | None, link: bytes | None = None) -> None:
        """Before a request is recognised: learn what another gateway did of its conversation, if that may be."""
        asked = question(self._memory.store, conversation_key, chain, link)
        if asked is None:
            return
        if not self.breaker.allows(time.monotonic()):
            self._count("ask", "skipped")
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                hit = await self._look_up(asked, chain)
        except TimeoutError:
            self._failed("timeout", f"no answer within {self._timeout_s * 1000:g} ms")
        except LinkError as error:
            self._failed("error", str(error))
        else:
            self.breaker.succeeded()
            self._count("ask", "hit" if hit else "miss")

    def publish(self, recognition: Recognition, *, named: bool) -> None:
        """After a turn that ended well: tell the others, without waiting."""
        entry = entry_of(self._memory, recognition, time.monotonic(), time.time(), named=named)
        traces = recognition.conversation.traces
        if traces and traces[-1].joint is not None:
            block, offset = traces[-1].joint
            self._known_ends(block).add(offset)
        self._writer.add(entry)

    async def _look_up(self, asked: Question, chain: Chain | None) -> bool:
        if asked.by_id is not None:
            value = (await self._link.get([asked.by_id]))[0]
            return self._adopt(value, None)
        assert chain is not None
        if asked.blocks:
            return await self._look_up_text(asked, chain)
        return await self._first_of(asked, chain, {})

    async def _look_up_text(self, asked: Question, chain: Chain) -> bool:
        """A completions prompt does not show where earlier prompts ended. What this gateway has heard of that goes
        into the same question; only ends that are news cost a second one."""
        known = {block: self._ends[block] for block in asked.blocks if block in self._ends}
        guesses = candidates(asked, chain, known)
        guess_keys = [key for candidate in guesses for key in candidate.keys]
        values = await self._link.get([*map(ends_key, asked.blocks), *guess_keys])
        news = False
        for block, bits in zip(asked.blocks, values, strict=False):
            if bits is not None:
                offsets = self._known_ends(block)
                before = len(offsets)
                offsets.update(offsets_of(bits))
                news = news or len(offsets) > before
        if news:
            fresh = {block: self._ends[block] for block in asked.blocks if block in self._ends}
            told = {candidate.prompt_hash for candidate in guesses}
            if any(candidate.prompt_hash not in told for candidate in candidates(asked, chain, fresh)):
                self._count("ask", "again")
                return await self._first_of(asked, chain, fresh)
        by_key = dict(zip(guess_keys, values[len(asked.blocks) :], strict=True))
        return any(self._adopt(by_key[key], candidate.prompt_hash) for candidate in guesses for key in candidate.keys)

    async def _first_of(self, asked: Question, chain: Chain, ends: dict[bytes, set[int]]) -> bool:
        named = [(key, found.prompt_hash) for found in candidates(asked, chain, ends) for key in found.keys]
        values = await self._link.get([key for key, _ in named]) if named else []
        return any(self._adopt(value, prompt_hash) for value, (_, prompt_hash) in zip(values, named, strict=True))

    def _adopt(self, value: bytes | None, prompt_hash: bytes | None) -> bool:
        record = None if value is None else decode(value)
        if record is None:
            return False
        adopt(self._memory, record, prompt_hash, time.monotonic())
        return True

    def _known_ends(self, block: bytes) -> set[int]:
        """Where prompts ended behind that block; a hint only, so that the oldest may be dropped."""
        offsets = self._ends.setdefault(block, set())
        self._ends.move_to_end(block)
        if len(self._ends) > _MAX_KNOWN_BLOCKS:
            self._ends.popitem(last=False)
        return offsets

    def _failed(self, result: str, why: str) -> None:
        self._count("ask", result)
        self.breaker.failed(time.monotonic(), why)

    def _count(self, op: str, result: str) -> None:
        self.counts[op, result] += 1
        self._on_count(op, result)

    async def _compare_rates(self) -> None:
        while True:
            try:
                self.others_rate = sum(await self._link.exchange_rate(self._own_rate(), RATE_EVERY_S))
                self._count("rate", "ok")
            except LinkError:
                self.others_rate = 0.0
                self._count("rate", "error")
            await asyncio.sleep(RATE_EVERY_S)
