"""Percentiles, promises and counts, against values worked out by hand."""

from array import array
from math import inf

import pytest

from loadtest.live.book import Arm, Gaps
from loadtest.live.errors import LoadtestError
from loadtest.live.figures import groups_of, percentile, percentiles
from loadtest.live.slo import Slo, slo_of
from tests.loadtest.live.live_support import turn


def test_a_percentile_is_the_nearest_rank() -> None:
    ordered = [15.0, 20.0, 35.0, 40.0, 50.0]
    assert [percentile(ordered, share) for share in (0.05, 0.3, 0.4, 0.5, 1.0)] == [15.0, 20.0, 20.0, 35.0, 50.0]
    assert percentile([float(n) for n in range(1, 101)], 0.95) == 95.0
    assert percentile([], 0.5) is None


def test_failures_take_their_ranks_as_infinite() -> None:
    """Of 20 turns one failed: it is the P99, not the P95; with two, the P95 too."""
    good = [turn(0.1 * n).ttft_s for n in range(1, 20)]
    one = percentiles([*good, turn(None).ttft_s])
    assert (one.p50, one.p95, one.p99) == (pytest.approx(1.0), pytest.approx(1.9), inf)
    assert percentiles([*good[:18], inf, inf]).p95 == inf


def test_times_count_from_the_due_time_and_from_sending() -> None:
    seen = turn(0.5, late_s=0.2, tpot_s=0.01, tokens=11, due_s=3.0)
    assert (seen.ttft_s, seen.service_ttft_s) == (pytest.approx(0.5), pytest.approx(0.3))
    assert (seen.e2e_s, seen.service_e2e_s) == (pytest.approx(0.6), pytest.approx(0.4))
    assert seen.tpot_s == pytest.approx(0.01)
    assert turn(0.5, tokens=1).tpot_s is None
    failed = turn(None)
    assert (failed.ttft_s, failed.tpot_s, failed.e2e_s, failed.service_ttft_s) == (inf, inf, inf, inf)


def test_the_figures_of_an_endpoint_by_turn() -> None:
    """Ten seconds: two first turns (one failed), three later ones; 11 tokens each, 100 of prompt."""
    turns = [turn(0.2), turn(None), turn(0.1, turn=2), turn(0.3, turn=2), turn(0.6, turn=3)]
    groups = groups_of(turns, Arm(), Slo(ttft_s=0.3), 10.0)
    first, later, both = (groups[name] for name in ("turn 1", "turns 2+", "all turns"))
    assert (first.turns, first.ok, first.success, first.within_slo) == (2, 1, 0.5, 0.5)
    assert (later.turns, later.ok, later.success, later.within_slo) == (3, 3, 1.0, pytest.approx(2 / 3))
    assert (first.ttft.p50, first.ttft.p90) == (pytest.approx(0.2), inf)
    assert (later.ttft.p50, later.ttft.p99) == (pytest.approx(0.3), pytest.approx(0.6))
    assert both.goodput_turns_per_s == pytest.approx(0.3)
    assert both.turns_per_s == pytest.approx(0.4)
    assert both.output_tokens_per_s == pytest.approx(4.4)
    assert both.faults == {"http_500": 1}
    assert (both.prompt_tokens, both.cached_tokens) == (400, None)


def test_nothing_due_is_nothing_said() -> None:
    group = groups_of([], Arm(), None, 10.0)["all turns"]
    assert (group.turns, group.success, group.ttft.p50, group.itl.p50, group.within_slo) == (0, None, None, None, None)


def test_gaps_are_known_to_a_percent() -> None:
    gaps = Gaps()
    gaps.add(array("d", [0.0]))
    assert gaps.percentile_s(0.5) is None
    gaps.add(array("d", [1.0, 1.01, 1.03, 1.06, 1.06]))  # gaps of 10, 20, 30 and 0 ms
    assert gaps.total == 4
    assert gaps.percentile_s(0.25) == pytest.approx(1e-5, rel=0.01)
    assert gaps.percentile_s(0.5) == pytest.approx(0.01, rel=0.01)
    assert gaps.percentile_s(0.75) == pytest.approx(0.02, rel=0.01)
    assert gaps.percentile_s(1.0) == pytest.approx(0.03, rel=0.01)
    gaps.add(array("d", [0.0, 1e6]))
    assert gaps.percentile_s(1.0) > 200.0


def test_promises_are_read_and_kept() -> None:
    slo = slo_of("ttft=500ms, tpot=30ms,e2e=1.5s")
    assert slo == Slo(0.5, 0.03, 1.5)
    assert slo.words == "TTFT ≤ 500 ms, TPOT ≤ 30 ms, E2E ≤ 1500 ms"
    assert slo.kept(turn(0.4))
    assert slo.kept(turn(0.4, tokens=1)), "one token has no time between tokens"
    for broken in (turn(0.6), turn(0.4, tpot_s=0.04), turn(0.4, tpot_s=0.02, tokens=100), turn(None)):
        assert not slo.kept(broken)


@pytest.mark.parametrize("text", ["", "ttft", "ttft=5", "itl=5ms", "ttft=-1ms", "ttft=1ms,ttft=2ms"])
def test_a_promise_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(LoadtestError, match="--slo"):
        slo_of(text)
