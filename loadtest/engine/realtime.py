"""Runs one engine on an asyncio loop, in real time.

Rule of this room: the only place where simulated seconds meet the wall clock. `time_scale` divides every duration:
at 10 a step of 8 ms takes 0.8 ms (and a lease of 30 s takes 3 s).
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Self

from loadtest.engine.core import Engine
from loadtest.engine.kv_events import KvEvent
from loadtest.engine.request import EngineOutput, EngineRequest, Finish, KvIntent, PullOrder

log = logging.getLogger(__name__)

Puller = Callable[[PullOrder], Awaitable[tuple[int, ...] | None]]
LATE_S = 0.005
"""A step that was noticed late by less than this still counts from when it was due."""


class RealtimeEngine:
    """`async with RealtimeEngine(engine, pull): async for output in running.generate(request)`.

    `pull` carries out a read order: it returns the digests read, or None when reading failed. `on_progress` is
    called after every step, `on_events` with the KV events of a step when its time is over and before its outputs are
    handed out.
    """

    def __init__(
        self,
        engine: Engine,
        pull: Puller,
        *,
        time_scale: float = 1.0,
        on_progress: Callable[[], None] = lambda: None,
        on_events: Callable[[Sequence[KvEvent]], None] = lambda _: None,
    ) -> None:
        self.engine = engine
        self._on_progress = on_progress
        self._on_events = on_events
        self._pull = pull
        self._scale = time_scale
        self._queues: dict[str, asyncio.Queue[EngineOutput]] = {}
        self.dead = False
        self._poke = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop_task: asyncio.Task[None] | None = None

    def now(self) -> float:
        """Simulated seconds."""
        return asyncio.get_running_loop().time() * self._scale

    async def wait_until(self, simulated_s: float) -> None:
        """Sleep until a moment of simulated time."""
        left = simulated_s - self.now()
        if left > 0:
            await asyncio.sleep(left / self._scale)

    async def __aenter__(self) -> Self:
        self._loop_task = asyncio.create_task(self._live(), name="engine")
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [*self._tasks, *([self._loop_task] if self._loop_task else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineOutput, None]:
        """Outputs of one request until it finishes. Leaving early aborts it."""
        if self.dead:
            yield EngineOutput(request.request_id, finish=Finish.ERROR)
            return
        queue: asyncio.Queue[EngineOutput] = asyncio.Queue()
        self._queues[request.request_id] = queue
        self.engine.submit(request, self.now())
        self._poke.set()
        try:
            while True:
                output = await queue.get()
                yield output
                if output.finish is not None:
                    return
        finally:
            del self._queues[request.request_id]
            self.abort(request.request_id)

    def abort(self, request_id: str) -> None:
        if self.engine.abort(request_id, self.now()):
            self._poke.set()

    def refuse(self, intent: KvIntent) -> None:
        """A request was turned away before the engine saw it (`notify_kv_transfer_request_rejected`)."""
        if self.engine.connector:
            self.engine.connector.refuse(intent)
            self._poke.set()

    def changed(self) -> None:
        """Something outside a step freed blocks or made work."""
        self._poke.set()

    async def _live(self) -> None:
        """Run; if the model itself fails, end every request with an error, as a pod whose engine died does."""
        try:
            await self._run()
        except Exception:
            self.dead = True
            for request_id, queue in self._queues.items():
                queue.put_nowait(EngineOutput(request_id, finish=Finish.ERROR))
            log.exception("the engine died; %d requests ended with an error", len(self._queues))
            raise

    async def _run(self) -> None:
        due = self.now()
        while True:
            now = self.now()
            self._poke.clear()
            start = due if 0 <= now - due < LATE_S * self._scale else now
            result = self.engine.step(start)
            for order in result.pulls:
                task = asyncio.create_task(self._carry_out(order), name="pull")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            self._on_progress()
            if result.duration_s is None:
                if result.events:
                    self._on_events(result.events)
                timeout = None if result.wake_s is None else max(0.0, result.wake_s - self.now()) / self._scale
                with suppress(TimeoutError):
                    async with asyncio.timeout(timeout):
                        await self._poke.wait()
                due = self.now()
                continue
            due = start + result.duration_s
            left = due - self.now()
            await asyncio.sleep(left / self._scale if left > 0 else 0)
            if result.events:
                self._on_events(result.events)
            for output in result.outputs:
                queue = self._queues.get(output.request_id)
                if queue is not None:
                    queue.put_nowait(output)

    async def _carry_out(self, order: PullOrder) -> None:
        digests = await self._pull(order)
        if order.awaited:
            self.engine.pull_done(order.request_id, digests)
            self._poke.set()
