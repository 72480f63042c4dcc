"""Who is talking, and which turn it is."""

from __future__ import annotations

import pytest

from gateway.core.conversations import Kind
from tests.core.support import OTHER_TENANT, chat, key, text
from tests.core.talks import HI, HI_2, HI_3, Desk

# One user


def test_the_first_request_is_a_new_conversation(desk: Desk) -> None:
    recognition = desk.ask(HI)
    assert (recognition.kind, recognition.turn) == (Kind.NEW, 1)
    conversation = recognition.conversation
    assert conversation.key == key(1)
    assert (conversation.turn, conversation.epoch, conversation.context_tokens, conversation.pending) == (0, 0, 0, 1)
    assert (conversation.prefill, conversation.decode, conversation.last_route) == (None, None, None)


def test_a_request_that_extends_an_answered_one_is_the_next_turn(desk: Desk) -> None:
    first = desk.turn(HI)
    second = desk.turn(HI_2, "there")
    third = desk.turn(HI_3)
    assert [(r.kind, r.turn) for r in (first, second, third)] == [(Kind.NEW, 1), (Kind.NEXT, 2), (Kind.NEXT, 3)]
    assert first.conversation is second.conversation is third.conversation
    assert len(desk.store) == 1


def test_a_completions_prompt_is_extended_by_text(desk: Desk) -> None:
    story = "Once upon a time. " * 100
    first = desk.turn(text(story), "There was a king.")
    second = desk.turn(text(story + "There was a king. And then?"), "He died.")
    third = desk.turn(text(story + "There was a king. And then?He died. Sad."))
    assert [(r.kind, r.turn) for r in (first, second, third)] == [(Kind.NEW, 1), (Kind.NEXT, 2), (Kind.NEXT, 3)]
    assert first.conversation is third.conversation


def test_what_the_turn_left_behind_is_remembered(desk: Desk) -> None:
    recognition = desk.ask(HI)
    desk.answer(recognition, HI, prompt=100, output=20, decode="d1", epoch=3, route="local", prompt_bytes=420)
    conversation = recognition.conversation
    assert (conversation.turn, conversation.prefill, conversation.decode) == (1, "p0", "d1")
    assert (conversation.epoch, conversation.context_tokens, conversation.pending) == (3, 120, 0)
    assert (conversation.last_route, conversation.recent_outputs, conversation.prompt_bytes) == ("local", (20,), 420)


def test_the_lengths_of_the_last_five_answers_are_remembered(desk: Desk) -> None:
    for tokens in (10, 20, 0, 30, 40, 50, 60):
        recognition = desk.ask(None, "c")
        desk.answer(recognition, None, output=tokens)
    assert recognition.conversation.recent_outputs == (20, 30, 40, 50, 60), "0 means that the pod did not say"


def test_the_last_four_decode_pods_are_remembered_the_last_one_first(desk: Desk) -> None:
    chain, homes = chat("hi"), []
    for decode in ("d0", "d0", "d1", "d0", "d2", "d3", "d4", "d4"):
        homes.append(desk.turn(chain, name="id", decode=decode).conversation.homes)
    assert homes == [
        ("d0",),
        ("d0",),
        ("d1", "d0"),
        ("d0", "d1"),
        ("d2", "d0", "d1"),
        ("d3", "d2", "d0", "d1"),
        ("d4", "d3", "d2", "d0"),
        ("d4", "d3", "d2", "d0"),
    ]


def test_the_same_answer_to_the_same_prompt_is_one_turn_to_go_on_from(desk: Desk) -> None:
    chain = chat("hi")
    for reply, traces in (("one", 1), ("two", 2), ("one", 2), ("two", 2), (None, 3), (None, 3)):
        conversation = desk.turn(chain, reply, name="id").conversation
        assert len(conversation.traces) == traces
        assert conversation.traces[-1].reply_head == (None if reply is None else reply.encode())
    assert list(desk.store.traces_of(chain.whole)) == list(conversation.traces)


def test_a_turn_on_a_decode_pod_alone_keeps_the_prefill_pod_of_before(desk: Desk) -> None:
    desk.turn(HI)
    second = desk.ask(HI_2)
    desk.answer(second, HI_2, prefill=None, route="local")
    assert second.conversation.prefill == "p0"


def test_history_that_the_client_shortened_is_a_new_conversation(desk: Desk) -> None:
    desk.turn(HI)
    desk.turn(HI_2, "there")
    assert desk.turn(chat("u:more", "a:there", "u:again")).kind is Kind.NEW


def test_a_reply_that_was_not_seen_is_taken_on_trust(desk: Desk) -> None:
    first = desk.turn(HI, None)
    assert desk.turn(HI_2).conversation is first.conversation


def test_a_client_that_leaves_out_the_reply_gets_a_branch(desk: Desk) -> None:
    desk.turn(HI)
    recognition = desk.turn(chat("u:hi", "u:more"))
    assert (recognition.kind, recognition.turn) == (Kind.BRANCH, 2)


def test_a_request_without_a_readable_prompt_is_a_new_conversation(desk: Desk) -> None:
    desk.turn(HI)
    recognition = desk.turn(None)
    assert (recognition.kind, recognition.turn) == (Kind.NEW, 1)
    assert len(desk.store) == 2


# Two users who begin alike


def test_equal_first_messages_of_two_tenants_never_meet(desk: Desk) -> None:
    ours = desk.turn(HI)
    theirs_1, theirs_2 = chat("u:hi", root=OTHER_TENANT), chat("u:hi", "a:hello", "u:more", root=OTHER_TENANT)
    theirs = desk.ask(theirs_1, root=OTHER_TENANT)
    desk.answer(theirs, theirs_1)
    assert theirs.conversation is not ours.conversation
    their_second = desk.ask(theirs_2, root=OTHER_TENANT)
    desk.answer(their_second, theirs_2)
    our_second = desk.turn(HI_2)
    assert their_second.conversation is theirs.conversation
    assert our_second.conversation is ours.conversation


@pytest.mark.parametrize("at_once", [False, True])
def test_two_users_with_the_same_first_message_have_two_conversations(desk: Desk, at_once: bool) -> None:
    one = desk.ask(HI)
    if not at_once:
        desk.answer(one, HI, "hello")
    two = desk.ask(HI)
    desk.answer(two, HI, "good day")
    if at_once:
        desk.answer(one, HI, "hello")
    assert (two.kind, two.turn) == (Kind.NEW, 1)
    assert one.conversation is not two.conversation


@pytest.mark.parametrize("last_to_begin_goes_first", [False, True])
def test_their_replies_tell_them_apart_on_turn_two(desk: Desk, last_to_begin_goes_first: bool) -> None:
    one, two = desk.turn(HI, "hello"), desk.turn(HI, "good day")
    prompts = [(one, chat("u:hi", "a:hello", "u:more")), (two, chat("u:hi", "a:good day", "u:more"))]
    for first, prompt in reversed(prompts) if last_to_begin_goes_first else prompts:
        second = desk.turn(prompt)
        assert (second.kind, second.turn) == (Kind.NEXT, 2)
        assert second.conversation is first.conversation


def test_their_texts_tell_them_apart_as_well(desk: Desk) -> None:
    one, two = desk.turn(text("Once"), " upon"), desk.turn(text("Once"), " more")
    assert desk.turn(text("Once upon a time")).conversation is one.conversation
    assert desk.turn(text("Once more with feeling")).conversation is two.conversation


@pytest.mark.parametrize("at_once", [False, True])
def test_equal_replies_do_not_make_them_share_a_record_either(desk: Desk, at_once: bool) -> None:
    """Temperature 0 makes equal first replies the rule; tool calls without text have equal heads always."""
    first = {desk.turn(HI, "hello").conversation.key for _ in range(2)}
    prompts = [chat("u:hi", "a:hello", f"u:{word}") for word in ("one", "two")]
    if at_once:
        second = [desk.ask(prompt) for prompt in prompts]
        for recognition, prompt in zip(second, prompts, strict=True):
            desk.answer(recognition, prompt)
    else:
        second = [desk.turn(prompt) for prompt in prompts]
    assert [(recognition.kind, recognition.turn) for recognition in second] == [(Kind.NEXT, 2)] * 2
    assert {recognition.conversation.key for recognition in second} == first


def test_a_third_with_the_same_words_gets_a_branch(desk: Desk) -> None:
    desk.turn(HI, "hello")
    running = desk.ask(HI_2)
    other = desk.ask(chat("u:hi", "a:hello", "u:other"))
    assert (running.kind, other.kind, other.turn) == (Kind.NEXT, Kind.BRANCH, 2)
    assert other.conversation is not running.conversation
    assert other.conversation.context_tokens == 120
    desk.answer(running, HI_2)
    desk.answer(other, chat("u:hi", "a:hello", "u:other"))


def test_a_stranger_to_both_gets_a_branch(desk: Desk) -> None:
    desk.turn(HI, "hello")
    desk.turn(HI, "good day")
    recognition = desk.turn(chat("u:hi", "a:something else", "u:more"))
    assert (recognition.kind, recognition.turn) == (Kind.BRANCH, 2)
    assert recognition.conversation.context_tokens == 120
    assert len(desk.store) == 3


# Explicit ids


def test_an_explicit_id_wins_over_the_words(desk: Desk) -> None:
    first = desk.turn(chat("u:one"), name="c")
    second = desk.turn(chat("u:entirely", "a:different", "u:words"), name="c")
    assert (first.kind, second.kind, second.turn) == (Kind.NEW, Kind.NEXT, 2)
    assert first.conversation is second.conversation


def test_two_explicit_ids_are_two_conversations_whatever_they_say(desk: Desk) -> None:
    one, two = desk.turn(HI, name="c"), desk.turn(HI, name="d")
    assert one.conversation is not two.conversation
    assert desk.turn(HI_2, name="c").conversation is one.conversation
    assert desk.turn(HI_2, name="d").conversation is two.conversation


def test_the_same_id_of_two_tenants_is_two_conversations(desk: Desk) -> None:
    ours, theirs = desk.ask(HI, "c"), desk.ask(chat("u:hi", root=OTHER_TENANT), "c", root=OTHER_TENANT)
    assert theirs.kind is Kind.NEW
    assert ours.conversation is not theirs.conversation
    assert ours.conversation.key != theirs.conversation.key
    desk.store.fail(ours.conversation)
    desk.store.fail(theirs.conversation)


def test_the_key_of_an_explicit_id_is_the_same_in_every_gateway(desk: Desk) -> None:
    other = Desk()
    ours, theirs = desk.ask(HI, "c"), other.ask(HI_2, "c")
    assert ours.conversation.key == theirs.conversation.key
    assert len(ours.conversation.key) == 16
    desk.store.fail(ours.conversation)


def test_the_same_prompt_under_an_id_repeats_the_turn(desk: Desk) -> None:
    desk.turn(HI, name="c")
    desk.turn(HI_2, "there", name="c")
    again = desk.turn(HI_2, name="c")
    assert (again.kind, again.turn) == (Kind.REPEAT, 2)


def test_an_id_without_a_readable_prompt_still_counts_turns(desk: Desk) -> None:
    assert [desk.turn(None, name="c").turn for _ in range(3)] == [1, 2, 3]


def test_under_an_id_with_nothing_to_compare_all_is_taken_for_shared(desk: Desk) -> None:
    first = desk.turn(None, name="c")
    assert desk.turn(HI_2, name="c").shared_tokens == 120
    assert desk.turn(None, name="c").shared_tokens == 120
    assert desk.turn(chat("u:else"), name="c").shared_tokens == 0
    assert first.shared_tokens == 0


def test_two_requests_of_an_id_at_once_are_both_turn_one_of_one_conversation(desk: Desk) -> None:
    one, two = desk.ask(HI, "c"), desk.ask(HI, "c")
    assert (one.turn, two.turn) == (1, 1)
    assert one.conversation is two.conversation
    assert one.conversation.pending == 2
    desk.store.fail(one.conversation)
    assert len(desk.store) == 1, "the other is still on its way"
    desk.answer(two, HI)
    assert two.conversation.turn == 1


def test_a_conversation_under_an_id_can_be_gone_on_with_without_it(desk: Desk) -> None:
    first = desk.turn(HI, name="c")
    assert desk.turn(HI_2).conversation is first.conversation


# Failures


def test_a_first_turn_that_failed_leaves_nothing(desk: Desk) -> None:
    desk.store.fail(desk.ask(HI).conversation)
    assert len(desk.store) == 0
    assert desk.turn(HI).kind is Kind.NEW


def test_a_branch_that_failed_leaves_nothing(desk: Desk) -> None:
    desk.turn(HI)
    desk.turn(HI_2, "there")
    desk.store.fail(desk.ask(chat("u:hi", "a:hello", "u:other")).conversation)
    assert len(desk.store) == 1


def test_a_later_turn_that_failed_does_not_count(desk: Desk) -> None:
    first = desk.turn(HI)
    conversation = first.conversation
    before = (conversation.turn, conversation.decode, conversation.context_tokens, len(conversation.traces))
    desk.store.fail(desk.ask(HI_2).conversation)
    assert (conversation.turn, conversation.decode, conversation.context_tokens, len(conversation.traces)) == before
    again = desk.turn(HI_2)
    assert (again.kind, again.turn) == (Kind.NEXT, 2)


def test_pods_are_reserved_for_a_first_turn_and_only_for_it(desk: Desk) -> None:
    first = desk.ask(HI, "c")
    desk.store.bind(first.conversation, "p1", "d1")
    assert (first.conversation.prefill, first.conversation.decode) == ("p1", "d1")
    desk.store.bind(first.conversation, "p2", "d2")
    assert first.conversation.decode == "d1", "the first reservation holds"
    desk.answer(first, HI)
    desk.store.bind(first.conversation, "p3", "d3")
    assert first.conversation.decode == "d0", "where it was really served"


def test_the_store_keeps_no_text() -> None:
    """What is kept of a prompt are hashes; grep a whole store for the words."""
    desk = Desk()
    desk.turn(chat("u:very secret words"))
    desk.turn(text("very secret words"))
    kept = repr([(c, c.traces) for c in desk.store._by_key.values()]) + repr(desk.store._lengths)
    assert "secret" not in kept
