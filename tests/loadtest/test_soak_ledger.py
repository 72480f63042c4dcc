"""The soak's arithmetic: what is explained, what grows, what is wrong with a run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadtest.soak.ledger import Ended, Ledger, Noticed, Trouble
from loadtest.soak.report import Run, lines, report
from loadtest.soak.slope import slope
from loadtest.soak.watch import Held, Spent

HELD = Held(sockets=14, tasks=9, conversations=5, seats=0, seat_tokens=0, handovers=0)
SPENT = Spent(clock=0.0, gateway=0.0, pods=0.0, client=0.0, machine=0.0, client_waited=0.0, gateway_waited=None)
LATER = Spent(clock=60.0, gateway=30.0, pods=6.0, client=12.0, machine=90.0, client_waited=3.0, gateway_waited=None)
RUN = Run(
    seconds=60.0,
    rate=2.0,
    late_s=[0.001] * 98 + [0.04, 0.2],
    most_at_once=7,
    connections=9,
    rss=[(float(second), 50_000) for second in range(60)],
    table=[(0.0, 5), (30.0, 40), (59.0, 38)],
    blocks=[(0.0, 1), (30.0, 300), (40.0, 310), (50.0, 320)],
    before=HELD,
    after=HELD,
    spent=(SPENT, LATER),
    bugs=[],
    routes={"pd": 100},
)
KILLED = Trouble("kill decode", "http://d0", 10.0, 13.0)


def test_the_slope_is_that_of_the_line_through_the_samples_with_its_error() -> None:
    assert slope([(0.0, 5), (1.0, 7), (2.0, 9)]).value == 2.0
    found = slope([(0.0, 1), (1.0, 3), (2.0, 2)])
    # The line is 1.5 + 0.5 x; what is left is -0.5, 1, -0.5; their squares are 1.5, with one degree of freedom.
    assert found.value == pytest.approx(0.5)
    assert found.error == pytest.approx((1.5 / 1 / 2) ** 0.5)
    assert slope([(3.0, 1)]).value == 0.0
    assert slope([(3.0, 1), (4.0, 2)]).error is None


def test_samples_are_averaged_before_the_line_is_laid() -> None:
    samples = [(0.0, 0.0), (9.0, 10.0), (10.0, 10.0), (19.0, 20.0), (25.0, 30.0)]
    found = slope(samples, bin_s=10.0)
    assert found.points == 3
    assert found == slope([(4.5, 5.0), (14.5, 15.0), (25.0, 30.0)])


@pytest.mark.parametrize(
    ("ended", "met", "explained"),
    [
        (Ended("503", "a", 9.0, 9.5), {"http://d0"}, False),
        (Ended("503", "a", 9.0, 10.5), {"http://d0"}, True),
        (Ended("503", "a", 9.0, 10.5), {"http://p0", "http://d0"}, True),
        (Ended("503", "a", 9.0, 10.5), {"http://d1"}, False),
        (Ended("503", "a", 9.0, 10.5), set(), True),
        (Ended("broken", "a", 11.0, 11.5), {"http://d0"}, True),
        (Ended("broken", "a", 14.4, 15.0), {"http://d0"}, True),
        (Ended("broken", "a", 14.6, 15.0), {"http://d0"}, False),
        (Ended("404", "a", 11.0, 11.5), {"http://d0"}, False),
        (Ended("not the answer to this request", "a", 11.0, 11.5), {"http://d0"}, False),
        (Ended("connection: reset", "a", 11.0, 11.5), {"http://d0"}, False),
    ],
    ids=str,
)
def test_an_error_is_explained_by_a_fault_of_a_pod_that_it_met(ended: Ended, met: set[str], explained: bool) -> None:
    ledger = Ledger(troubles=[KILLED], met={"a": met})
    ledger.note(ended)
    assert (ledger.unexplained() == []) is explained
    found = report(ledger, RUN, 1.0)
    assert found["passed"] is explained
    if explained:
        assert found["faults"] == {"kill decode": {"times": 1, "struck": 0, ended.how: 1}}


def test_of_several_faults_the_last_one_is_the_cause() -> None:
    before = Trouble("hang decode", "http://d0", 5.0, 9.9)
    other = Trouble("reset decode", "http://d1", 10.1, 10.2)
    ledger = Ledger(troubles=[before, other, KILLED], met={"a": {"http://d0"}})
    assert ledger.cause_of(Ended("502", "a", 11.0, 11.2)) is KILLED
    assert ledger.cause_of(Ended("502", "a", 9.0, 9.5)) is before


def test_what_the_gateway_notices_needs_a_cause_too() -> None:
    ledger = Ledger(troubles=[KILLED], met={"b": {"http://d0", "http://p0"}})
    ledger.noticed = [
        Noticed("reset", "http://d0", "a", 10.0),
        Noticed("5xx", "http://p0", "b", 12.0),
        Noticed("reset", "http://d0", "c", 30.0),
    ]
    assert ledger.unexplained_notices() == [ledger.noticed[2]]
    assert report(ledger, RUN, 1.0)["wrong"] == ["the gateway noticed 1 faults that were none of ours"]


def test_a_decode_pod_may_refuse_what_a_killed_prefill_pod_kept() -> None:
    dead = Trouble("kill prefill", "http://p0", 10.0, 11.0)
    ledger = Ledger(troubles=[Trouble("late prefill", "http://p1", 5.0, 9.9), dead])
    assert ledger.cause_of_noticed(Noticed("answer_status", "http://d0", "a", 12.0)) is dead
    assert ledger.cause_of_noticed(Noticed("answer_status", "http://d0", "a", 12.6)) is None
    assert ledger.cause_of_noticed(Noticed("answer_status", "http://d0", "a", 9.95)) is None
    assert ledger.cause_of_noticed(Noticed("reset", "http://d0", "a", 12.0)) is None


def test_a_run_that_grows_or_still_holds_something_or_has_a_bug_does_not_pass() -> None:
    grown = replace(RUN, rss=[(float(second), 50_000 + 3 * second) for second in range(60)])
    found = report(Ledger(), grown, 180.1)
    assert found["passed"]
    assert found["memory"]["slope_kib_per_minute"] == 180.0
    assert report(Ledger(), grown, 179.9)["wrong"] == ["memory grew by 180.0 KiB a minute"]
    held = replace(RUN, after=replace(HELD, sockets=16, tasks=8, seats=1))
    assert report(Ledger(), held, 1.0)["wrong"] == ["still held: 2 sockets, 1 seats"]
    assert not report(Ledger(), replace(RUN, bugs=["Traceback"]), 1.0)["passed"]


def test_memory_is_looked_at_in_the_second_half_only() -> None:
    warmed = replace(RUN, rss=[(float(second), 40_000 + 500 * min(second, 30)) for second in range(60)])
    assert report(Ledger(), warmed, 1.0)["memory"]["slope_kib_per_minute"] == 0.0


def test_blocks_of_memory_are_counted_in_the_same_half() -> None:
    found = report(Ledger(), RUN, 1.0)["memory"]
    assert (found["blocks"], found["blocks_slope_per_minute"], found["blocks_standard_error"]) == (320, 60, 0)


def test_a_late_client_says_so() -> None:
    assert report(Ledger(), RUN, 1.0)["starts"] == {
        "asked_per_s": 2.0,
        "begun_per_s": 1.7,
        "held_back": 0,
        "late_p50_ms": 1.0,
        "late_p99_ms": 40.0,
        "late_max_ms": 200.0,
        "most_at_once": 7,
        "connections": 9,
        "machine_was_the_bottleneck": False,
    }
    late = replace(RUN, late_s=[0.06] * 100)
    assert report(Ledger(), late, 1.0)["starts"]["machine_was_the_bottleneck"]
    assert report(Ledger(held_back=1), RUN, 1.0)["starts"]["machine_was_the_bottleneck"]


def test_shares_of_cpu_are_of_one_core_and_the_rest_is_of_others() -> None:
    assert report(Ledger(), RUN, 1.0)["cpu"] == {
        "gateway": 0.5,
        "pods": 0.1,
        "client": 0.2,
        "machine": 1.5,
        "others": 0.7,
        "client_waited": 0.05,
        "gateway_waited": None,
    }


def test_people_get_a_table_of_the_faults() -> None:
    ledger = Ledger(troubles=[KILLED, replace(KILLED, kind="reset prefill", struck=8)], met={"a": {"http://d0"}})
    ledger.note(Ended("broken", "a", 11.0, 11.5))
    ledger.troubles.sort(key=lambda trouble: trouble.kind)
    text = "\n".join(lines(report(ledger, RUN, 1.0)))
    assert "fault                   times   struck  noticed   broken" in text
    assert "reset prefill               1        8        0" in text
