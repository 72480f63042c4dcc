"""What is where, by whose word, and what a pod's own word teaches about it. Blocks have 16 tokens."""

from __future__ import annotations

from gateway.core.pods import Pod, PodFacts, Role
from gateway.core.residency import SHORTFALLS, Accuracy, Expectation, Residency, Resident, Source, Verdict
from gateway.core.views import RankView

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16
LEDGER, EVENTS = Source.LEDGER, Source.EVENTS


def decode_pod(**facts: int) -> Pod:
    return Pod("d0", Role.DECODE, up=True, facts=PodFacts(**facts))


def hear(view: RankView, session: bytes | None, *blocks: int, parent: int | None = None) -> None:
    """The next batch of the pod's events: these blocks were stored."""
    sequence = view.next_sequence
    view.arrival(sequence)
    view.heard_batch(sequence, 1000.0 + sequence)
    view.stored(session, parent, blocks, 16)


def announcing(residency: Residency, pod: Pod, session: bytes, blocks: int, rank: int = 0) -> RankView:
    """A view that is complete, with so many blocks of a session."""
    view = residency.view(pod, rank)
    hear(view, session, *range(100 * rank + 1, 100 * rank + blocks + 1))
    return view


# Whose word


def test_without_events_the_ledger_answers() -> None:
    residency, pod = Residency(), decode_pod()
    assert residency.of(pod, A) == Resident(0, LEDGER)
    residency.used(pod, A, 100)
    assert residency.of(pod, A) == Resident(100, LEDGER)
    assert residency.of(Pod("d1", Role.DECODE), A) == Resident(0, LEDGER), "each pod has its own"
    assert residency.expect(pod, A) == Expectation(100, None)


def test_what_the_pod_announces_counts_and_both_are_kept_to_be_compared() -> None:
    residency, pod = Residency(), decode_pod()
    residency.used(pod, A, 100)
    announcing(residency, pod, A, 3)
    assert residency.of(pod, A) == Resident(48, EVENTS)
    assert residency.expect(pod, A) == Expectation(100, 48)
    assert residency.of(pod, B) == Resident(0, EVENTS), "of a view that is complete, silence is an answer"


def test_what_a_view_does_not_know_the_ledger_does() -> None:
    residency, pod = Residency(), decode_pod()
    residency.used(pod, A, 100)
    residency.view(pod, 0).lose(7)
    assert residency.of(pod, A) == Resident(100, LEDGER)
    hear(residency.view(pod, 0), B, 1, 2)
    assert residency.of(pod, A) == Resident(100, LEDGER)
    assert residency.of(pod, B) == Resident(32, EVENTS)


def test_a_pod_that_publishes_no_more_is_back_to_the_ledger() -> None:
    residency, pod = Residency(), decode_pod()
    residency.used(pod, A, 100)
    announcing(residency, pod, A, 3)
    residency.drop_views(pod)
    assert residency.of(pod, A) == Resident(100, LEDGER)


# DP ranks


def test_the_best_rank_is_named_only_where_there_are_several() -> None:
    residency, pod = Residency(), decode_pod()
    announcing(residency, pod, A, 3)
    assert residency.of(pod, A) == Resident(48, EVENTS, None)
    announcing(residency, pod, A, 5, rank=1)
    assert residency.of(pod, A) == Resident(80, EVENTS, 1)
    announcing(residency, pod, B, 7, rank=0)
    assert residency.of(pod, B) == Resident(112, EVENTS, 0)


def test_a_rank_that_does_not_know_may_hold_what_the_others_do_not() -> None:
    residency, pod = Residency(), decode_pod()
    residency.used(pod, B, 70)
    announcing(residency, pod, A, 3)
    residency.view(pod, 1).lose(7)
    assert residency.of(pod, A) == Resident(48, EVENTS, 0), "what one has is there"
    assert residency.of(pod, B) == Resident(70, LEDGER), "what none has may be on the other"


# The pod's process, and its size


def test_a_new_process_holds_nothing_whoever_says_so() -> None:
    residency, pod = Residency(), decode_pod()
    residency.used(pod, A, 100)
    view = announcing(residency, pod, A, 3)
    pod.replaced()
    assert view.next_sequence == 1, "nothing was asked yet"
    assert residency.of(pod, A) == Resident(0, LEDGER)
    assert view.next_sequence == 0
    residency.used(pod, A, 20)
    assert residency.of(pod, A) == Resident(20, LEDGER), "emptied once, not every time"
    hear(view, A, 5)
    assert residency.of(pod, A) == Resident(16, EVENTS)


def test_a_pod_met_after_restarts_begins_where_it_is() -> None:
    residency, pod = Residency(), decode_pod()
    pod.replaced()
    residency.used(pod, A, 100)
    assert residency.of(pod, A) == Resident(100, LEDGER)


def test_a_pod_that_never_said_anything_of_itself_can_be_replaced_as_well() -> None:
    residency, pod = Residency(), Pod("d0", Role.DECODE)
    residency.used(pod, A, 100)
    pod.replaced()
    assert residency.of(pod, A) == Resident(0, LEDGER)


def test_what_a_pod_says_of_itself_sizes_the_ledger() -> None:
    residency, pod = Residency(), decode_pod()
    residency.used(pod, A, 100)
    residency.used(pod, B, 100)
    assert residency.cache(pod).ghost.room_tokens is None
    assert residency.cache(pod).block_size == 16
    pod.facts = PodFacts(block_size=8, num_blocks=16)
    assert residency.of(pod, A) == Resident(28, LEDGER), "of 128 tokens 100 are the newer one's"
    assert residency.of(pod, B) == Resident(100, LEDGER)
    assert residency.cache(pod).block_size == 8
    pod.facts = PodFacts()
    assert residency.cache(pod).block_size == 8, "what was known of it stays known"
    assert residency.cache(pod).ghost.capacity_tokens == 128


# What the pod's own word teaches


def learned(residency: Residency, pod: Pod, expected: Expectation, shared: int, prompt: int, cached: int) -> dict:
    return residency.learn(pod, A, expected, shared, prompt, cached)


def test_a_prediction_is_in_whole_blocks() -> None:
    verdicts = learned(Residency(), decode_pod(), Expectation(100, 96), 110, 150, 96)
    assert verdicts == {LEDGER: Verdict(0, "exact"), EVENTS: Verdict(0, "exact")}


def test_no_more_can_be_cached_than_was_shared() -> None:
    verdicts = learned(Residency(), decode_pod(), Expectation(500, 496), 70, 600, 64)
    assert verdicts == {LEDGER: Verdict(0, "exact"), EVENTS: Verdict(0, "exact")}


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    verdicts = learned(Residency(), decode_pod(), Expectation(64, 64), 64, 64, 48)
    assert verdicts == {LEDGER: Verdict(0, "exact"), EVENTS: Verdict(0, "exact")}
    verdicts = learned(Residency(), decode_pod(), Expectation(64, 64), 64, 65, 64)
    assert verdicts == {LEDGER: Verdict(0, "exact"), EVENTS: Verdict(0, "exact")}


def test_within_a_block_is_exact_and_further_off_has_a_direction() -> None:
    residency, pod = Residency(), decode_pod()
    assert learned(residency, pod, Expectation(160, None), 200, 200, 144) == {LEDGER: Verdict(16, "exact")}
    assert learned(residency, pod, Expectation(144, None), 200, 200, 160) == {LEDGER: Verdict(-16, "exact")}
    assert learned(residency, pod, Expectation(160, None), 200, 200, 128) == {LEDGER: Verdict(32, "over")}
    assert learned(residency, pod, Expectation(128, None), 200, 200, 160) == {LEDGER: Verdict(-32, "under")}
    assert residency.cache(pod).accuracy == {
        LEDGER: Accuracy(4, exact=2, over=1, under=1, error_tokens=96, predicted_tokens=592, cached_tokens=592),
        EVENTS: Accuracy(),
    }


def test_each_source_is_judged_for_itself() -> None:
    residency, pod = Residency(), decode_pod()
    verdicts = learned(residency, pod, Expectation(320, 160), 330, 400, 160)
    assert verdicts == {LEDGER: Verdict(160, "over"), EVENTS: Verdict(0, "exact")}
    assert residency.cache(pod).accuracy[EVENTS] == Accuracy(1, exact=1, predicted_tokens=160, cached_tokens=160)


def test_a_prompt_that_shares_nothing_teaches_nothing() -> None:
    residency, pod = Residency(), decode_pod(block_size=16, num_blocks=100)
    residency.used(pod, A, 500)
    assert learned(residency, pod, Expectation(500, 496), 0, 600, 0) == {}
    assert residency.cache(pod).accuracy == {LEDGER: Accuracy(), EVENTS: Accuracy()}
    assert residency.cache(pod).ghost.room_tokens == 1600
    assert residency.of(pod, A) == Resident(500, LEDGER)


def test_blocks_are_as_long_as_the_pod_says() -> None:
    residency, pod = Residency(), decode_pod(block_size=128, num_blocks=100)
    assert learned(residency, pod, Expectation(500, None), 510, 600, 384) == {LEDGER: Verdict(0, "exact")}
    assert learned(residency, pod, Expectation(500, None), 510, 600, 256) == {LEDGER: Verdict(128, "exact")}


def test_what_was_cached_moves_the_ledgers_room() -> None:
    """B was used after A, 400 tokens; of A's 600 only 200 are left: together that is what the pod has room for."""
    residency, pod = Residency(), decode_pod()
    residency.used(pod, A, 600)
    residency.used(pod, B, 400)
    learned(residency, pod, residency.expect(pod, A), 600, 700, 208)
    assert residency.cache(pod).ghost.room_tokens == 608
    assert residency.of(pod, A) == Resident(208, LEDGER)


# Announcements that do not hold


def test_three_shortfalls_in_a_row_and_the_announcements_are_not_believed() -> None:
    residency, pod = Residency(), decode_pod()
    view = announcing(residency, pod, A, 10)
    for _ in range(SHORTFALLS - 1):
        learned(residency, pod, Expectation(160, 160), 170, 200, 0)
        assert residency.of(pod, A) == Resident(160, EVENTS)
    learned(residency, pod, Expectation(160, 160), 170, 200, 0)
    assert view.resident_tokens(A) is None
    assert (view.complete, view.lost) == (False, 1)
    assert residency.of(pod, A).source is LEDGER


def test_one_good_turn_in_between_and_they_are() -> None:
    residency, pod = Residency(), decode_pod()
    view = announcing(residency, pod, A, 10)
    for cached in (0, 0, 144, 0, 0):
        learned(residency, pod, Expectation(160, 160), 170, 200, cached)
    assert view.complete
    learned(residency, pod, Expectation(160, 160), 170, 200, 0)
    assert not view.complete


def test_more_than_announced_is_no_shortfall_and_neither_is_the_ledgers() -> None:
    residency, pod = Residency(), decode_pod()
    view = announcing(residency, pod, A, 10)
    for _ in range(2 * SHORTFALLS):
        learned(residency, pod, Expectation(160, 32), 170, 200, 160)
        learned(residency, pod, Expectation(160, None), 170, 200, 0)
    assert view.complete


def test_shortfalls_are_counted_anew_after_they_were_believed_and_after_a_restart() -> None:
    residency, pod = Residency(), decode_pod()
    view = announcing(residency, pod, A, 10)
    for _ in range(SHORTFALLS + SHORTFALLS - 1):
        learned(residency, pod, Expectation(160, 160), 170, 200, 0)
    assert view.lost == 1
    pod.replaced()
    learned(residency, pod, Expectation(160, 160), 170, 200, 0)
    assert view.lost == 1


def test_all_ranks_of_a_pod_are_distrusted_together() -> None:
    residency, pod = Residency(), decode_pod()
    views = [announcing(residency, pod, A, 10), announcing(residency, pod, A, 5, rank=1)]
    for _ in range(SHORTFALLS):
        learned(residency, pod, Expectation(160, 160), 170, 200, 0)
    assert [view.complete for view in views] == [False, False]


# Reports


def test_a_report_is_wanted_where_events_were_missed_and_the_session_is_unknown_since() -> None:
    residency, pod = Residency(), decode_pod()
    assert not residency.wants_report(pod, A), "no events"
    view = residency.view(pod, 0)
    assert not residency.wants_report(pod, A), "nothing heard: perhaps nothing is published"
    hear(view, A, 1, 2)
    assert not residency.wants_report(pod, B), "complete"
    view.lose(7)
    assert residency.wants_report(pod, A)
    hear(view, A, 1, 2)
    assert not residency.wants_report(pod, A), "known again"
    assert residency.wants_report(pod, B)
    view.cleared()
    assert not residency.wants_report(pod, B), "complete again"


def test_blocks_that_are_reported_again_count_once() -> None:
    residency, pod = Residency(), decode_pod()
    view = residency.view(pod, 0)
    hear(view, B, 1, 2)
    view.lose(7)
    hear(view, B, 1, 2)
    residency.expect_report(pod, A)
    hear(view, A, 1, 2)
    assert residency.of(pod, A) == Resident(32, EVENTS)
    view.removed([2])
    assert residency.of(pod, A) == Resident(16, EVENTS)


# Branches, and the end


def test_a_branch_has_what_its_parent_has_wherever_that_is() -> None:
    residency, first, second = Residency(), decode_pod(), Pod("p0", Role.PREFILL)
    announcing(residency, first, A, 3)
    residency.used(first, A, 50)
    residency.used(second, A, 40)
    residency.join(B, A)
    assert residency.of(first, B) == Resident(48, EVENTS)
    assert residency.expect(first, B) == Expectation(50, 48)
    assert residency.of(second, B) == Resident(40, LEDGER)
    assert residency.of(second, C) == Resident(0, LEDGER)


def test_a_branch_of_nothing_takes_no_place_in_the_ledger() -> None:
    residency, pod = Residency(), decode_pod()
    residency.used(pod, C, 10)
    residency.join(B, A)
    assert len(residency.cache(pod).ghost) == 1


def test_a_conversation_that_is_over_is_forgotten_everywhere() -> None:
    residency, first, second = Residency(), decode_pod(), Pod("p0", Role.PREFILL)
    view = announcing(residency, first, A, 3)
    residency.used(first, A, 50)
    residency.used(second, A, 40)
    residency.used(second, B, 30)
    residency.forget(A)
    assert not view.knows(A)
    assert residency.expect(first, A) == Expectation(0, 0)
    assert residency.of(second, A) == Resident(0, LEDGER)
    assert residency.of(second, B) == Resident(30, LEDGER)
    assert view.resident_blocks == 3, "its blocks are on the pod nevertheless"
