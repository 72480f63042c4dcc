"""What people read: warnings, tables, the live line."""

from __future__ import annotations

import io
import json
from array import array
from math import inf

import pytest

from loadtest.live import plots, progress
from loadtest.live.answer import Answer
from loadtest.live.book import Book
from loadtest.live.overhead import Meter, Overhead, overhead_of
from loadtest.live.report import report
from loadtest.live.results import Result, Setup, json_of, result_of
from loadtest.live.schedule import Planned, Window
from loadtest.live.slo import Slo
from loadtest.live.text import ms, plain, summary
from tests.loadtest.live.live_support import turn

QUIET = Overhead(1.0, 0.1, 0.04, 0.2, 1000, 9.0, 0.0, 0.001, 0.002, 0.001, 0.002, 5, 0, [])


def setup(urls: list[str]) -> Setup:
    return Setup(
        *(urls, "chat", {"m": 1.0}, "words", "1 conversations/s, Poisson", "by a coin" if len(urls) == 2 else ""),
        *(0.0, 10.0, "TTFT ≤ 300 ms", 1, 60.0, 30.0, 100, [], 1.3, "2026-11-29T00:00:00+00:00", "0"),
    )


def result(*urls: str, overhead: Overhead = QUIET, interrupted_s: float | None = None) -> Result:
    """Endpoint A: 20 conversations at 100 ms, one failed. B: the same at 200 ms."""
    book = Book(len(urls), Window(0.0, 10.0))
    for arm in range(len(urls)):
        book.records += [turn(0.1 * (arm + 1), arm=arm, number=number) for number in range(19)]
        book.records.append(turn(None, arm=arm, number=19))
    return result_of(setup(list(urls)), book, Slo(ttft_s=0.3), overhead, interrupted_s)


def test_the_report_says_what_was_seen_and_how_it_counts() -> None:
    text = report(result("http://a"), [("x.png", "X")])
    assert "| all turns | 20 | 95.0% | 95.0% | 1.90 | 1.90 | 21 | - |" in text
    assert "| TTFT | all turns | 100 | 100 | 100 | ∞ |" in text
    assert "| TTFT | turns 2+ | - | - | - | - |" in text
    assert "- A: 1 × http_500" in text
    assert "![X](x.png)" in text
    assert (
        "10% of one core (20% in the busiest second), 9.0 µs per token event; it waited for a core 4% of the time"
        in text
    )


def test_two_endpoints_have_a_verdict() -> None:
    found = result("http://a", "http://b")
    assert "**Verdict: A is better than B in TTFT P50, turn 1 (+100%)" in report(found)
    assert "TTFT P50, turn 1       100" in summary(found)
    assert "+100 … +100" in summary(found)


def test_an_interrupted_run_counts_the_seconds_that_it_had() -> None:
    found = result("http://a", interrupted_s=4.0)
    assert found.arms[0].groups["all turns"].turns_per_s == pytest.approx(19 / 4.0)
    assert "INTERRUPTED after 4 s" in summary(found)


def test_infinite_is_null_for_machines() -> None:
    read = json.loads(json_of(result("http://a")))
    group = read["arms"][0]["groups"]["all turns"]
    assert (group["ttft"]["p50"], group["ttft"]["p99"], group["faults"]) == (0.1, None, {"http_500": 1})
    assert read["format"] == 1


def test_numbers_are_written_for_people() -> None:
    assert [ms(value) for value in (None, inf, 0.0123, 1.5, 1234.5678)] == ["-", "∞", "12.3", "1,500", "1,234,568"]
    assert plain([["a", "", "P50"], ["b", "all turns", "1.0"]]) == "  a             P50\n  b  all turns  1.0"


def metered(cpu_s: float, lag_s: float) -> Meter:
    meter = Meter()
    meter.lasted_s, meter.cpu_s = 10.0, cpu_s
    meter.lags_s = [lag_s] * 100
    return meter


def test_a_client_at_ease_warns_of_nothing() -> None:
    book = Book(1, Window(0.0, 10.0))
    book.late_s, book.token_events = array("d", [0.001] * 100), 1_000_000
    seen = overhead_of(metered(5.0, 0.001), book)
    assert (seen.cpu_share, seen.us_per_event, seen.warnings) == (0.5, 5.0, [])


def test_a_client_that_was_the_bottleneck_says_so() -> None:
    book = Book(1, Window(0.0, 10.0))
    book.late_s = array("d", [0.001] * 98 + [0.5] * 2)
    book.records = [turn(0.1, number=1)]
    seen = overhead_of(metered(9.5, 0.020), book)
    assert [warning.partition(":")[0] for warning in seen.warnings] == [
        "the load test used 95% of a core for a second",
        "1 % of the sends were 500 ms late or more",
        "1 % of timers fired 20 ms late or more",
    ]
    assert "> **1 % of the sends were 500 ms late" in report(result("http://a", overhead=seen))


def test_the_busiest_second_counts_and_not_only_the_mean() -> None:
    meter = metered(1.0, 0.0)
    # Twenty ticks of 50 ms to the second: idle, then one second at full use, then idle.
    used = [(0.05 * tick, min(max(0.0, 0.05 * tick - 3.0), 1.0)) for tick in range(200)]
    meter._used = used
    assert meter.busiest_share == pytest.approx(1.0)


def test_what_other_processes_took_is_told_from_what_it_used() -> None:
    meter = metered(5.0, 0.001)
    meter.waited_s = 2.5
    seen = overhead_of(meter, Book(1, Window(0.0, 10.0)))
    assert seen.waited_share == 0.25
    assert seen.warnings == ["the load test waited for a core 25% of the time: other processes had them"]
    meter.waited_s = None
    assert overhead_of(meter, Book(1, Window(0.0, 10.0))).waited_share is None


def some_turns(arms: int = 1) -> Book:
    book = Book(arms, Window(0.0, 30.0))
    for arm in range(arms):
        planned = Planned(arm, arm, arm, "m", (1.0,), fixed=False)
        for fault in (None, "http_503"):
            book.sends()
            times = array("d", [1.25, 2.25])
            came = Answer(
                1.0, 2.25, fault=fault, first_s=1.25, last_s=2.25, times=times, output_tokens=20, has_usage=True
            )
            book.ended(planned, 1, 1.0, came)
    return book


def test_the_line_shows_how_it_goes() -> None:
    assert progress.line(some_turns(2), 4.0) == (
        "4/30 s, 0 in flight; A: 1 ended, 1 failed, TTFT 250 ms, TPOT 52.6 ms, 5 tokens/s; "
        "B: 1 ended, 1 failed, TTFT 250 ms, TPOT 52.6 ms, 5 tokens/s"
    )


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


async def test_on_a_terminal_a_table_comes_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    out = _Terminal()
    monkeypatch.setattr("rich.console.Console", lambda **_: Console(file=out, force_terminal=True, width=100))
    live = progress._live()
    live.start()
    live.update(progress._table(some_turns(), 4.0), refresh=True)
    live.stop()
    assert "TTFT P50 ms" in out.getvalue()
    assert "4/30 s, 0 in flight" in out.getvalue()


async def test_looking_ends_with_the_run() -> None:
    out = io.StringIO()
    async with progress.shown(some_turns(), lambda: 4.0, out):
        pass
    assert out.getvalue() == ""


def test_plots_are_worked_out_without_drawing() -> None:
    turns = [turn(0.1, due_s=1.0), turn(0.3, due_s=1.2), turn(None, due_s=1.4), turn(0.2, due_s=8.0)]
    assert plots.cdf(turns) == (pytest.approx([100.0, 200.0, 300.0]), [0.25, 0.5, 0.75])
    x, y = plots.over_time(turns, 10.0, 0.5)
    assert (x, y) == ([1.5, 8.5], pytest.approx([300.0, 200.0]))
    assert plots.over_time(turns, 10.0, 0.99)[0] == [8.5], "an infinite percentile is not drawn"
    assert plots.throughput(some_turns(), 0, 4.0) == ([0.0, 1.0, 2.0, 3.0], [0.0, 2.0, 2.0, 0.0])
