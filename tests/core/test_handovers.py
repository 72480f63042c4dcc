"""Whose KV waits on P, for how long, and what nobody took."""

from __future__ import annotations

from gateway.core.decide import Request, decide
from gateway.core.handovers import Handovers
from gateway.core.pods import PodFacts
from gateway.core.policies import POLICIES, PolicyOptions
from tests.core.support import first_turn, fleet, knowing, pod, turn

PD = POLICIES["pd"](PolicyOptions(0, None, False))


def test_what_d_took_is_over() -> None:
    ledger = Handovers(lease_s=30)
    waiting = ledger.begin("p0", 100.0)
    assert ledger.of("p0", 104.0) == (1, 4.0)
    ledger.over(waiting)
    ledger.expire(1000.0)
    assert ledger.of("p0", 1000.0) == (0, 0.0)
    assert not ledger.stranded


def test_what_nobody_took_before_the_lease_ended_is_counted_once() -> None:
    ledger = Handovers(lease_s=30)
    waiting = ledger.begin("p0", 100.0)
    ledger.leave(waiting)
    ledger.expire(129.9)
    assert (len(ledger), ledger.stranded["p0"]) == (1, 0)
    ledger.expire(130.0)
    ledger.expire(131.0)
    assert (len(ledger), ledger.stranded["p0"]) == (0, 1)


def test_what_a_request_still_waits_with_does_not_end_for_d_renews_the_lease() -> None:
    ledger = Handovers(lease_s=30)
    waiting = ledger.begin("p0", 100.0)
    ledger.expire(200.0)
    assert ledger.of("p0", 200.0) == (1, 100.0)
    ledger.leave(waiting)
    ledger.expire(200.0)
    assert ledger.stranded["p0"] == 1


def test_each_pod_has_its_own_and_the_oldest_counts() -> None:
    ledger = Handovers()
    ledger.begin("p0", 1.0)
    ledger.begin("p0", 3.0)
    ledger.begin("p1", 2.0)
    assert ledger.of("p0", 5.0) == (2, 4.0)
    assert ledger.of("p1", 5.0) == (1, 3.0)


def test_a_pod_that_was_restarted_keeps_nothing_for_anybody() -> None:
    ledger = Handovers()
    first = ledger.begin("p0", 1.0)
    ledger.begin("p1", 1.0)
    ledger.forget("p0")
    ledger.over(first)
    ledger.expire(1000.0)
    assert (len(ledger), sum(ledger.stranded.values())) == (1, 0)


def test_a_full_decode_pod_is_not_given_a_hand_over_where_another_has_room() -> None:
    of = fleet("p0", "d0", "d1", load={"d1": 10**6})
    request = Request(prompt_tokens=100, decode_max_in_flight=2)
    pod(of, "d0").in_flight = 2
    for recognition in (first_turn(), turn(2, decode="d0")):
        made = decide(request, recognition, of, PD, knowing(recognition, of))
        assert made is not None
        assert made.answering.url == "d1"


def test_where_all_are_full_the_conversations_own_pod_keeps_it() -> None:
    of = fleet("p0", "d0", "d1")
    request = Request(prompt_tokens=100, decode_max_in_flight=2)
    pod(of, "d0").in_flight = pod(of, "d1").in_flight = 2
    made = decide(request, turn(2, decode="d0"), of, PD, knowing(turn(2, decode="d0"), of))
    assert made is not None
    assert made.answering.url == "d0"
    assert request.full(made.answering)


def test_a_decode_pod_where_requests_wait_gets_no_new_conversation_while_another_has_none() -> None:
    of = fleet("p0", "d0", "d1", load={"d1": 10**6})
    pod(of, "d0").facts = PodFacts(waiting=3)
    made = decide(Request(prompt_tokens=100), first_turn(), of, PD, knowing(first_turn(), of))
    assert made is not None
    assert made.answering.url == "d1"
