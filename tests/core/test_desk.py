"""Who comes in, who waits, who is refused."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest

from gateway.core.admission.classes import ServiceClass
from gateway.core.admission.desk import QUEUED, AdmissionRules, Desk, Refusal, Why
from gateway.core.admission.forecast import FRESH_S, FirstTokens, Throughput
from gateway.core.admission.queue import Waiter
from gateway.core.decide import Plan, Request
from gateway.core.pods import Pod, Role
from gateway.core.policies import Route

S, B = ServiceClass.STANDARD, ServiceClass.BATCH


@dataclass
class Scene:
    """One prefill and one decode pod behind a desk, with a clock of its own."""

    rules: AdmissionRules
    now_s: float = 100.0
    p: Pod = field(default_factory=lambda: Pod("p0", Role.PREFILL, up=True))
    d: Pod = field(default_factory=lambda: Pod("d0", Role.DECODE, up=True))
    shed: list[tuple[Waiter, Refusal]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.desk = Desk(self.rules, lambda: 0.0, lambda waiter, refusal: self.shed.append((waiter, refusal)))

    def waiter(
        self, tenant: str = "a", tokens: int = 100, service: ServiceClass = S, *, live: bool = False, **more: object
    ) -> Waiter:
        request = Request(prompt_tokens=tokens, output_tokens=10)
        deadline_s = self.now_s + float(more.get("within_s", math.inf))  # type: ignore[arg-type]
        direct = bool(more.get("direct"))

        def plan() -> Plan | None:
            if not self.d.up:
                return None
            return Plan(Route.LOCAL if direct else Route.PD, None if direct else self.p, self.d, "")

        model = str(more.get("model", "m"))
        return Waiter(tenant, model, service, request, plan, self.now_s, live=live, deadline_s=deadline_s)

    def ask(self, waiter: Waiter) -> object:
        answer = self.desk.ask(waiter, self.now_s)
        if isinstance(answer, Plan):
            self.take(waiter, answer)
        return answer

    def take(self, waiter: Waiter, plan: Plan) -> None:
        for pod in (plan.prefill, plan.answering):
            if pod is not None:
                pod.take(waiter.request.prompt_tokens)

    def end(self, waiter: Waiter, *pods: Pod) -> list[Waiter]:
        """It is over; those that come in for it."""
        for pod in pods:
            pod.give_back(waiter.request.prompt_tokens)
        self.desk.over(waiter, self.now_s)
        came = []
        for other, plan in self.desk.pump():
            if plan is not None:
                self.take(other, plan)
            came.append(other)
        return came


def test_without_limits_everybody_comes_in() -> None:
    scene = Scene(AdmissionRules())
    assert not scene.rules.on
    assert all(isinstance(scene.ask(scene.waiter(tokens=10**6)), Plan) for _ in range(5))


def test_over_the_limit_of_a_decode_pod_one_waits_until_another_is_over() -> None:
    scene = Scene(AdmissionRules(decode_tokens=250))
    first, second, third = (scene.waiter() for _ in range(3))
    assert isinstance(scene.ask(first), Plan)
    assert isinstance(scene.ask(second), Plan)
    assert scene.ask(third) is QUEUED
    assert scene.end(first, scene.p, scene.d) == [third]
    assert len(scene.desk.queue) == 0


def test_what_is_larger_than_a_limit_is_let_in_where_nothing_else_is() -> None:
    scene = Scene(AdmissionRules(max_tokens=50, prefill_tokens=50, decode_tokens=50))
    assert isinstance(scene.ask(scene.waiter(tokens=500)), Plan)
    assert scene.ask(scene.waiter(tokens=5)) is QUEUED


def test_the_gateways_own_limit_counts_prompts_and_answers() -> None:
    scene = Scene(AdmissionRules(max_tokens=219))
    assert isinstance(scene.ask(scene.waiter()), Plan)
    assert scene.ask(scene.waiter()) is QUEUED
    assert scene.desk.in_flight_tokens == 110


def test_nobody_overtakes_those_that_wait_though_he_would_fit() -> None:
    scene = Scene(AdmissionRules(decode_tokens=250))
    running = scene.waiter(tokens=200)
    scene.ask(running)
    large, small = scene.waiter(tokens=240), scene.waiter(tokens=10)
    assert scene.ask(large) is QUEUED
    assert scene.ask(small) is QUEUED
    assert scene.end(running, scene.p, scene.d) == [large, small]


def test_a_full_prefill_pod_does_not_hold_up_what_needs_none() -> None:
    scene = Scene(AdmissionRules(prefill_tokens=150, decode_tokens=1000))
    scene.ask(scene.waiter())
    assert scene.ask(scene.waiter()) is QUEUED
    assert isinstance(scene.ask(scene.waiter(live=True, direct=True)), Plan)


def test_a_model_whose_pods_are_full_does_not_hold_up_another() -> None:
    scene = Scene(AdmissionRules(decode_tokens=150))
    busy = scene.waiter()
    scene.ask(busy)
    blocked, other = scene.waiter(model="m"), scene.waiter(model="x")
    scene.ask(blocked)
    scene.desk.queue.add(other)
    other.plan = lambda: Plan(Route.LOCAL, None, Pod("d9", Role.DECODE, up=True), "")
    assert [waiter for waiter, _ in scene.desk.pump()] == [other]


def test_a_request_that_would_miss_its_deadline_is_refused_at_once_with_the_time_it_lacks() -> None:
    scene = Scene(AdmissionRules(decode_tokens=100))
    done = scene.waiter()
    scene.ask(done)
    scene.desk.throughput.count(1000, scene.now_s)  # 1000 tokens in the first second of the window
    waiting = scene.waiter(tokens=2990)
    scene.ask(waiting)
    answer = scene.ask(scene.waiter(within_s=1.0))
    assert answer == Refusal(Why.DEADLINE, pytest.approx(2.0))  # 3000 tokens ahead at 1000 per second, 1 s is allowed
    assert scene.desk.refused[S, Why.DEADLINE] == 1


def test_the_first_tokens_seen_of_late_count_too() -> None:
    scene = Scene(AdmissionRules(decode_tokens=10_000))
    scene.ask(scene.waiter())
    scene.desk.first_tokens.learn(100, 3.0, scene.now_s)
    assert scene.ask(scene.waiter(within_s=1.0)) == Refusal(Why.DEADLINE, pytest.approx(2.0))
    scene.now_s += FRESH_S + 1
    assert isinstance(scene.ask(scene.waiter(within_s=1.0)), Plan)


def test_where_nothing_is_in_flight_nobody_is_refused_for_what_was_seen_before() -> None:
    scene = Scene(AdmissionRules(decode_tokens=10_000))
    scene.desk.first_tokens.learn(100, 30.0, scene.now_s)
    assert isinstance(scene.ask(scene.waiter(within_s=1.0)), Plan)


def test_with_prediction_off_it_waits_until_it_is_of_no_use() -> None:
    scene = Scene(AdmissionRules(decode_tokens=100, predict=False))
    scene.ask(scene.waiter())
    scene.desk.first_tokens.learn(100, 0.75, scene.now_s)
    waiter = scene.waiter(within_s=1.0)
    assert scene.ask(waiter) is QUEUED
    assert waiter.leave_s == pytest.approx(scene.now_s + 0.25)
    assert scene.desk.give_up(waiter, scene.now_s + 0.25).why is Why.LATE
    assert len(scene.desk.queue) == 0


def test_when_too_many_wait_a_later_class_gives_way_and_an_equal_one_does_not() -> None:
    scene = Scene(AdmissionRules(decode_tokens=100, queue=1))
    scene.ask(scene.waiter())
    batch, standard = scene.waiter(service=B), scene.waiter()
    assert scene.ask(batch) is QUEUED
    assert scene.ask(standard) is QUEUED
    assert [(waiter, refusal.why) for waiter, refusal in scene.shed] == [(batch, Why.SHED)]
    answer = scene.ask(scene.waiter())
    assert isinstance(answer, Refusal)
    assert answer.why is Why.QUEUE


def test_when_too_many_wait_the_tenant_with_most_of_them_gives_way() -> None:
    scene = Scene(AdmissionRules(decode_tokens=100, queue=3))
    scene.ask(scene.waiter())
    flood = [scene.waiter("loud") for _ in range(3)]
    for each in flood:
        assert scene.ask(each) is QUEUED
    assert isinstance(scene.ask(scene.waiter("loud")), Refusal)
    assert scene.ask(scene.waiter("quiet")) is QUEUED
    assert [waiter for waiter, _ in scene.shed] == [flood[-1]]
    assert isinstance(scene.ask(scene.waiter("quiet")), Refusal)


def test_when_no_pod_is_up_any_more_those_that_wait_are_told() -> None:
    scene = Scene(AdmissionRules(decode_tokens=100))
    running, waiting = scene.waiter(), scene.waiter()
    scene.ask(running)
    scene.ask(waiting)
    scene.d.up = False
    assert [(waiter, plan) for waiter, plan in scene.desk.pump()] == [(waiting, None)]
    assert scene.ask(scene.waiter()) is None


def test_come_back_times_are_spread_and_bounded() -> None:
    dice = iter((0.0, 1.0, 0.0, 1.0))
    desk = Desk(AdmissionRules(), lambda: next(dice))
    assert [desk.retry_s(wait) for wait in (10.0, 10.0, 0.0, 1e6)] == [10.0, 15.0, 1.0, 90.0]


def test_what_was_let_in_is_given_back_once() -> None:
    scene = Scene(AdmissionRules(max_tokens=1000))
    waiter = scene.waiter()
    scene.ask(waiter)
    scene.desk.over(waiter, scene.now_s)
    scene.desk.over(waiter, scene.now_s)
    assert scene.desk.in_flight_tokens == 0


def test_throughput_is_over_a_sliding_window() -> None:
    rate = Throughput(window_s=10.0)
    assert rate.per_s(0.0) == 0
    for second in range(20):
        rate.count(50.0, second + 0.5)
    assert rate.per_s(19.9) == pytest.approx(50.0)
    assert rate.per_s(24.9) == pytest.approx(25.0)
    assert rate.per_s(100.0) == 0


def test_first_tokens_are_by_size_and_a_neighbour_will_do() -> None:
    seen = FirstTokens()
    seen.learn(1000, 0.4, 0.0)
    assert seen.expect(900, 1.0) == pytest.approx(0.4)
    assert seen.expect(1500, 1.0) == pytest.approx(0.4)
    assert seen.expect(10, 1.0) is None
