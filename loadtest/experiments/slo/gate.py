"""The gateway of the experiments with its desk, its tenants' quotas and its targets.

Rule of this room: who comes in, who waits, who is refused and which weights count is said by `gateway.core`, with the
arguments that `gateway.net.entrance` gives it; waiting and refusing are carried out here, under a virtual clock.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from gateway.core.admission.classes import ServiceClass
from gateway.core.admission.desk import QUEUED, AdmissionRules, Desk, Refusal, new_tokens_of
from gateway.core.admission.queue import Waiter
from gateway.core.admission.quotas import Quotas
from gateway.core.conversations import Recognition
from gateway.core.decide import Plan, Request, decide
from gateway.core.pods import Pod
from gateway.core.slo import SloController, SloSettings
from gateway.core.tenants import Tenant, TenantBook
from loadtest.engine.request import KvIntent
from loadtest.engine.virtual import Timer
from loadtest.experiments.gate import MODEL, Ask, Gate
from loadtest.experiments.outcomes import Fate


@dataclass(frozen=True, slots=True)
class Control:
    """What the operator set, as `gateway.ops.settings_admission` has it. tenants: by name."""

    rules: AdmissionRules = field(default_factory=AdmissionRules)
    deadlines_s: Mapping[ServiceClass, float] = field(default_factory=dict)
    tenants: Mapping[str, Tenant] = field(default_factory=dict)
    slo: SloSettings = field(default_factory=SloSettings)


@dataclass(slots=True)
class _Entry:
    """One turn at the desk."""

    ask: Ask
    recognition: Recognition
    tenant: Tenant
    waiter: Waiter
    charged: float
    in_s: float = math.nan
    first_s: float = math.nan
    new_tokens: int = 0
    timer: Timer | None = None


@dataclass
class AdmittingGate(Gate):
    """A gateway with admission. seed: of the jitter."""

    control: Control = field(default_factory=Control)
    seed: str = "1"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.desk = Desk(self.control.rules, random.Random(f"desk/{self.seed}").random, self._shed)
        self.quotas = Quotas()
        self.slo = SloController(self.control.slo) if self.control.slo.on else None
        self.steps: list[tuple[float, int]] = []
        self._book = TenantBook(self.control.tenants)
        self._entries: dict[int, _Entry] = {}
        self._waiting: dict[Waiter, _Entry] = {}
        self._pumping = False

    def _admit(self, ask: Ask, request: Request, recognition: Recognition) -> None:
        now, rules = self.cluster.now, self.desk.rules
        tenant = self._book.of(ask.tenant.decode())
        weights = request.weights if self.slo is None else self.slo.shifted(request.weights)
        request = msgspec.structs.replace(request, weights=weights, decode_max_tokens=rules.decode_tokens)
        tokens = request.prompt_tokens + request.output_tokens
        if tenant.limited:
            if self.quotas.over(tenant, tokens, now) is not None:
                self.quotas.account(tenant).refused += 1
                self._end(ask, Fate.REJECTED)
                return
            self.quotas.enter(tenant, tokens, now)
        waiter = Waiter(
            tenant=tenant.name,
            model=MODEL,
            service=tenant.service,
            request=request,
            plan=lambda: decide(request, recognition, self.fleet, self.policy, self.residency),
            arrived_s=now,
            live=recognition.turn > 1,
            share=tenant.share,
            deadline_s=now + self.control.deadlines_s.get(tenant.service, math.inf),
        )
        entry = self._entries[ask.number] = _Entry(ask, recognition, tenant, waiter, tokens)
        self._listen(entry)
        if not rules.on:
            self._go(ask, recognition, waiter.plan())
            return
        answer = self.desk.ask(waiter, now)
        if answer is QUEUED:
            self._waiting[waiter] = entry
            if waiter.leave_s < math.inf:
                entry.timer = self.cluster.call_at(waiter.leave_s, lambda: self._waited(entry))
        elif isinstance(answer, Refusal):
            self._end(ask, Fate.REJECTED)
        else:
            assert answer is None or isinstance(answer, Plan)
            self._let_in(entry, answer)

    def _let_in(self, entry: _Entry, plan: Plan | None) -> None:
        if entry.timer is not None:
            entry.timer.cancel()
        entry.in_s = self.cluster.now
        if plan is not None:
            entry.new_tokens = new_tokens_of(entry.waiter, plan)
        self._go(entry.ask, entry.recognition, plan)

    def _listen(self, entry: _Entry) -> None:
        """Learn from the first token."""
        told = entry.ask.on_first

        def first(ask: Ask) -> None:
            now = entry.first_s = self.cluster.now
            if not math.isnan(entry.in_s):
                self.desk.first_tokens.learn(entry.new_tokens, now - entry.in_s, now)
            told(ask)

        entry.ask.on_first = first

    def _waited(self, entry: _Entry) -> None:
        if not entry.waiter.gone:
            self.desk.give_up(entry.waiter, self.cluster.now)
            self._end(entry.ask, Fate.REJECTED)

    def _shed(self, waiter: Waiter, refusal: Refusal) -> None:
        self._end(self._waiting[waiter].ask, Fate.REJECTED)

    def _freed(self) -> None:
        if self._pumping or not len(self.desk.queue):
            return
        self._pumping = True
        for waiter, plan in self.desk.pump():
            self._let_in(self._waiting.pop(waiter), plan)
        self._pumping = False

    # ---- where something ends

    def _answer(self, ask: Ask, kv: KvIntent | None) -> None:
        super()._answer(ask, kv)
        if kv is not None:
            self._freed()

    def _learn(self, ask: Ask, pod: Pod, kv: KvIntent | None) -> None:
        self._see(ask)
        self._close(ask, used=len(ask.prompt) + ask.output_tokens)
        super()._learn(ask, pod, kv)
        self._freed()

    def _over(self, ask: Ask) -> None:
        super()._over(ask)
        self._close(ask, used=None)
        self._freed()

    def _see(self, ask: Ask) -> None:
        """Tell the controller of a turn that ended well, now."""
        entry, now = self._entries.get(ask.number), self.cluster.now
        if self.slo is None or entry is None:
            return
        arrived_s = entry.waiter.arrived_s
        gaps = ask.output_tokens - 1
        self.slo.seen(
            entry.tenant.service,
            now,
            ttft_s=entry.first_s - arrived_s,
            tpot_s=(now - entry.first_s) / gaps if gaps else None,
            total_s=now - arrived_s,
        )
        if self.slo.tick(now):
            self.steps.append((now, self.slo.step))

    def _close(self, ask: Ask, used: float | None) -> None:
        entry = self._entries.pop(ask.number, None)
        if entry is None:
            return
        now = self.cluster.now
        if entry.timer is not None:
            entry.timer.cancel()
        self._waiting.pop(entry.waiter, None)
        self.desk.leave(entry.waiter)
        self.desk.over(entry.waiter, now)
        if entry.tenant.limited:
            self.quotas.leave(entry.tenant, entry.charged, entry.charged if used is None else used, now)
