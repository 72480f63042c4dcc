"""Pods that are far from their peers."""

from __future__ import annotations

import pytest

from gateway.core.outliers import Outliers
from gateway.core.placement import least_loaded
from gateway.core.pods import Fleet
from tests.core.support import fleet, key, pod


def watched(paces: dict[str, float], samples: int = 20, failures: dict[str, float] | None = None) -> Outliers:
    """Pods that need so many seconds for a first token, and fail so often."""
    made = Outliers()
    for url, seconds in paces.items():
        each = pod(FLEET, url)
        for number in range(samples):
            made.timed(each, seconds, 1000, 100.0)
            made.ended(each, number < samples * (failures or {}).get(url, 0), 100.0)
    return made


FLEET: Fleet


@pytest.fixture(autouse=True)
def _fresh() -> None:
    global FLEET
    FLEET = fleet("d0", "d1", "d2", "d3")


def weights() -> list[float]:
    return [each.weight for each in FLEET]


def test_a_slow_pod_loses_traffic_step_by_step_and_not_all_of_it() -> None:
    outliers = watched({"d0": 0.1, "d1": 0.1, "d2": 0.1, "d3": 0.4})
    said = [outliers.review(FLEET, 101.0) for _ in range(5)]
    assert weights() == [1, 1, 1, 0.1]
    assert [(each.url, why) for each, why in said[0]] == [
        ("d3", "its first tokens take 4.0 times as long as its peers'")
    ]
    assert said[1:] == [[], [], [], []], "it is said once"


def test_a_pod_that_is_not_far_from_its_peers_keeps_its_traffic() -> None:
    outliers = watched({"d0": 0.1, "d1": 0.1, "d2": 0.12, "d3": 0.29})
    outliers.review(FLEET, 101.0)
    assert weights() == [1, 1, 1, 1]


def test_a_failing_pod_loses_traffic() -> None:
    even = dict.fromkeys(("d0", "d1", "d2", "d3"), 0.1)
    outliers = watched(even, failures={"d1": 0.3, "d2": 0.15})
    assert [each.url for each, _ in outliers.review(FLEET, 101.0)] == ["d1"]


def test_when_all_fail_alike_nobody_is_an_outlier() -> None:
    outliers = watched(
        dict.fromkeys(("d0", "d1", "d2", "d3"), 0.1), failures=dict.fromkeys(("d0", "d1", "d2", "d3"), 0.9)
    )
    assert outliers.review(FLEET, 101.0) == []


def test_it_recovers_step_by_step_once_what_was_seen_is_old() -> None:
    outliers = watched({"d0": 0.1, "d1": 0.1, "d2": 0.1, "d3": 0.4})
    outliers.review(FLEET, 101.0)
    steps = []
    for _ in range(6):
        outliers.review(FLEET, 1000.0)
        steps.append(weights()[3])
    assert steps == [0.6, 0.7, 0.8, 0.9, 1.0, 1.0]


def test_never_more_than_half_are_reduced() -> None:
    outliers = watched({"d0": 0.1, "d1": 0.1, "d2": 0.9, "d3": 0.9}, failures={"d0": 0.9})
    for _ in range(5):
        outliers.review(FLEET, 101.0)
        assert sum(weight < 1 for weight in weights()) <= 2


@pytest.mark.parametrize(("paces", "samples"), [({"d0": 0.1, "d1": 0.9}, 20), ({"d0": 0.1, "d1": 0.1, "d2": 9.0}, 19)])
def test_too_few_pods_or_samples_prove_nothing(paces: dict[str, float], samples: int) -> None:
    watched(paces, samples).review(FLEET, 101.0)
    assert weights() == [1, 1, 1, 1]


def test_short_prompts_do_not_look_slow() -> None:
    outliers = watched({"d0": 0.125, "d1": 0.125, "d2": 0.125})
    for _ in range(20):
        outliers.timed(pod(FLEET, "d3"), 0.03, 10, 100.0)
    assert outliers.review(FLEET, 101.0) == []


def test_a_new_process_begins_afresh() -> None:
    outliers = watched({"d0": 0.1, "d1": 0.1, "d2": 0.1, "d3": 0.4})
    outliers.review(FLEET, 101.0)
    outliers.forget(pod(FLEET, "d3"))
    assert outliers.review(FLEET, 101.0) == []
    assert weights() == [1, 1, 1, 1]


def test_a_reduced_pod_gets_a_conversation_when_the_others_carry_more_than_its_share() -> None:
    of = fleet("d0", "d1", load={"d0": 500})
    assert getattr(least_loaded(of, key(1)), "url", None) == "d1"
    pod(of, "d1").weight = 0.5
    assert getattr(least_loaded(of, key(1)), "url", None) == "d0"
    pod(of, "d0").take(600)
    assert getattr(least_loaded(of, key(1)), "url", None) == "d1"
