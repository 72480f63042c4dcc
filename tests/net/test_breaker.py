"""When nobody asks any more, and when somebody does again."""

from __future__ import annotations

from gateway.net.breaker import FAILURES, OPEN_S, Breaker


def broken(told: list[tuple[bool, str]]) -> Breaker:
    breaker = Breaker(lambda closed, why: told.append((closed, why)))
    for _ in range(FAILURES):
        assert breaker.allows(10.0)
        breaker.failed(10.0, "no answer")
    return breaker


def test_failures_in_a_row_open_it_and_are_told_once() -> None:
    told = list[tuple[bool, str]]()
    breaker = broken(told)
    assert breaker.open
    assert not breaker.allows(10.0 + OPEN_S / 2)
    breaker.failed(10.0, "late")
    assert told == [(False, "no answer")]


def test_an_answer_in_between_starts_the_count_again() -> None:
    breaker = Breaker()
    for _ in range(5 * FAILURES):
        breaker.failed(1.0, "x")
        breaker.succeeded()
    assert not breaker.open


def test_one_question_at_a_time_tries_whether_it_answers_again() -> None:
    told = list[tuple[bool, str]]()
    breaker = broken(told)
    later = 10.0 + OPEN_S
    assert [breaker.allows(later), breaker.allows(later), breaker.allows(later + OPEN_S / 2)] == [True, False, False]
    breaker.failed(later, "still no answer")
    assert breaker.allows(later + OPEN_S)
    breaker.succeeded()
    assert [breaker.allows(later + OPEN_S), breaker.allows(later + OPEN_S)] == [True, True]
    assert told == [(False, "no answer"), (True, "it answers again")]
    breaker.failed(later + OPEN_S, "once")
    assert not breaker.open
