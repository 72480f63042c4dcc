"""What tests of the load test share: turns that were, a clock that is turned by hand, servers that do as told."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from array import array
from collections.abc import Callable, Coroutine
from typing import Any

from loadtest.live.answer import Answer
from loadtest.live.book import TurnRecord

_SETTLE = 20
"""Rounds of the event loop in which everything that can go on has gone on."""


def turn(
    ttft_s: float | None = 0.1,
    *,
    arm: int = 0,
    number: int = 0,
    turn: int = 1,
    tpot_s: float = 0.01,
    tokens: int = 11,
    late_s: float = 0.0,
    due_s: float = 0.0,
) -> TurnRecord:
    """A turn that succeeded with this TTFT from its due time, sent late_s after it; None: that failed."""
    failed = ttft_s is None
    first_s = None if ttft_s is None else due_s + ttft_s
    last_s = None if first_s is None else first_s + tpot_s * (tokens - 1)
    return TurnRecord(
        arm=arm,
        conversation=number,
        pair=number,
        turn=turn,
        model="m",
        due_s=due_s,
        sent_s=due_s + late_s,
        first_s=first_s,
        last_s=last_s,
        end_s=due_s + 1.0 if last_s is None else last_s,
        fault="http_500" if failed else None,
        tokens=0 if failed else tokens,
        prompt_tokens=None if failed else 100,
    )


class VirtualClock:
    """Time passes when nothing else can happen, from one awaited moment to the next."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._order = itertools.count()
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self._now_s

    async def until(self, moment_s: float) -> None:
        if moment_s <= self._now_s:
            return
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (moment_s, next(self._order), future))
        await future

    async def run(self, main: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(main)
        while not task.done():
            for _ in range(_SETTLE):
                await asyncio.sleep(0)
            if self._waiting:
                self._now_s, _, future = heapq.heappop(self._waiting)
                if not future.done():
                    future.set_result(None)
            elif not task.done():
                task.cancel()
                raise AssertionError("it waits for something that will never happen")
        task.result()


class Server:
    """takes_s: of request n, first token half way; None: it fails after a second. asked: (moment, name, turn)."""

    def __init__(self, clock: VirtualClock, takes_s: Callable[[int], float | None]) -> None:
        self._clock = clock
        self._takes_s = takes_s
        self.asked: list[tuple[float, str, int]] = []
        self.bodies: list[bytes] = []
        self.open = self.most_open = 0

    async def ask(self, body: bytes, conversation: str, turn: int, *, keep_text: bool = True) -> Answer:
        sent_s = self._clock.now()
        takes_s = self._takes_s(len(self.asked))
        self.asked.append((sent_s, conversation, turn))
        self.bodies.append(body)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        end_s = sent_s + (1.0 if takes_s is None else takes_s)
        await self._clock.until(end_s)
        self.open -= 1
        if takes_s is None:
            return Answer(sent_s, end_s, fault="http_500", status=500)
        first_s = sent_s + takes_s / 2
        times = array("d", [first_s, end_s])
        return Answer(
            sent_s,
            end_s,
            status=200,
            first_s=first_s,
            last_s=end_s,
            times=times,
            prompt_tokens=100,
            output_tokens=2,
            has_usage=True,
            text=f"reply {turn}" if keep_text else "",
        )
