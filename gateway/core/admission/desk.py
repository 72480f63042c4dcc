"""The desk: each request is let in, waits, or is refused; when something ends, others are let in.

Rule of this room: nobody overtakes those that wait for the same pods. Whoever lets a waiter in takes its seats before
the next one is asked, so that each decision sees the one before.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gateway.core.admission.forecast import FirstTokens, Throughput
from gateway.core.admission.queue import FairQueue, Waiter
from gateway.core.decide import Plan
from gateway.core.pods import Pod

MIN_RETRY_S = 1.0
MAX_RETRY_S = 60.0
_MAX_BLOCKED = 16
PREFILL, DIRECT = "prefill", "direct"
"""Lanes: what goes through a prefill pod, what goes to its decode pod at once."""


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """Limits on tokens in flight; 0 is none. max_tokens: of prompts and answers, at this gateway. prefill_tokens,
    decode_tokens: of prompts at one prefill pod, at one decode or replica pod. queue: how many may wait; queue_s: how
    long one may that has no deadline. predict: refuse at once what would miss its deadline. priority: tell pods the
    order.
    """

    max_tokens: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    queue: int = 1000
    queue_s: float = 0.0
    predict: bool = True
    priority: bool = False

    @property
    def limits(self) -> bool:
        """Whether any limit on tokens is set."""
        return bool(self.max_tokens or self.prefill_tokens or self.decode_tokens)

    @property
    def on(self) -> bool:
        """Whether anybody can have to wait."""
        return self.limits or self.queue_s > 0


class Why(enum.StrEnum):
    """Why a request was refused.

    DEADLINE: its first token would come too late. LATE: it waited as long as it made sense. QUEUE: too many wait. SHED:
    it waited and gave way to others. QUOTA: its tenant's. MODEL: not its tenant's.
    """

    DEADLINE = "deadline"
    LATE = "late"
    QUEUE = "queue"
    SHED = "shed"
    QUOTA = "quota"
    MODEL = "model"


@dataclass(frozen=True, slots=True)
class Refusal:
    """retry_s: when it may make sense to come back, with jitter."""

    why: Why
    retry_s: float


class Queued(enum.Enum):
    QUEUED = enum.auto()


QUEUED = Queued.QUEUED


class Desk:
    """rules may be exchanged at any time. dice: numbers from 0 to 1, so that those refused together do not come back
    together. on_shed: told of a waiter that gave way to another.
    """

    def __init__(
        self,
        rules: AdmissionRules,
        dice: Callable[[], float],
        on_shed: Callable[[Waiter, Refusal], None] = lambda waiter, refusal: None,
    ) -> None:
        self.rules = rules
        self.queue = FairQueue()
        self.first_tokens = FirstTokens()
        self.throughput = Throughput()
        self.in_flight_tokens = 0
        self.refused: Counter[tuple[str, str]] = Counter()
        self.queued: Counter[str] = Counter()
        self._dice = dice
        self._on_shed = on_shed

    def ask(self, waiter: Waiter, now_s: float) -> Plan | Queued | Refusal | None:
        """A request comes: its plan when it is let in, None when no pod could answer it."""
        plan = waiter.plan()
        if plan is None:
            return None
        waiter.lane = DIRECT if plan.prefill is None else PREFILL
        turn_now = self._may_go(waiter, plan)
        late_s = self._late_s(waiter, plan, now_s, waits=not turn_now)
        if late_s > 0 and self.rules.predict:
            return self.refuse(waiter, Why.DEADLINE, late_s)
        if turn_now:
            self.enter(waiter)
            return plan
        if len(self.queue) >= self.rules.queue and not self._makes_room(waiter, now_s):
            return self.refuse(waiter, Why.QUEUE, self._wait_s(waiter, now_s))
        waiter.leave_s = min(waiter.leave_s, self._useless_from(waiter, plan, now_s))
        self.queue.add(waiter)
        self.queued[waiter.service] += 1
        return QUEUED

    def pump(self) -> Iterator[tuple[Waiter, Plan | None]]:
        """Those whose time has come, one by one; None where no pod is up any more. Take its seats before going on."""
        while (found := self._next()) is not None:
            waiter, plan = found
            self.queue.serve(waiter)
            if plan is not None:
                self.enter(waiter)
            yield waiter, plan

    def leave(self, waiter: Waiter) -> None:
        """It does not wait any more: its client has gone, or it waited long enough."""
        if not waiter.gone:
            self.queue.remove(waiter)

    def give_up(self, waiter: Waiter, now_s: float) -> Refusal:
        """It waited until `leave_s`."""
        self.leave(waiter)
        return self.refuse(waiter, Why.LATE, self._wait_s(waiter, now_s))

    def enter(self, waiter: Waiter) -> None:
        """It is let in; `over` must follow."""
        waiter.in_flight = True
        self.in_flight_tokens += waiter.tokens

    def over(self, waiter: Waiter, now_s: float) -> None:
        """It is over, however it ended."""
        if waiter.in_flight:
            waiter.in_flight = False
            self.in_flight_tokens -= waiter.tokens
            self.throughput.count(waiter.tokens, now_s)

    def refuse(self, waiter: Waiter, why: Why, wait_s: float) -> Refusal:
        """Say no, and when to come back."""
        self.refused[waiter.service, why] += 1
        return Refusal(why, self.retry_s(wait_s))

    def retry_s(self, wait_s: float) -> float:
        """When to come back: after the wait, up to half as long again by chance, within bounds."""
        return min(MAX_RETRY_S, max(MIN_RETRY_S, wait_s)) * (1.0 + 0.5 * self._dice())

    # ---- whether there is room

    def _may_go(self, waiter: Waiter, plan: Plan) -> bool:
        if len(self.queue) and any(
            head.flow[1:] == waiter.flow[1:] and head.service.rank <= waiter.service.rank for head in self.queue.heads()
        ):
            return False
        return self._fits(waiter, plan)

    def _fits(self, waiter: Waiter, plan: Plan) -> bool:
        rules, request = self.rules, waiter.request
        if 0 < rules.max_tokens < self.in_flight_tokens + waiter.tokens and self.in_flight_tokens:
            return False
        if plan.prefill is not None and not _has_room(plan.prefill, request.prompt_tokens, rules.prefill_tokens):
            return False
        if not _has_room(plan.answering, request.prompt_tokens, rules.decode_tokens):
            return False
        return plan.prefill is None or rules.queue_s == 0 or not request.crowded(plan.answering)

    def _next(self) -> tuple[Waiter, Plan | None] | None:
        """The first that may go now. A lane whose pods are full does not hold up the others."""
        blocked: set[tuple[str, ...]] = set()
        for waiter in self.queue.heads():
            lane = waiter.flow[1:]
            if lane in blocked:
                continue
            plan = waiter.plan()
            if plan is None or self._fits(waiter, plan):
                return waiter, plan
            blocked.add(lane)
            if len(blocked) >= _MAX_BLOCKED:
                return None
        return None

    def _makes_room(self, waiter: Waiter, now_s: float) -> bool:
        """Sends away one that waits, if it is of less account than the newcomer: of a later class, or of a flow that
        would have more waiting than the newcomer's all the same."""
        worst = self.queue.worst()
        if worst is None or worst.service.rank < waiter.service.rank:
            return False
        if worst.service is waiter.service:
            with_it = self.queue.hoard(waiter) + waiter.tokens / waiter.share
            if worst.flow == waiter.flow or self.queue.hoard(worst) <= with_it:
                return False
        self.queue.remove(worst)
        self._on_shed(worst, self.refuse(worst, Why.SHED, self._wait_s(worst, now_s)))
        return True

    # ---- how long it will take

    def _wait_s(self, waiter: Waiter, now_s: float) -> float:
        """Until those before it are let in; 0 when nothing is known."""
        rate = self.throughput.per_s(now_s)
        return self.queue.ahead(waiter) / rate if rate > 0 else 0.0

    def _serves_s(self, waiter: Waiter, plan: Plan, now_s: float) -> float:
        """To the first token once it is let in: as seen of late, else what the table says, else 0."""
        seen = self.first_tokens.expect(new_tokens_of(waiter, plan), now_s)
        if seen is not None:
            return seen
        return 0.0 if plan.choice is None else plan.choice.ttft_s

    def _late_s(self, waiter: Waiter, plan: Plan, now_s: float, *, waits: bool) -> float:
        """By how much its first token would miss the deadline. Where nothing is in flight nothing is known."""
        if waiter.deadline_s == math.inf or self.in_flight_tokens == 0:
            return 0.0
        wait_s = self._wait_s(waiter, now_s) if waits else 0.0
        return now_s + wait_s + self._serves_s(waiter, plan, now_s) - waiter.deadline_s

    def _useless_from(self, waiter: Waiter, plan: Plan, now_s: float) -> float:
        """When its first token could not come in time any more, were it let in."""
        if waiter.deadline_s < math.inf:
            return max(now_s, waiter.deadline_s - self._serves_s(waiter, plan, now_s))
        return now_s + self.rules.queue_s if self.rules.queue_s else math.inf


def new_tokens_of(waiter: Waiter, plan: Plan) -> int:
    """Tokens of its prompt that are in no cache."""
    return max(1, waiter.request.prompt_tokens - plan.resident_tokens)


def _has_room(pod: Pod, tokens: int, limit: int) -> bool:
    """An idle pod takes what is larger than the limit."""
    return limit == 0 or pod.load_tokens == 0 or pod.load_tokens + tokens <= limit
