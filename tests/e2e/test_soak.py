"""The soak in 20 seconds, and its arithmetic."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest

from loadtest.soak.ledger import Ended, Ledger, Trouble, report, slope
from loadtest.soak.traffic import _judge


async def test_twenty_seconds_of_kills_and_faults_leave_nothing_unexplained() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadtest.soak", "--minutes", "0.34", "--rate", "25", "--max-slope", "120", "--json"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(120):
        out, err = await process.communicate()
    assert process.returncode == 0, (out.decode(), err.decode())
    found = json.loads(out)
    assert found["unexplained"] == []
    assert found["left_over"] == []
    assert sum(found["faults"].values()) >= 3
    assert found["outcomes"]["ok"] > 0.5 * found["requests"]


def test_the_slope_is_that_of_the_line_through_the_samples() -> None:
    assert slope([(0.0, 5), (1.0, 7), (2.0, 9)]) == 2.0
    assert slope([(0.0, 1), (1.0, 3), (2.0, 2)]) == pytest.approx(0.5)
    assert slope([(3.0, 1)]) == 0.0


def test_only_samples_after_the_warm_up_count() -> None:
    ledger = Ledger(samples=[(0.0, 0), (10.0, 102400), (20.0, 102400), (30.0, 103424)])
    assert ledger.slope_mib_per_minute(10.0) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("ended", "explained"),
    [
        (Ended("503", 9.0, 9.5), False),
        (Ended("503", 9.0, 10.5), True),
        (Ended("broken", 11.0, 11.5), True),
        (Ended("broken", 15.9, 16.0), True),
        (Ended("broken", 16.1, 17.0), False),
        (Ended("404", 11.0, 11.5), False),
        (Ended("not well-formed: no [DONE]", 11.0, 11.5), False),
        (Ended("no end within 30 s", 11.0, 41.5), False),
    ],
    ids=str,
)
def test_an_error_is_explained_by_a_fault_that_it_met(ended: Ended, explained: bool) -> None:
    ledger = Ledger(troubles=[Trouble("kill decode", "d0", 10.0, 13.0)])
    ledger.note(ended)
    assert (ledger.unexplained() == []) is explained
    assert report(ledger, 1.0, 0.0, 1.0)["passed"] is explained


def test_a_run_that_grows_or_leaves_something_does_not_pass() -> None:
    grown = Ledger(samples=[(0.0, 0), (60.0, 3 * 1024)])
    assert report(grown, 1.0, 0.0, 3.1)["passed"]
    assert not report(grown, 1.0, 0.0, 2.9)["passed"]
    assert not report(Ledger(left_over=["a seat"]), 1.0, 0.0, 1.0)["passed"]


def test_what_a_client_reads_out_of_an_answer() -> None:
    event = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
    assert _judge(200, event + event + b"data: [DONE]\n\n", True) == ("ok", "aa")
    assert _judge(200, event, True)[0] == "not well-formed: no [DONE]"
    assert _judge(200, event + b'data: {"error":{"message":"x"}}\n\n', True)[0] == "broken"
    assert _judge(503, b'{"error":{"message":"x"}}', True)[0] == "503"
    with pytest.raises(ValueError):
        _judge(200, b'data: {"choi', True)
