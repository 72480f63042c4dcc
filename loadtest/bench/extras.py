"""What admission, tenants, targets, drift and load cost beside a decision: before the pods, and behind the answer.

Rule of this room: the code that is timed is the gateway's own, called as `gateway.net` and `gateway.ops` call it; a row
differs from the plain decision in what it names alone. Times are this thread's own, medians over batches that take
turns, so that what the machine does meanwhile meets all rows alike.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from gateway.core.admission.classes import ServiceClass
from gateway.core.admission.desk import AdmissionRules, Desk, new_tokens_of
from gateway.core.admission.queue import Waiter
from gateway.core.conversations import Recognition
from gateway.core.decide import Plan, Request, decide
from gateway.core.drift.monitor import Drift, DriftRules
from gateway.core.drift.tally import Tally
from gateway.core.load import Loads
from gateway.core.policies import MeasuredTable, Seen
from gateway.core.slo import SloController, SloSettings, Targets
from gateway.core.tenants import Tenant, TenantBook
from gateway.core.weights import BALANCED, Weights
from gateway.net.tenancy import Charge, Tenancy

if TYPE_CHECKING:
    from loadtest.bench.decision import World

BATCH = 500
_TTFT_S, _TPOT_S = 0.1, 0.01
_CLASS = ServiceClass.STANDARD


class Turn(NamedTuple):
    """One request on its way. at_s: when it came."""

    world: World
    recognition: Recognition
    request: Request
    at_s: float

    def plan(self) -> Plan | None:
        world = self.world
        return decide(self.request, self.recognition, world.fleet, world.policy, world.residency)


class Extra:
    """Nothing: the plain decision. Others add what they do `before` the pods and `after` the answer."""

    name = "plain"

    def begin(self, world: World) -> None:
        """The gateway has it from now on."""

    def end(self, world: World) -> None:
        """And not any more."""

    def weights(self) -> Weights:
        return BALANCED

    def before(self, turn: Turn) -> Plan:
        plan = turn.plan()
        assert plan is not None
        return plan

    def after(self, turn: Turn, plan: Plan) -> None:
        """The answer has gone to the client."""


@dataclass
class Admission(Extra):
    """With limits on everything and a deadline, and room."""

    name: str = "admission"
    desk: Desk = field(
        default_factory=lambda: Desk(
            AdmissionRules(max_tokens=1 << 40, prefill_tokens=1 << 40, decode_tokens=1 << 40, queue=100), lambda: 0.5
        )
    )

    def begin(self, world: World) -> None:
        self.desk.in_flight_tokens = 1000
        self._waiter: Waiter | None = None

    def before(self, turn: Turn) -> Plan:
        waiter = self._waiter = Waiter(
            tenant="",
            model="model",
            service=_CLASS,
            request=turn.request,
            plan=turn.plan,
            arrived_s=turn.at_s,
            live=True,
            deadline_s=turn.at_s + 10.0,
        )
        plan = self.desk.ask(waiter, turn.at_s)
        assert isinstance(plan, Plan), plan
        return plan

    def after(self, turn: Turn, plan: Plan) -> None:
        assert self._waiter is not None
        self.desk.first_tokens.learn(new_tokens_of(self._waiter, plan), _TTFT_S, turn.at_s)
        self.desk.over(self._waiter, turn.at_s)


@dataclass
class Tenants(Extra):
    """One of a hundred tenants, with all quotas."""

    name: str = "tenants' quotas"

    def begin(self, world: World) -> None:
        self._tenancy = Tenancy(TenantBook())
        self._tenants = [Tenant(f"t{n}", requests_per_s=1e6, tokens_per_min=1e12, max_in_flight=9) for n in range(100)]
        self._charge: Charge | None = None
        self._next = 0

    def before(self, turn: Turn) -> Plan:
        self._next = (self._next + 1) % len(self._tenants)
        charging = self._tenancy.charge(self._tenants[self._next], turn.request.prompt_tokens + 200)
        try:
            charging.send(None)
        except StopIteration as done:
            self._charge = done.value
        return super().before(turn)

    def after(self, turn: Turn, plan: Plan) -> None:
        assert self._charge is not None
        self._tenancy.settle(self._charge, 9000)


@dataclass
class Slo(Extra):
    """Three targets for its class; the weights have been moved."""

    name: str = "targets"

    def begin(self, world: World) -> None:
        self._controller = SloController(SloSettings({_CLASS: Targets(1e6, 1e6, 1e6)}))
        self._controller.step = 1

    def weights(self) -> Weights:
        return self._controller.shifted(BALANCED)

    def after(self, turn: Turn, plan: Plan) -> None:
        self._controller.seen(_CLASS, turn.at_s, ttft_s=_TTFT_S, tpot_s=_TPOT_S, total_s=1.0)
        self._controller.tick(turn.at_s)


@dataclass
class Watched(Extra):
    """What turns took is held against the table; with a file of measurements."""

    name: str = "drift: watch"
    rules: DriftRules = field(default_factory=DriftRules)

    def begin(self, world: World) -> None:
        assert isinstance(world.policy, MeasuredTable)
        self._policy, self._tally = world.policy, Tally()
        self._policy.drift = Drift(self.rules)

    def end(self, world: World) -> None:
        self._policy.drift = None

    def after(self, turn: Turn, plan: Plan) -> None:
        choice = plan.choice
        assert choice is not None
        seen = Seen(choice, turn.request.prompt_tokens, 200, 1.5 * choice.ttft_s, 1.2 * choice.tpot_s)
        self._policy.learn(seen, turn.at_s)
        table, assignment, _ = self._policy.tables.nearest_assignment(choice.assignment)
        place = table.place(*seen.point)
        self._tally.count(assignment, place, choice.route, choice.rate, good=True, ttft_s=_TTFT_S, tpot_s=_TPOT_S)


@dataclass
class Corrected(Watched):
    """Alarms are on for everything, cells have been measured, and some turns explore."""

    name: str = "drift: correct, with alarms"
    rules: DriftRules = field(default_factory=lambda: DriftRules(correct=True, explore=0.01, half_life_s=1e6))

    def begin(self, world: World) -> None:
        super().begin(world)
        drift = self._policy.drift
        assert drift is not None
        drift.drifting = True
        for series in drift.series.values():
            series.drifting = True


@dataclass
class LoadAware(Extra):
    """Every pod's pace counts."""

    name: str = "load_aware"

    def begin(self, world: World) -> None:
        world.fleet.loads = self._loads = Loads()
        for number, pod in enumerate(world.fleet):
            pod.pending_tokens = 137 * number % 1009

    def end(self, world: World) -> None:
        world.fleet.loads = None

    def after(self, turn: Turn, plan: Plan) -> None:
        if plan.prefill is not None:
            self._loads.first_token(plan.prefill, 2000, _TTFT_S)
            self._loads.moved(turn.request.prompt_tokens, 0.02)
        else:
            self._loads.first_token(plan.answering, 500, _TTFT_S)
        self._loads.per_token(plan.answering, 10, _TPOT_S)


EXTRAS: tuple[Callable[[], Extra], ...] = (Extra, Admission, Tenants, Slo, Watched, Corrected, LoadAware)


class Cost(NamedTuple):
    """Microseconds. before: the decision with it, until the pods are asked; after: what it does behind the answer."""

    name: str
    before_us: float
    after_us: float


def measure(world: World, rounds: int = 8) -> list[Cost]:
    """The plain decision first."""
    extras = [make() for make in EXTRAS]
    before: list[list[float]] = [[] for _ in extras]
    after: list[list[float]] = [[] for _ in extras]
    starts = range(0, max(1, len(world.asked) - BATCH), BATCH)
    for number in range(rounds):
        first = starts[number % len(starts)]
        for index, extra in enumerate(extras):
            extra.begin(world)
            _batch(world, extra, first)
            spent = _batch(world, extra, first)
            extra.end(world)
            before[index].append(spent[0])
            after[index].append(spent[1])
    times = zip(extras, before, after, strict=True)
    return [Cost(extra.name, statistics.median(one), statistics.median(other)) for extra, one, other in times]


def _batch(world: World, extra: Extra, first: int) -> tuple[float, float]:
    """Microseconds per request, before and after."""
    spent_before = spent_after = 0.0
    asked = world.asked[first : first + BATCH]
    for number, each in enumerate(asked):
        now_s = 1000.0 + number * 0.02
        began = time.thread_time()
        turn = Turn(world, *world.request_of(each, bytes(16), now_s, extra.weights()), now_s)
        plan = extra.before(turn)
        middle = time.thread_time()
        extra.after(turn, plan)
        spent_after += time.thread_time() - middle
        spent_before += middle - began
    return 1e6 * spent_before / len(asked), 1e6 * spent_after / len(asked)


def lines(costs: Sequence[Cost]) -> list[str]:
    """For people: each against the plain decision, whose own clock is taken off `after`."""
    plain = costs[0]
    found = [f"  {'with':<28} {'µs before':>10} {'more':>7} {'ratio':>6} {'µs after':>10}"]
    for cost in costs:
        more, ratio = cost.before_us - plain.before_us, cost.before_us / plain.before_us
        behind = max(0.0, cost.after_us - plain.after_us)
        found.append(f"  {cost.name:<28} {cost.before_us:>10.1f} {more:>+7.1f} {ratio:>6.2f} {behind:>10.1f}")
    return found


def for_json(costs: Sequence[Cost]) -> dict[str, float]:
    """By name."""
    assert all(math.isfinite(cost.before_us) for cost in costs)
    return {f"{cost.name} {which}_us": getattr(cost, f"{which}_us") for cost in costs for which in ("before", "after")}
