"""The bench for live pods: measures one cell over HTTP, through a gateway of the cell's arm.

Rule of this room: exactly what the gateway would do is measured, so a gateway does it: `ops.serve` in this process,
with policy `pd` or `local`. Contexts are in place before the first measured turn is sent, and a turn that did not go
the arm's way counts as failed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import random
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from gateway.core.admission.desk import AdmissionRules
from gateway.core.pods import Role
from gateway.core.slo import SloSettings
from gateway.net.records import IdleObserver, RequestRecord
from gateway.ops.config import Config
from gateway.ops.control import CanarySettings
from gateway.ops.drift import DriftPlan
from gateway.ops.profile import schedule
from gateway.ops.profile.client import Answer, ChatClient
from gateway.ops.profile.errors import ProfileError
from gateway.ops.profile.measure import CellRun, Fate, Limits, Measured, is_cold
from gateway.ops.profile.plan import Shape, Task
from gateway.ops.profile.pods import Cluster
from gateway.ops.profile.talks import Talk, Writer, after, learn_to_write, probe
from gateway.ops.serve import Running, running
from lut.cell import Route

PREPARED_AT_ONCE = 24
PREPARED_TOKENS_AT_ONCE = 65_536
"""Contexts, and their tokens, that are being prepared at a time, per decode pod."""
UNKNOWN_BLOCK_SIZE = 64
LATE_S = 0.03
_TICK_S = 0.01
_READY_S = 30.0
_MEETING_ROUNDS = 20
_ATTEMPTS = 3


class Watcher(IdleObserver):
    """An observer: which pods are up, which pairs of a prefill and a decode pod have met, whether all is quiet."""

    def __init__(self) -> None:
        self.up: set[str] = set()
        self.pairs: set[tuple[str, str]] = set()
        self.quiet = asyncio.Event()
        self._in_flight = 0

    def started(self, record: RequestRecord) -> None:
        self._in_flight += 1
        self.quiet.clear()

    def finished(self, record: RequestRecord) -> None:
        self._in_flight -= 1
        if not self._in_flight:
            self.quiet.set()
        if record.prefill and record.answering:
            self.pairs.add((record.prefill, record.answering))

    def pod_changed(self, pod: str, role: str, up: bool, detail: str) -> None:
        (self.up.add if up else self.up.discard)(pod)


@dataclass(frozen=True, slots=True)
class _Arm:
    """A gateway of one arm."""

    name: Route
    running: Running
    writer: Writer


def for_measuring(config: Config) -> Config:
    """The same pods and how to reach them, and nothing that production has besides: a canary, admission or drift would
    change the routes, and ports, state and traces belong to the gateway that serves."""
    net = dataclasses.replace(
        config.net, decode_max_in_flight=0, expose_decisions=True, selftest=False, admission=AdmissionRules()
    )
    return dataclasses.replace(
        config,
        pods=tuple((role, url) for role, url in config.pods if role is not Role.REPLICA),
        host="127.0.0.1",
        port=0,
        api_keys=None,
        tenants=None,
        tls=None,
        admin=None,
        canary=CanarySettings(),
        slo=SloSettings(),
        state=None,
        state_file=None,
        workers=1,
        tracing=None,
        drift=DriftPlan(),
        load_aware=False,
        net=net,
    )


class LiveBench:
    """`async with LiveBench(config, cluster, limits, seed) as bench`. Replica pods are left out."""

    def __init__(self, config: Config, cluster: Cluster, limits: Limits, seed: int) -> None:
        self._config = for_measuring(config)
        self._cluster = cluster
        self._limits = limits
        self._seed = seed
        self._seen = Watcher()
        self._stack = AsyncExitStack()
        self._arm: _Arm | None = None
        self._idle_turn_s: dict[tuple[Route, Shape], float] = {}
        self._talks = itertools.count()
        self._client = ChatClient(cluster.model, limits)

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()
        await self._client.__aexit__(kind, error, trace)

    async def measure(self, task: Task) -> Measured:
        arm = await self._arm_of(task.arm)
        idle_s = await self._idle_turn(arm, task.shape)
        ramp = schedule.ramp_turns(task.rate, idle_s)
        needed = schedule.conversations_needed(task.samples, task.rate, idle_s)
        talks = await self._prepare(arm, task.shape, needed)
        talks = schedule.shuffled(talks, task.seed)
        run = CellRun(ramp, task.samples, self._limits)
        block_size = self._cluster.block_size or UNKNOWN_BLOCK_SIZE
        measured = await _Play(arm, task, run, talks, self._client, self._dice(), block_size).through()
        await self._seen.quiet.wait()
        if missing := self._missing():
            raise ProfileError(f"went down while {task} was measured, which is not written: {missing}")
        return measured

    async def _arm_of(self, name: Route) -> _Arm:
        """The gateway of an arm; that of the other arm is closed first."""
        if self._arm is None or self._arm.name != name:
            await self._stack.aclose()
            self._arm = None
            net = dataclasses.replace(self._config.net, readback=name == "readback")
            config = dataclasses.replace(self._config, policy=name, net=net)
            self._seen.up.clear()
            gateway = await self._stack.enter_async_context(running(config, self._seen))
            await self._ready()
            await self._introduce(gateway)
            writer = await learn_to_write(self._client, gateway.url, self._cluster.model, dice=self._dice())
            self._arm = _Arm(name, gateway, writer)
        return self._arm

    async def _ready(self) -> None:
        deadline = time.monotonic() + _READY_S
        while missing := self._missing():
            if time.monotonic() > deadline:
                raise ProfileError(f"not healthy within {_READY_S:g} s: {missing}")
            await asyncio.sleep(0.02)

    def _missing(self) -> str:
        """The pods that are not up."""
        return ", ".join(sorted({url for _, url in self._config.pods} - self._seen.up))

    async def _introduce(self, gateway: Running) -> None:
        """The first hand-over between two pods costs seconds; make every pair do it now."""
        urls = [[url for role, url in self._config.pods if role is wanted] for wanted in (Role.PREFILL, Role.DECODE)]
        pairs = set(itertools.product(*urls))
        dice = self._dice()
        for _ in range(_MEETING_ROUNDS):
            if self._seen.pairs >= pairs:
                return
            texts = [f"{dice.getrandbits(64):x} please answer" for _ in range(2 * len(pairs))]
            asked = [[{"role": "user", "content": text}] for text in texts]
            await asyncio.gather(*(probe(self._client, gateway.url, messages, 2) for messages in asked))
            await asyncio.sleep(0)

    async def _idle_turn(self, arm: _Arm, shape: Shape) -> float:
        """How long a turn of this shape takes when nothing else runs. Once per arm and shape."""
        known = self._idle_turn_s.get((arm.name, shape))
        if known is None:
            (talk,) = await self._prepare(arm, shape, 1)
            messages = arm.writer.following(talk, shape, self._dice())
            answer = await probe(self._client, arm.running.url, messages, shape.output_tokens)
            known = self._idle_turn_s[arm.name, shape] = (answer.last_s or answer.sent_s) - answer.sent_s
        return known

    async def _prepare(self, arm: _Arm, shape: Shape, count: int) -> list[Talk]:
        """Play first turns, some at a time. No more than the caches hold: then they are used more than once."""
        count = min(count, schedule.conversations_that_fit(self._cluster.hot_tokens, shape.total_tokens))
        decode_pods = self._config.count(Role.DECODE)
        at_once = min(PREPARED_AT_ONCE, PREPARED_TOKENS_AT_ONCE // shape.context_tokens)
        limit = asyncio.Semaphore(max(1, at_once) * decode_pods)

        async def play() -> Talk:
            async with limit:
                return await self._first_turn(arm, shape)

        failed: ProfileError | None = None
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(play()) for _ in range(count)]
        except* ProfileError as errors:
            failed = ProfileError(str(errors.exceptions[0]))
        if failed is not None:
            raise failed
        return [task.result() for task in tasks]

    async def _first_turn(self, arm: _Arm, shape: Shape) -> Talk:
        for attempt in range(_ATTEMPTS):
            messages = arm.writer.first(shape, self._dice())
            answer = await self._client.turn(arm.running.url, messages, shape.reply_tokens)
            if answer.problem is None:
                return after(messages, answer)
            await asyncio.sleep(attempt)
        raise ProfileError(f"first turns with {shape} fail: {answer.problem}")

    def _dice(self) -> random.Random:
        """Fresh text each time, also after an interruption: pods may still hold what an earlier run said."""
        return random.Random(f"{self._seed}/{time.time_ns()}/{next(self._talks)}")


class _Play:
    """One cell from the first arrival to the last answer that counts."""

    def __init__(
        self,
        arm: _Arm,
        task: Task,
        run: CellRun,
        talks: Sequence[Talk],
        client: ChatClient,
        dice: random.Random,
        block_size: int,
    ) -> None:
        self._arm = arm
        self._task = task
        self._run = run
        self._talks = talks
        self._client = client
        self._dice = dice
        self._block_size = block_size
        self._changed = asyncio.Event()
        self._context_tokens: list[int] = []
        self._new_tokens: list[int] = []
        self._held_tokens: list[int] = []
        self._late_s = 0.0
        self._problem: str | None = None

    async def through(self) -> Measured:
        began_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            turns = [group.create_task(self._watch_the_clock()), *await self._send(group, began_s)]
            while not self._run.over:
                await self._wait()
            measured = self._run.result(time.monotonic(), self._remark())
            for turn in turns:
                turn.cancel()
        return measured

    async def _send(self, group: asyncio.TaskGroup, began_s: float) -> list[asyncio.Task[None]]:
        """Send turns until no more are needed. A conversation is used again only when there are too few for all."""
        turns: list[asyncio.Task[None]] = []
        task, run = self._task, self._run
        enough = len(self._talks) > run.ramp + run.samples
        for number, arrival_s in enumerate(schedule.arrivals(task.rate, task.seed, run.ramp, run.samples)):
            await self._sleep_until(began_s + arrival_s)
            if run.over or (enough and number >= len(self._talks)):
                break
            turns.append(group.create_task(self._turn(self._talks[number % len(self._talks)])))
        return turns

    async def _watch_the_clock(self) -> None:
        """Notice when this process itself is late: then its numbers say more of this machine than of the pods."""
        while True:
            wanted_s = time.monotonic() + _TICK_S
            await asyncio.sleep(_TICK_S)
            self._late_s = max(self._late_s, time.monotonic() - wanted_s)

    async def _sleep_until(self, when_s: float) -> None:
        """Until then, or until nothing more need be sent."""
        while not self._run.over and (left_s := when_s - time.monotonic()) > 0:
            await self._wait(left_s)

    async def _wait(self, timeout_s: float | None = None) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return
        self._changed.clear()

    async def _turn(self, talk: Talk) -> None:
        run, shape = self._run, self._task.shape
        messages = self._arm.writer.following(talk, shape, self._dice)
        number = run.sent(time.monotonic())
        self._note()
        answer = await self._client.turn(
            self._arm.running.url, messages, shape.output_tokens, lambda now_s: run.first(number, now_s)
        )
        run.ended(number, time.monotonic(), self._fate(talk, answer), answer.output_tokens, answer.last_s)
        self._note()

    def _note(self) -> None:
        if self._run.over:
            self._changed.set()

    def _fate(self, talk: Talk, answer: Answer) -> Fate:
        if answer.problem is None and answer.route != self._task.arm:
            answer.problem = f"went by route {answer.route}"
        if answer.problem is not None:
            self._problem = answer.problem
            return Fate.FAILED
        self._context_tokens.append(talk.resident_tokens)
        self._new_tokens.append(answer.prompt_tokens - talk.resident_tokens)
        if self._task.arm != "local" or answer.cached_tokens is None:
            return Fate.GOOD
        self._held_tokens.append(answer.cached_tokens)
        return Fate.COLD if is_cold(answer.cached_tokens, talk.prompt_tokens, self._block_size) else Fate.GOOD

    def _remark(self) -> str:
        shape, parts = self._task.shape, []
        for name, values, wanted in (
            ("ctx", self._context_tokens, shape.context_tokens),
            ("in", self._new_tokens, shape.new_tokens),
        ):
            mean = sum(values) / len(values) if values else wanted
            if abs(mean - wanted) > max(0.03 * wanted, 2):
                parts.append(f"really {name}={mean:.0f}")
        held = sum(self._held_tokens) / len(self._held_tokens) if self._held_tokens else shape.context_tokens
        if is_cold(held, shape.context_tokens, self._block_size):
            parts.append(f"D held {held:.0f} of its context")
        if self._late_s > LATE_S:
            parts.append(f"this machine was up to {self._late_s:.2f} s late")
        if self._problem is not None:
            parts.append(self._problem)
        return "; ".join(parts)
