"""Measures one cell on the engine model.

Rule of this room: the same ramp, arrivals, tail and stop rules as on live pods (`gateway.ops.profile`).
"""

from __future__ import annotations

from gateway.ops.profile import schedule
from gateway.ops.profile.measure import CellRun, Fate, Limits, Measured, is_cold
from gateway.ops.profile.plan import Shape, Task
from loadtest.engine.core import Engine
from loadtest.engine.kv_connector import KvConfig
from loadtest.engine.profile import Profile
from loadtest.engine.request import Finish
from loadtest.virtual_profile.world import Talk, Turn, World
from lut.assignment import Assignment
from lut.cell import Route

_IDLE = "idle"


class VirtualBench:
    """Pods of one node assignment, all with the same profile."""

    def __init__(self, profile: Profile, assignment: Assignment, limits: Limits) -> None:
        names = [f"p{number}" for number in range(assignment.prefill)]
        names += [f"d{number}" for number in range(assignment.decode)]
        self._engines = {name: Engine(profile, kv=KvConfig(name)) for name in names}
        self._limits = limits
        pod_tokens = profile.cache.num_blocks * profile.cache.block_size
        self._hot_tokens = pod_tokens * min(assignment)
        self._block_size = profile.cache.block_size
        self._idle_turn_s: dict[tuple[Route, Shape], float] = {}

    async def measure(self, task: Task) -> Measured:
        shape = task.shape
        idle_s = self._idle_turn(task.arm, shape)
        run = CellRun(schedule.ramp_turns(task.rate, idle_s), task.samples, self._limits)
        needed = schedule.conversations_needed(task.samples, task.rate, idle_s)
        fitting = schedule.conversations_that_fit(self._hot_tokens, shape.total_tokens)
        world = World(self._engines, task.arm, task.seed)
        talks = schedule.shuffled(world.prepare(shape, min(needed, fitting)), task.seed)
        return _Play(world, task, run, talks, self._block_size).through()

    def _idle_turn(self, arm: Route, shape: Shape) -> float:
        """How long a turn of this shape takes when nothing else runs."""
        known = self._idle_turn_s.get((arm, shape))
        if known is None:
            world = World(self._engines, arm, _IDLE)
            (talk,) = world.prepare(shape, 1)
            began_s = ended_s = world.cluster.now

            def heard(_: Turn, now_s: float, __: Finish | None) -> None:
                nonlocal ended_s
                ended_s = now_s

            world.turn(0, talk, shape, heard)
            world.leave()
            known = self._idle_turn_s[arm, shape] = ended_s - began_s
        return known


class _Play:
    """One cell from the first arrival to the last answer that counts."""

    def __init__(self, world: World, task: Task, run: CellRun, talks: list[Talk], block_size: int) -> None:
        self._world = world
        self._task = task
        self._run = run
        self._talks = talks
        self._block_size = block_size
        self._began_s = world.cluster.now
        self._ended_s: float | None = None
        self._arrivals = schedule.arrivals(task.rate, task.seed, run.ramp, run.samples)
        self._open: dict[int, Turn] = {}
        self._started: set[int] = set()

    def through(self) -> Measured:
        self._await_next()
        self._world.cluster.run()
        self._close()
        self._world.leave()
        assert self._ended_s is not None
        return self._run.result(self._ended_s)

    def _await_next(self) -> None:
        self._world.cluster.call_at(self._began_s + next(self._arrivals), self._arrive)

    def _arrive(self) -> None:
        run, cluster = self._run, self._world.cluster
        if run.over:
            return
        number = run.sent(cluster.now)
        talk = self._talks[number % len(self._talks)]
        self._open[number] = self._world.turn(number, talk, self._task.shape, self._heard)
        cluster.call_at(cluster.now + run.limits.patience_s, lambda: self._give_up(number, started=False))
        latest_s = cluster.now + run.limits.whole_turn_s(self._task.shape.output_tokens)
        cluster.call_at(latest_s, lambda: self._give_up(number, started=True))
        enough = len(self._talks) > run.ramp + run.samples
        if run.over:
            self._close()
        elif not enough or number + 1 < len(self._talks):
            self._await_next()

    def _heard(self, turn: Turn, now_s: float, finish: Finish | None) -> None:
        if turn.number not in self._started and finish is not Finish.ERROR:
            self._started.add(turn.number)
            self._run.first(turn.number, now_s)
        if finish is not None:
            self._end(turn, self._fate(turn, finish))
        elif self._run.over:
            self._close()

    def _fate(self, turn: Turn, finish: Finish) -> Fate:
        if finish is Finish.ERROR:
            return Fate.FAILED
        shape = self._task.shape
        first_prompt = shape.context_tokens - shape.reply_tokens
        cold = self._task.arm == "local" and is_cold(turn.cached_tokens, first_prompt, self._block_size)
        return Fate.COLD if cold else Fate.GOOD

    def _give_up(self, number: int, *, started: bool) -> None:
        """Its time is over: that for the first token, or, even if it has started, for all."""
        turn = self._open.get(number)
        if turn is not None and (started or turn.tokens == 0):
            self._world.abort(turn)
            self._end(turn, Fate.FAILED)

    def _end(self, turn: Turn, fate: Fate) -> None:
        del self._open[turn.number]
        self._run.ended(turn.number, self._world.cluster.now, fate, turn.tokens)
        if self._run.over:
            self._close()

    def _close(self) -> None:
        """Nothing more counts: give up what still runs."""
        if self._ended_s is None:
            self._ended_s = self._world.cluster.now
        for turn in self._open.values():
            self._world.abort(turn)
        self._open.clear()
