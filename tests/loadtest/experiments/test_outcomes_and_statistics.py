"""Numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from loadtest.experiments.outcomes import Fate, Slo, TurnRecord, percentile, summarise
from loadtest.experiments.statistics import interval, paired


def turn(ttft_s: float = 0.1, tpot_s: float = 0.01, fate: Fate = Fate.GOOD, route: str = "local") -> TurnRecord:
    return TurnRecord(0, 2, "", 0.0, 0.0, ttft_s, tpot_s, 1.0, 10, 5, 100, 0, route, fate)


def test_failed_turns_are_endless_in_percentiles() -> None:
    good = np.array([0.1, 0.2, 0.3])
    assert percentile(good, 0, 0.50) == pytest.approx(200)
    assert percentile(good, 1, 0.50) == pytest.approx(200)
    assert percentile(good, 1, 0.75) == pytest.approx(300)
    assert percentile(good, 1, 0.76) is None
    assert percentile(np.array([]), 3, 0.5) is None


def test_failed_turns_count_with_what_the_client_gave_them_in_means() -> None:
    found = summarise([turn(0.1), turn(math.nan, math.nan, Fate.TIMED_OUT)], Slo(), 30.0, 180.0)
    assert found.success == 0.5
    assert found.ttft_mean_ms == pytest.approx(15_050)
    assert found.ttft_ok_ms == pytest.approx(100)
    assert found.e2e_mean_ms == pytest.approx(90_500)
    assert found.ttft_p99_ms is None


def test_goodput_asks_for_both_targets() -> None:
    turns = [turn(0.4, 0.02), turn(0.6, 0.02), turn(0.4, 0.04), turn(0.1, 0.01, Fate.FAILED)]
    assert summarise(turns, Slo(0.5, 0.03), 30.0, 180.0).goodput == 0.25


def test_turns_that_stay_are_counted_of_those_that_were_routed() -> None:
    turns = [turn(), turn(route="pd"), turn(route="replica"), turn(route="readback"), turn(route="", fate=Fate.LOST)]
    assert summarise(turns, Slo(), 30.0, 180.0).local_share == 0.5


def test_the_interval_of_three_runs_is_students() -> None:
    found = interval([1.0, 2.0, 3.0])
    assert (found.mean, found.runs) == (2.0, 3)
    assert found.half == pytest.approx(4.3027 / math.sqrt(3))


def test_one_run_has_no_interval_and_an_endless_one_no_mean() -> None:
    assert math.isnan(interval([1.0]).half)
    assert math.isnan(interval([1.0, None]).mean)


def test_pairs_take_out_what_the_seeds_have_in_common() -> None:
    theirs = {"1": 100.0, "2": 200.0, "3": 300.0}
    ours = {seed: 0.5 * value for seed, value in theirs.items()}
    found = paired(ours, theirs, relative=True)
    assert found.mean == pytest.approx(-0.5)
    assert found.half == pytest.approx(0.0, abs=1e-9)
    assert found.sure
    assert paired({"1": 1.0}, {"2": 1.0}, relative=False).runs == 0
