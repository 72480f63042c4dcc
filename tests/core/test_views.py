"""A rank's view: sequence numbers, trust, several groups."""

from __future__ import annotations

import pytest

from gateway.core.views import Arrival, RankView

A, B = b"a" * 16, b"b" * 16


def heard(view: RankView, sequence: int) -> Arrival:
    arrival = view.arrival(sequence)
    if arrival is Arrival.NEXT:
        view.heard_batch(sequence, 1.0)
    return arrival


def whole(view: RankView) -> RankView:
    assert heard(view, 0) is Arrival.NEXT
    return view


def test_from_sequence_zero_on_everything_is_known_and_silence_means_nothing() -> None:
    view = whole(RankView())
    assert view.complete
    assert view.resident_tokens(A) == 0
    view.stored(A, None, [1, 2], 16)
    assert (view.resident_tokens(A), view.resident_tokens(B)) == (32, 0)


def test_who_joins_late_knows_only_what_it_heard() -> None:
    view = RankView()
    assert heard(view, 7) is Arrival.GAP
    view.lose(7)
    view.heard_batch(7, 1.0)
    view.stored(A, None, [1, 2], 16)
    assert not view.complete
    assert (view.resident_tokens(A), view.resident_tokens(B)) == (32, None)


def test_a_gap_that_is_lost_wipes_the_view() -> None:
    view = whole(RankView())
    view.stored(A, None, [1], 16)
    assert heard(view, 2) is Arrival.GAP
    view.lose(2)
    assert (view.gaps, view.lost) == (1, 1)
    assert view.resident_tokens(A) is None
    assert heard(view, 3) is Arrival.GAP, "2 was not applied yet"


def test_a_gap_that_is_replayed_loses_nothing() -> None:
    view = whole(RankView())
    view.stored(A, None, [1], 16)
    assert heard(view, 2) is Arrival.GAP
    view.postpone(2)
    assert view.replayed_from(1)
    view.heard_batch(1, 2.0)
    view.stored(A, 1, [2], 16)
    assert heard(view, 2) is Arrival.NEXT
    assert view.complete
    assert view.resident_tokens(A) == 32


def test_what_a_replay_brought_already_is_old() -> None:
    view = whole(RankView())
    view.heard_batch(1, 2.0)
    assert heard(view, 1) is Arrival.OLD
    assert heard(view, 2) is Arrival.NEXT


@pytest.mark.parametrize("sequence", [0, 3])
def test_a_number_that_goes_backwards_is_a_restart(sequence: int) -> None:
    view = whole(RankView())
    for number in range(1, 5):
        assert heard(view, number) is Arrival.NEXT
    assert view.arrival(sequence) is Arrival.RESTART
    view.restart()
    assert view.resident_tokens(A) is None
    assert view.arrival(sequence) is (Arrival.NEXT if sequence == 0 else Arrival.GAP)


def test_after_a_reset_everything_is_known_again() -> None:
    view = RankView()
    view.arrival(5)
    view.lose(5)
    view.heard_batch(5, 1.0)
    view.stored(A, None, [1], 16)
    view.cleared()
    assert (view.resident_tokens(A), view.resident_tokens(B)) == (0, 0)


def test_a_pod_that_is_not_believed_is_unknown() -> None:
    view = whole(RankView())
    view.stored(A, None, [1], 16)
    view.distrust()
    assert view.resident_tokens(A) is None


def test_blocks_elsewhere_than_on_the_device_do_not_count() -> None:
    view = whole(RankView())
    view.stored(A, None, [1], 16, "GPU")
    view.stored(A, 1, [2], 16, "CPU")
    view.removed([1], "CPU")
    assert view.resident_tokens(A) == 16


def test_of_two_full_groups_the_shorter_counts() -> None:
    view = whole(RankView())
    view.stored(A, None, [1, 2, 3], 16, group=0, kind="full_attention")
    view.stored(A, None, [1, 2, 3], 16, group=1, kind="mla_attention")
    view.removed([3], group=1)
    assert view.resident_tokens(A) == 32


def test_a_sliding_window_needs_its_window_only() -> None:
    view = whole(RankView())
    view.stored(A, None, [1, 2, 3, 4, 5], 16, group=0, kind="full_attention")
    view.stored(A, None, [3, 4, 5], 16, group=1, kind="sliding_window", window=32)
    assert view.resident_tokens(A) == 80
    view.removed([5], group=1)
    assert view.resident_tokens(A) == 64, "3 and 4 are there for a prefix of four blocks"
    view.removed([3], group=1)
    assert view.resident_tokens(A) == 0
    view.removed([2], group=0)
    assert view.resident_tokens(A) == 0


def test_partial_blocks_of_another_size_are_left_out() -> None:
    view = whole(RankView())
    view.stored(A, None, [1], 16)
    view.stored(A, 1, [2], 8)
    assert view.resident_tokens(A) == 16


def test_copies_in_a_window_are_counted() -> None:
    view = whole(RankView())
    view.stored(A, None, [1], 16, group=0)
    for _ in range(2):
        view.stored(A, None, [1], 16, group=1, kind="sliding_window", window=16)
    view.removed([1], group=1)
    assert view.resident_tokens(A) == 16
    assert view.resident_blocks == 2
    view.removed([1], group=1)
    assert view.resident_tokens(A) == 0
