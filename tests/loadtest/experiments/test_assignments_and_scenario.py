"""Names of clusters, and what happens to them."""

from __future__ import annotations

import pytest

from gateway.core.pods import Role
from loadtest.experiments.assignments import PAPER, STRICT, parse
from loadtest.experiments.errors import ExperimentError
from loadtest.experiments.scenario import ChangeMix, ChangeRate, Kill, Restart, Slow, check
from loadtest.experiments.scenario import parse as parse_event


def test_d_alone_follows_the_policy_and_beside_pd_it_is_strict() -> None:
    assert [pod.direct_off for pod in parse("1P_2D").pods()] == [None, None, None]
    assert [pod.direct_off for pod in parse("1P_1D_2pD").pods()] == [None, STRICT, None, None]


def test_pods_are_named_by_their_role() -> None:
    pods = parse("1R_2P_1pD").pods()
    assert [(pod.url, pod.role) for pod in pods] == [
        ("r0", Role.REPLICA),
        ("p0", Role.PREFILL),
        ("p1", Role.PREFILL),
        ("d0", Role.DECODE),
    ]
    assert all(pod.up for pod in pods)


def test_the_papers_17_have_four_pods_each_and_different_names() -> None:
    assert len({static.name for static in PAPER}) == 17
    assert all(parse(static.name).num_pods == 4 for static in PAPER)
    assert str(parse("1P_1D_2pD")) == "1P_1D_2pD"


@pytest.mark.parametrize("name", ["", "3D", "2P", "1P_1P_2D", "1X_2D", "0P_2D", "1P-2D", "999R_1P_1D", "01P_2D"])
def test_what_is_no_cluster_is_refused_by_name(name: str) -> None:
    with pytest.raises(ExperimentError, match=f"node assignment '{name}'"):
        parse(name)


@pytest.mark.parametrize(
    ("text", "event"),
    [
        ("30 slow d0 2", Slow(30.0, "d0", 2.0)),
        ("30 kill d1", Kill(30.0, "d1")),
        ("60.5 restart d1", Restart(60.5, "d1")),
        ("90 rate 0", ChangeRate(90.0, 0.0)),
        ("90 rate 12 acme", ChangeRate(90.0, 12.0, "acme")),
        ("90 mix paste", ChangeMix(90.0, "paste")),
    ],
)
def test_events_are_read(text: str, event: object) -> None:
    assert parse_event(text) == event


@pytest.mark.parametrize(
    "text", ["", "x", "30", "30 slow d0", "30 slow d0 0", "-1 kill d0", "30 melt d0", "inf kill d0"]
)
def test_what_is_no_event_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ExperimentError, match="write it like"):
        parse_event(text)


def test_an_event_must_name_a_pod_that_is_there() -> None:
    with pytest.raises(ExperimentError, match="no pod 'd7'"):
        check([Kill(1.0, "d7")], ["p0", "d0"])
