"""Which of several pods: the least loaded, and of equals the one the conversation's key points to."""

from __future__ import annotations

import itertools

from gateway.core.placement import least_loaded, rendezvous
from gateway.core.pods import Pod, Role, Seat
from tests.core.support import fleet, key

KEYS = [key(number) for number in range(2000)]


def pods(count: int, first: int = 0) -> list[Pod]:
    return [Pod(f"http://10.0.0.{number}:8000", Role.DECODE, up=True) for number in range(first, first + count)]


def chosen(among: list[Pod], of: bytes) -> str:
    pod = least_loaded(among, of)
    assert pod is not None
    return pod.url


def test_the_least_loaded_pod_wins_whatever_the_key() -> None:
    among = pods(3)
    among[0].load_tokens, among[1].load_tokens, among[2].load_tokens = 500, 499, 501
    assert {chosen(among, of) for of in KEYS} == {among[1].url}


def test_of_the_least_loaded_the_key_decides_and_the_others_do_not_matter() -> None:
    among = pods(4)
    among[0].load_tokens = among[3].load_tokens = 9
    for of in KEYS[:200]:
        expected = max(among[1:3], key=lambda pod: rendezvous(of, pod.url))
        assert chosen(among, of) == expected.url


def test_the_order_of_the_list_does_not_matter() -> None:
    among = pods(4)
    among[3].load_tokens = 7
    for of in KEYS[:50]:
        assert len({chosen(list(order), of) for order in itertools.permutations(among)}) == 1


def test_equal_pods_share_the_conversations_about_equally() -> None:
    among = pods(4)
    shares = [sum(chosen(among, of) == pod.url for of in KEYS) for pod in among]
    assert sum(shares) == 2000
    assert all(440 < share < 560 for share in shares), shares


def test_a_pod_that_joins_takes_only_its_own_share() -> None:
    before, after = pods(4), pods(5)
    moved = [(chosen(before, of), chosen(after, of)) for of in KEYS]
    new = after[4].url
    assert all(now in (was, new) for was, now in moved)
    assert 330 < sum(now == new for _, now in moved) < 470, "a fifth of 2000"


def test_a_pod_that_leaves_moves_only_what_it_had() -> None:
    before, after = pods(4), [*pods(2), *pods(1, first=3)]
    gone = before[2].url
    for of in KEYS:
        was = chosen(before, of)
        if was != gone:
            assert chosen(after, of) == was


def test_every_gateway_breaks_ties_alike() -> None:
    """Worked out once; a change would send every conversation of a mixed pair of gateways to and fro."""
    among = pods(3)
    urls = [pod.url for pod in among]
    assert [urls.index(chosen(among, key(number))) for number in range(6)] == [0, 1, 0, 0, 0, 2]


def test_no_pods_give_no_pod() -> None:
    assert least_loaded([], key(1)) is None


def test_a_single_pod_is_chosen_however_loaded() -> None:
    among = pods(1)
    among[0].load_tokens = 10**9
    assert chosen(among, key(1)) == among[0].url


def test_an_iterator_will_do() -> None:
    assert least_loaded(iter(pods(2)), key(1)) is not None


# Pods and fleets


def test_a_request_weighs_its_tokens_and_at_least_one() -> None:
    pod = pods(1)[0]
    pod.take(300)
    pod.take(0)
    assert (pod.in_flight, pod.load_tokens) == (2, 301)
    pod.give_back(0)
    pod.give_back(300)
    assert (pod.in_flight, pod.load_tokens) == (0, 0)


def test_a_seat_is_taken_when_it_is_made_and_free_when_it_is_left() -> None:
    pod = pods(1)[0]
    seat = Seat(pod, 300)
    assert (pod.in_flight, pod.load_tokens) == (1, 300)
    seat.leave()
    assert (pod.in_flight, pod.load_tokens) == (0, 0)


def test_a_seat_that_someone_else_keeps_is_theirs_to_leave() -> None:
    pod = pods(1)[0]
    kept, free = Seat(pod, 300), Seat(pod, 5)
    kept.kept = True
    kept.leave_unless_kept()
    free.leave_unless_kept()
    assert (pod.in_flight, pod.load_tokens) == (1, 300)
    kept.leave()
    assert (pod.in_flight, pod.load_tokens) == (0, 0)


def test_a_fleet_finds_pods_by_role_and_by_url() -> None:
    of = fleet("p0", "d0", "d1", "r0", down=("d0",))
    assert [pod.url for pod in of] == ["p0", "d0", "d1", "r0"]
    assert [pod.url for pod in of.of(Role.DECODE)] == ["d0", "d1"]
    assert [pod.url for pod in of.up(Role.DECODE)] == ["d1"]
    down = of.get("d0")
    assert down is not None
    assert not down.up
    assert of.get("d9") is None
    assert of.get(None) is None


def test_a_fleet_follows_pods_up_and_down() -> None:
    of = fleet("p0", "d0", "d1", "r0")
    assert of.assignment == "1P_2D", "replicas do not count"
    pod = of.get("d0")
    assert pod is not None
    of.set_up(pod, False)
    assert (pod.up, [up.url for up in of.up(Role.DECODE)], of.assignment) == (False, ["d1"], "1P_1D")
    of.set_up(pod, True)
    assert (pod.up, [up.url for up in of.up(Role.DECODE)], of.assignment) == (True, ["d0", "d1"], "1P_2D")
