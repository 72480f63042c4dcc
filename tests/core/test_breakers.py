"""When a breaker opens, who may try, when it closes; and what that means for who gets traffic."""

from __future__ import annotations

from gateway.core.breakers import BreakerRules, BreakerState, PodBreaker
from gateway.core.decide import Request, decide
from gateway.core.pods import Fleet, Role, Seat
from gateway.core.policies import POLICIES, PolicyOptions, Route
from tests.core.support import first_turn, fleet, knowing, pod, turn

RULES = BreakerRules(failures=3, window_s=10.0, open_s=4.0)
LOCAL = POLICIES["local"](PolicyOptions(0, None, False))


def failing(times: int, at: float = 0.0) -> PodBreaker:
    breaker = PodBreaker()
    for _ in range(times):
        breaker.failed(RULES, at, 0.0)
    return breaker


def test_it_opens_with_the_third_failure_in_a_row_and_says_so_once() -> None:
    breaker = PodBreaker()
    said = [breaker.failed(RULES, float(second), 0.0) for second in range(5)]
    assert said == [False, False, True, False, False]
    assert (breaker.state, breaker.admits) == (BreakerState.OPEN, False)


def test_a_success_in_between_begins_the_count_anew() -> None:
    breaker = failing(2)
    assert not breaker.succeeded()
    assert not breaker.failed(RULES, 0.0, 0.0)
    assert breaker.failures == 1


def test_failures_that_lie_further_apart_than_the_window_do_not_add_up() -> None:
    breaker = PodBreaker()
    assert not any(breaker.failed(RULES, at, 0.0) for at in (0.0, 5.0, 10.5, 16.0, 21.0))
    assert breaker.failed(RULES, 21.5, 0.0)


def test_after_the_cool_down_one_request_may_try_and_no_second_one() -> None:
    breaker = failing(3)
    assert not breaker.due(3.9)
    assert breaker.due(4.0)
    assert breaker.admits
    assert breaker.begin()
    assert not breaker.admits
    assert not breaker.begin()


def test_the_cool_down_is_up_to_half_longer() -> None:
    breaker = PodBreaker()
    for _ in range(3):
        breaker.failed(RULES, 0.0, 1.0)
    assert not breaker.due(5.9)
    assert breaker.due(6.0)


def test_it_closes_when_the_one_request_is_answered() -> None:
    breaker = failing(3)
    breaker.due(4.0)
    breaker.begin()
    assert breaker.succeeded()
    breaker.over()
    assert (breaker.state, breaker.failures) == (BreakerState.CLOSED, 0)


def test_it_opens_again_for_twice_as_long_when_that_request_fails() -> None:
    breaker = failing(3)
    breaker.due(4.0)
    breaker.begin()
    assert breaker.failed(RULES, 5.0, 0.0)
    breaker.over()
    assert not breaker.due(12.9)
    assert breaker.due(13.0)


def test_the_cool_down_does_not_double_without_end() -> None:
    breaker, now = failing(3), 0.0
    for _ in range(10):
        now += 1000.0
        breaker.due(now)
        breaker.failed(RULES, now, 0.0)
    assert not breaker.due(now + 8 * 4.0 - 0.1)
    assert breaker.due(now + 8 * 4.0)


def test_a_trial_whose_client_left_lets_the_next_one_try() -> None:
    breaker = failing(3)
    breaker.due(4.0)
    breaker.begin()
    breaker.over()
    assert breaker.begin()


def test_no_breaker_opens_when_they_are_off() -> None:
    breaker = PodBreaker()
    assert not any(breaker.failed(BreakerRules(failures=0), 0.0, 0.0) for _ in range(100))


def opened(of: Fleet, *urls: str) -> Fleet:
    for url in urls:
        breaker = pod(of, url).breaker
        for _ in range(3):
            breaker.failed(RULES, 0.0, 0.0)
        of.note_breaker(pod(of, url))
    return of


def test_an_open_pod_gets_no_new_traffic() -> None:
    of = opened(fleet("p0", "p1", "d0", "d1"), "p0", "d0")
    assert [each.url for role in (Role.PREFILL, Role.DECODE) for each in of.up(role)] == ["p1", "d1"]


def test_where_no_other_pod_could_answer_the_open_one_does() -> None:
    of = opened(fleet("p0", "d0", "d1"), "p0", "d0", "d1")
    assert [each.url for each in of.up(Role.DECODE)] == ["d0", "d1"]
    assert of.up(Role.PREFILL) == [], "nobody depends on a prefill pod"


def test_a_replica_that_is_well_spares_open_decode_pods() -> None:
    of = opened(fleet("p0", "d0", "r0"), "d0")
    assert of.up(Role.DECODE) == []
    assert [each.url for each in of.up(Role.REPLICA)] == ["r0"]


def test_a_half_open_pod_gets_one_request() -> None:
    of = opened(fleet("d0", "d1"), "d0")
    d0 = pod(of, "d0")
    d0.breaker.due(100.0)
    assert len(of.up(Role.DECODE)) == 2
    seat = Seat(d0, 10)
    assert [each.url for each in of.up(Role.DECODE)] == ["d1"]
    seat.leave()
    assert len(of.up(Role.DECODE)) == 2


def test_a_closed_breaker_is_noticed() -> None:
    of = opened(fleet("d0", "d1"), "d0")
    pod(of, "d0").breaker.succeeded()
    of.note_breaker(pod(of, "d0"))
    assert len(of.up(Role.DECODE)) == 2
    assert of.guarded == []


def test_a_conversation_leaves_its_open_pod_through_p() -> None:
    of = opened(fleet("p0", "d0", "d1"), "d0")
    recognition = turn(2, decode="d0")
    made = decide(Request(prompt_tokens=1100), recognition, of, LOCAL, knowing(recognition, of))
    assert made is not None
    assert (made.route, made.answering.url) == (Route.PD, "d1")
    assert made.reason == "turn 2: decode pod d0 gets no traffic, it failed too often"


def test_without_a_prefill_pod_that_may_be_asked_the_decode_pod_does_it_alone() -> None:
    of = opened(fleet("p0", "d0"), "p0")
    made = decide(Request(prompt_tokens=1100), first_turn(), of, LOCAL, knowing(first_turn(), of))
    assert made is not None
    assert (made.route, made.answering.url) == (Route.LOCAL, "d0")
