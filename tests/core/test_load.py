"""How busy each pod is, and what follows for routes, places and moves."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gateway.core.decide import Plan, Request, decide
from gateway.core.load import Line, Load, Loads
from gateway.core.placement import Costs
from gateway.core.pods import Fleet, Pod, PodFacts, Role, Seat
from gateway.core.policies import AlwaysLocal, AlwaysPrefill, MeasuredTable, Policy, Queue, Route, TurnView
from gateway.core.reasons import ReasonClass
from gateway.core.weights import BALANCED
from tests.core.support import first_turn, fleet, knowing, turn
from tests.tables import arm, make_set

REQUEST = Request(prompt_tokens=1100, output_tokens=100)
CALM = Load(pd_s=0.1, local_s=0.05, average_pd_s=0.1, average_local_s=0.05, tpot_s=0.01, average_tpot_s=0.01)
VIEW = TurnView(turn=2, prompt_tokens=1064, resident_tokens=1024, output_tokens=32, rate=1.0, assignment="1P_3D")


def loaded(*urls: str) -> tuple[Fleet, Loads]:
    """A fleet of such pods whose paces are known: 10 ms and 0.1 ms a token to the first; 10 ms for each after."""
    of, loads = fleet(*urls), Loads()
    of.loads = loads
    for pod in of:
        taught(loads, pod)
    return of, loads


def taught(loads: Loads, pod: Pod, slowness: float = 1.0) -> None:
    for tokens in range(0, 4000, 20):
        loads.first_token(pod, tokens, slowness * (0.01 + 1e-4 * tokens))
        loads.per_token(pod, 1 + tokens % 7, slowness * (0.01 + 0.001 * (1 + tokens % 7)))


def at(of: Fleet, url: str) -> Pod:
    pod = of.get(url)
    assert pod is not None
    return pod


def planned(of: Fleet, policy: Policy, *, resident: int = 1000, number: int = 2) -> Plan:
    recognition = turn(number, resident=resident) if number > 1 else first_turn()
    plan = decide(REQUEST, recognition, of, policy, knowing(recognition, of))
    assert plan is not None
    return plan


# Lines


def test_a_line_is_found_from_points_on_it() -> None:
    line = Line(0.5, 0.1)
    for x in range(200):
        line.add(x % 20, 3.0 + 2.0 * (x % 20))
    assert line.at(10) == pytest.approx(23.0, rel=0.05)
    assert line.slope == pytest.approx(2.0, rel=0.05)


def test_a_line_follows_hardware_that_became_slower() -> None:
    line = Line(0.02, 1e-4)
    for factor in (1.0, 2.0):
        for x in range(300):
            line.add(x % 30 * 100, factor * (0.02 + 1e-4 * (x % 30) * 100))
    assert line.at(1000) == pytest.approx(0.24, rel=0.1)


def test_more_work_never_takes_less_time_and_one_outlier_moves_little() -> None:
    line = Line(0.1, 0.01)
    for x in range(50):
        line.add(x, 1.0 - 0.01 * x)
    assert line.slope == pytest.approx(0.0, abs=1e-12)
    before = line.at(10)
    line.add(10, 1e9)
    assert line.at(10) < 2 * before


def test_equal_points_leave_the_slope_alone() -> None:
    line = Line(0.0, 0.01)
    for _ in range(100):
        line.add(50, 1.0)
    assert line.at(50) == pytest.approx(1.0, rel=0.1)


# Loads


def test_a_request_waits_for_the_tokens_before_it() -> None:
    of, loads = loaded("p0", "d0")
    pod = at(of, "p0")
    alone_s = loads.first_s(pod, 100)
    seat = Seat(pod, 2000, pending=1000)
    assert loads.first_s(pod, 100) - alone_s == pytest.approx(0.1, rel=0.1)
    seat.began()
    assert loads.first_s(pod, 100) == pytest.approx(alone_s)
    seat.leave()
    assert pod.pending_tokens == 0


def test_a_seat_that_is_left_early_leaves_nothing_to_compute() -> None:
    pod = Pod("p", Role.PREFILL, up=True)
    first = Seat(pod, 100, pending=80)
    second = Seat(pod, 100, pending=50)
    assert (second.ahead, pod.pending_tokens) == (80, 130)
    first.leave()
    second.leave()
    assert (pod.pending_tokens, pod.load_tokens, pod.in_flight) == (0, 0, 0)


def test_requests_of_others_that_wait_at_a_pod_count() -> None:
    of, loads = loaded("d0")
    pod = at(of, "d0")
    before = loads.ahead(pod)
    pod.facts = PodFacts(running=3, waiting=2)
    assert loads.ahead(pod) > before
    pod.in_flight = 5
    assert loads.ahead(pod) == before


def test_a_pod_whose_cache_overflows_is_slower() -> None:
    of, loads = loaded("d0")
    pod = at(of, "d0")
    before = loads.each_s(pod)
    pod.facts = PodFacts(kv_usage=1.0)
    assert loads.each_s(pod) > 1.4 * before


def test_a_new_pod_is_expected_to_be_as_its_peers() -> None:
    of, loads = loaded("d0", "d1")
    new = Pod("d9", Role.DECODE, up=True)
    assert loads.first_s(new, 500) == pytest.approx(loads.first_s(at(of, "d0"), 500), rel=0.1)


def test_a_pod_that_was_restarted_is_learned_anew() -> None:
    of, loads = loaded("d0", "d1")
    slow = at(of, "d0")
    taught(loads, slow, 5.0)
    taught(loads, at(of, "d1"))
    before = loads.first_s(slow, 500)
    loads.forget("d0")
    assert loads.first_s(slow, 500) < before / 2


# Policies


def test_queue_takes_the_sooner_first_token() -> None:
    assert Queue().choose(msgspec.structs.replace(VIEW, load=CALM)).route is Route.LOCAL
    busy = msgspec.structs.replace(CALM, local_s=0.2)
    choice = Queue().choose(msgspec.structs.replace(VIEW, load=busy))
    assert choice.route is Route.PD
    assert choice.reason == "pd: first token in 200 ms on D, 100 ms through P"


def test_queue_without_a_prefill_pod_stays() -> None:
    nobody = msgspec.structs.replace(CALM, pd_s=None)
    assert Queue().choose(msgspec.structs.replace(VIEW, load=nobody)).route is Route.LOCAL
    assert Queue().choose(VIEW).route is Route.LOCAL


def test_average_load_leaves_the_tables_word() -> None:
    assert CALM.ttft(0.3, local=True) == pytest.approx(0.3)
    assert CALM.ttft(0.3, local=False) == pytest.approx(0.3)
    assert CALM.tpot(0.01) == pytest.approx(0.01)


def test_what_waits_more_than_usual_is_added_to_the_tables_word() -> None:
    busy = msgspec.structs.replace(CALM, local_s=0.25, tpot_s=0.02)
    assert busy.ttft(0.3, local=True) == pytest.approx(0.5)
    assert busy.tpot(0.01) == pytest.approx(0.02)
    assert msgspec.structs.replace(CALM, local_s=0.0).ttft(0.02, local=True) == pytest.approx(0.004)


def test_the_table_gives_way_to_a_queue(tmp_path: Path) -> None:
    policy = MeasuredTable(make_set(tmp_path / "t", {"1P_3D": (arm(100, 10), arm(60, 10.1))}))
    calm, busy = (msgspec.structs.replace(VIEW, load=msgspec.structs.replace(CALM, local_s=s)) for s in (0.05, 0.25))
    assert policy.choose(calm).route is Route.LOCAL
    choice = policy.choose(busy)
    assert choice.route is Route.PD
    assert " load pd 100 ms, local 260 ms" in choice.reason


# Decisions


def test_a_new_conversation_goes_where_its_answer_takes_least_time() -> None:
    of, loads = loaded("p0", "d0", "d1")
    taught(loads, at(of, "d0"), 3.0)
    for number in range(10):
        recognition = first_turn(number)
        plan = decide(REQUEST, recognition, of, AlwaysLocal(), knowing(recognition, of))
        assert plan is not None
        assert plan.answering.url == "d1"


def test_the_prefill_pod_with_less_before_it_is_taken() -> None:
    of, _ = loaded("p0", "p1", "d0")
    seat = Seat(at(of, "p0"), 10, pending=5000)
    assert planned(of, AlwaysPrefill(), number=1).prefill is at(of, "p1")
    seat.leave()


def test_a_replica_takes_a_conversation_whole_when_the_pair_is_busy() -> None:
    of, _ = loaded("p0", "d0", "r0")
    seat = Seat(at(of, "p0"), 10, pending=20_000)
    plan = planned(of, AlwaysPrefill(), number=1)
    assert (plan.route, plan.answering.url) == (Route.REPLICA, "r0")
    seat.leave()
    other = Seat(at(of, "r0"), 10, pending=20_000)
    assert planned(of, AlwaysPrefill(), number=1).route is Route.PD
    other.leave()


def test_a_conversation_moves_when_its_pod_is_much_busier_than_another() -> None:
    of, loads = loaded("p0", "d0", "d1")
    assert planned(of, AlwaysLocal()).answering.url == "d0"
    seat = Seat(at(of, "d0"), 10, pending=30_000)
    plan = planned(of, AlwaysLocal())
    assert (plan.answering.url, plan.reason_class) == ("d1", ReasonClass.MOVED)
    assert "d0 is busy: moves to d1" in plan.reason
    seat.leave()
    assert loads.ahead(at(of, "d0")) == 0


def test_a_small_difference_moves_nobody() -> None:
    of, _ = loaded("p0", "d0", "d1")
    seat = Seat(at(of, "d0"), 10, pending=300)
    assert planned(of, AlwaysLocal()).answering.url == "d0"
    seat.leave()


def test_costs_weigh_the_first_token_and_all_others() -> None:
    of, loads = loaded("p0", "d0")
    costs = Costs(loads, BALANCED, 100, {})
    pod = at(of, "d0")
    expected = loads.first_s(pod, 1000) + 100 * loads.each_s(pod)
    assert costs.whole(pod, 1000) == pytest.approx(1e6 * expected, rel=1e-3)
    pod.weight = 0.5
    assert costs.whole(pod, 1000) == pytest.approx(2e6 * expected, rel=1e-3)


def test_the_best_prefill_pod_is_looked_for_once_for_the_same_pods() -> None:
    of, loads = loaded("p0", "p1", "p2", "d0")
    p0, p1, p2 = (at(of, name) for name in ("p0", "p1", "p2"))
    costs, asked = Costs(loads, BALANCED, 100, {}), list[str]()

    def new_on(pod: Pod) -> int:
        asked.append(pod.url)
        return 10 if pod is p1 else 5000

    assert costs.best_prefill([p0, p1, p2], b"k", new_on) is p1
    assert costs.best_prefill([p0, p1, p2], b"k", new_on) is p1
    assert asked == ["p0", "p1", "p2"]
    assert costs.best_prefill([p0, p2], b"k", new_on) in (p0, p2)
    assert costs.best_prefill([p2], b"k", new_on) is p2
    assert costs.best_prefill([], b"k", new_on) is None


def test_without_loads_nothing_of_this_is_asked() -> None:
    of = fleet("p0", "d0", "d1")
    at(of, "d0").pending_tokens = 10**9
    assert planned(of, AlwaysLocal()).answering.url == "d0"
