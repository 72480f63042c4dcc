"""A turn that is asked again, and turns that leave the trunk."""

from __future__ import annotations

from gateway.core.conversations import Kind
from tests.core.support import chat
from tests.core.talks import HI, HI_2, HI_3, Desk


def test_a_first_turn_that_is_asked_again_is_a_new_conversation(desk: Desk) -> None:
    """Nothing is lost by it, and it may well be another user."""
    first = desk.turn(HI)
    again = desk.turn(HI)
    assert (again.kind, again.turn) == (Kind.NEW, 1)
    assert again.conversation is not first.conversation


def test_a_first_turn_with_examples_of_replies_is_new_each_time(desk: Desk) -> None:
    shots = chat("s:translate", "u:cat", "a:chat", "u:dog")
    assert [desk.turn(shots).kind for _ in range(3)] == [Kind.NEW] * 3


def test_a_later_turn_that_is_asked_again_repeats_it(desk: Desk) -> None:
    first = desk.turn(HI)
    desk.turn(HI_2, "there")
    again = desk.turn(HI_2, "no, there")
    assert (again.kind, again.turn) == (Kind.REPEAT, 2)
    assert again.conversation is first.conversation
    assert again.conversation.turn == 2


def test_the_turn_behind_a_repeat_follows_the_new_reply(desk: Desk) -> None:
    first = desk.turn(HI)
    desk.turn(HI_2, "there")
    desk.turn(HI_2, "no, there")
    third = desk.turn(chat("u:hi", "a:hello", "u:more", "a:no, there", "u:again"))
    assert (third.kind, third.turn) == (Kind.NEXT, 3)
    assert third.conversation is first.conversation


def test_a_repeat_while_the_first_try_is_in_flight_is_a_branch(desk: Desk) -> None:
    first = desk.turn(HI)
    desk.turn(HI_2, "there")
    running, again = desk.ask(HI_2), desk.ask(HI_2)
    assert (running.kind, again.kind, again.turn) == (Kind.REPEAT, Kind.BRANCH, 2)
    assert running.conversation is first.conversation
    assert again.conversation is not first.conversation
    desk.answer(running, HI_2, "there")
    desk.answer(again, HI_2, "there")


def test_asking_again_an_older_turn_is_a_branch(desk: Desk) -> None:
    first = desk.turn(HI)
    desk.turn(HI_2, "there")
    desk.turn(HI_3)
    older = desk.turn(HI_2, "elsewhere")
    assert (older.kind, older.turn) == (Kind.BRANCH, 2)
    assert older.conversation is not first.conversation


def test_an_edited_message_falls_on_the_longest_prefix_that_is_still_shared(desk: Desk) -> None:
    first = desk.ask(HI)
    desk.answer(first, HI, "hello", prompt=100, output=20)
    second = desk.ask(HI_2)
    desk.answer(second, HI_2, "there", prompt=200, output=30)
    desk.turn(HI_3)
    edited = desk.ask(chat("u:hi", "a:hello", "u:MORE"))
    assert (edited.kind, edited.turn) == (Kind.BRANCH, 2)
    assert edited.conversation.context_tokens == 120, "all of turn 1 with its reply"
    desk.answer(edited, chat("u:hi", "a:hello", "u:MORE"))
    later = desk.ask(chat("u:hi", "a:hello", "u:more", "a:there", "u:AGAIN"))
    assert (later.kind, later.turn) == (Kind.BRANCH, 3)
    assert later.shared_tokens == 230, "all of turn 2 with its reply"
    desk.store.fail(later.conversation)


def test_an_edited_reply_shares_only_the_prompt_before_it(desk: Desk) -> None:
    first = desk.ask(HI)
    desk.answer(first, HI, "hello", prompt=100, output=20)
    edited = desk.ask(chat("u:hi", "a:HELLO", "u:more"))
    assert (edited.kind, edited.turn) == (Kind.BRANCH, 2)
    assert edited.conversation.context_tokens == 100
    desk.store.fail(edited.conversation)


def test_an_edited_first_message_is_a_new_conversation(desk: Desk) -> None:
    desk.turn(HI)
    desk.turn(HI_2, "there")
    assert desk.turn(chat("u:HI", "a:hello", "u:more")).kind is Kind.NEW


def test_a_branch_is_a_copy_that_knows_its_parents_pods_and_leaves_the_parent_alone(desk: Desk) -> None:
    first = desk.ask(HI)
    desk.answer(first, HI, "hello", epoch=4)
    desk.turn(HI_2, "there")
    parent = first.conversation
    before = (parent.turn, parent.decode, parent.context_tokens, parent.pending)
    branch = desk.ask(chat("u:hi", "a:hello", "u:other")).conversation
    assert (branch.turn, branch.prefill, branch.decode, branch.epoch) == (0, "p0", "d0", parent.epoch)
    assert (branch.last_route, branch.recent_outputs) == ("pd", (20, 20))
    assert branch.key != parent.key
    desk.store.fail(branch)
    assert (parent.turn, parent.decode, parent.context_tokens, parent.pending) == before


def test_a_branch_goes_on_as_a_conversation_of_its_own(desk: Desk) -> None:
    first = desk.turn(HI)
    desk.turn(HI_2, "there")
    branch = desk.turn(chat("u:hi", "a:hello", "u:other"), "sure")
    on_the_branch = desk.turn(chat("u:hi", "a:hello", "u:other", "a:sure", "u:next"))
    on_the_trunk = desk.turn(HI_3)
    assert on_the_branch.conversation is branch.conversation
    assert on_the_trunk.conversation is first.conversation
    assert (on_the_branch.turn, on_the_trunk.turn) == (3, 3)
