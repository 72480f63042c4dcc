"""What the store forgets, when, and that nothing of it is left in an index."""

from __future__ import annotations

import gc
import weakref

from gateway.core import conversations
from gateway.core.chains import Chain
from gateway.core.conversations import ConversationStore, Kind
from tests.core.support import chat, text
from tests.core.talks import HI, HI_2, HI_3, Desk


def test_the_least_recently_used_conversation_goes_first() -> None:
    desk = Desk(ConversationStore(2, 3600.0))
    one, two = desk.turn(chat("u:1")), desk.turn(chat("u:2"))
    desk.turn(chat("u:1", "a:hello", "u:more"))
    desk.turn(chat("u:3"))
    assert desk.store.get(two.conversation.key) is None
    assert desk.store.get(one.conversation.key) is one.conversation
    assert desk.turn(chat("u:2", "a:hello", "u:more")).kind is Kind.NEW
    desk.assert_nothing_is_left()


def test_a_store_of_one_holds_one() -> None:
    desk = Desk(ConversationStore(1, 3600.0))
    for number in range(5):
        desk.turn(chat(f"u:{number}"))
        assert len(desk.store) == 1
    desk.assert_nothing_is_left()


def test_a_conversation_is_forgotten_after_its_time_and_not_before() -> None:
    desk = Desk(ConversationStore(10, 60.0))
    first = desk.turn(HI)
    desk.now_s = 60.0
    second = desk.turn(HI_2, "there")
    assert second.conversation is first.conversation
    desk.now_s = 120.0
    assert desk.turn(HI_3, "bye").conversation is first.conversation
    desk.now_s = 180.1
    assert desk.turn(chat("u:hi", "a:hello", "u:more", "a:there", "u:again", "a:bye", "u:?")).kind is Kind.NEW
    desk.assert_nothing_is_left()


def test_a_request_under_an_id_keeps_its_conversation_alive() -> None:
    desk = Desk(ConversationStore(2, 60.0))
    for number, now_s in enumerate((0.0, 50.0, 100.0), start=1):
        desk.now_s = now_s
        assert desk.turn(None, name="c").turn == number
    desk.turn(chat("u:1"))
    desk.turn(None, name="c")
    desk.turn(chat("u:2"))
    assert desk.turn(None, name="c").turn == 5, "the other was used less recently"
    desk.assert_nothing_is_left()


def test_a_turn_that_ends_after_its_conversation_was_forgotten_leaves_no_trace() -> None:
    desk = Desk(ConversationStore(1, 60.0))
    slow = desk.ask(HI)
    quick = desk.turn(chat("u:other"))
    assert desk.store.get(slow.conversation.key) is None
    desk.answer(slow, HI)
    assert len(desk.store) == 1
    assert desk.ask(HI_2).kind is Kind.NEW
    assert desk.store.get(quick.conversation.key) is None
    desk.assert_nothing_is_left()


def test_a_failure_after_its_conversation_was_forgotten_does_not_hit_its_successor() -> None:
    desk = Desk(ConversationStore(1, 60.0))
    old = desk.ask(HI, "c")
    desk.turn(chat("u:other"))
    new = desk.turn(HI, name="c")
    assert new.conversation is not old.conversation
    assert new.conversation.key == old.conversation.key
    desk.store.fail(old.conversation)
    assert desk.store.get(new.conversation.key) is new.conversation
    desk.assert_nothing_is_left()


def test_only_the_last_64_turns_can_be_branched_from(desk: Desk) -> None:
    assert conversations.MAX_TRACES == 64
    messages = ["u:0"]
    for number in range(1, 71):
        desk.turn(chat(*messages), f"r{number}")
        messages += [f"a:r{number}", f"u:{number}"]
    # 70 turns; turns 7 to 70 are remembered.
    forgotten = desk.turn(chat(*messages[: 2 * 6 - 1], "a:r6", "u:other"))
    known = desk.turn(chat(*messages[: 2 * 7 - 1], "a:r7", "u:other"))
    assert forgotten.kind is Kind.NEW
    assert (known.kind, known.turn) == (Kind.BRANCH, 8)


def test_a_repeated_turn_takes_one_place_only(desk: Desk) -> None:
    desk.turn(HI)
    for _ in range(100):
        last = desk.turn(HI_2, "there")
    assert len(last.conversation.traces) == 2


def test_of_many_conversations_that_begin_alike_the_last_32_can_be_told_apart(desk: Desk) -> None:
    assert conversations.MAX_ALIKE == 32
    first = [desk.turn(HI, f"r{number}") for number in range(40)]
    # r0 to r7 are forgotten, r8 to r39 are known.
    lost = desk.turn(chat("u:hi", "a:r7", "u:more"))
    assert lost.kind is Kind.BRANCH
    for number in (8, 39):
        known = desk.turn(chat("u:hi", f"a:r{number}", "u:more"))
        assert (known.kind, known.conversation is first[number].conversation) == (Kind.NEXT, True)


def test_every_index_is_empty_after_all_was_forgotten() -> None:
    desk = Desk(ConversationStore(20, 60.0))
    for number in range(100):
        prompts: list[Chain] = [chat(f"u:{number % 7}"), text("x" * (number * 37 % 3000))]
        for prompt in prompts:
            desk.turn(prompt, f"r{number}")
        desk.turn(chat(f"u:{number % 7}", f"a:r{number}", "u:more"))
        desk.turn(chat(f"u:{number % 7}", "a:unheard of", f"u:{number}"), name=f"c{number % 3}")
        desk.now_s += 1
    assert desk.store._by_prompt
    assert desk.store._lengths
    desk.assert_nothing_is_left()


def test_lengths_are_counted_so_that_one_of_two_may_go() -> None:
    desk = Desk(ConversationStore(1000, 60.0))
    desk.turn(text("Once"), " upon")
    desk.now_s = 30.0
    second = desk.turn(text("Once"), " more")
    desk.now_s = 70.0
    third = desk.turn(text("Once more again"))
    assert len(desk.store) == 1, "the first was forgotten"
    assert third.conversation is second.conversation
    desk.assert_nothing_is_left()


def test_looking_up_a_conversation_does_not_keep_it_alive() -> None:
    desk = Desk(ConversationStore(10, 60.0))
    first = desk.turn(HI)
    desk.now_s = 59.0
    assert desk.store.get(first.conversation.key) is first.conversation
    desk.now_s = 61.0
    desk.turn(chat("u:other"))
    assert desk.store.get(first.conversation.key) is None
    desk.assert_nothing_is_left()


class Watched(str):
    """A pod's URL whose end can be seen, and with it that of the conversation that has it."""

    __slots__ = ("__weakref__",)


def test_what_is_forgotten_is_freed_though_the_garbage_collector_does_not_know_it() -> None:
    desk = Desk(ConversationStore(10, 60.0))
    watched: list[weakref.ref[Watched]] = []

    def turn(*messages: str) -> None:
        url = Watched("http://p")
        watched.append(weakref.ref(url))
        desk.turn(chat(*messages), messages[-1], prefill=url)

    gc.disable()  # it must not be needed
    try:
        for number in range(50):
            turn("u:hi")
            turn("u:hi", "a:u:hi", f"u:{number}")
            turn("u:hi", "a:of old", f"u:{number}")
        alive = [each for each in watched if each() is not None]
        assert 0 < len(alive) <= 10
        desk.assert_nothing_is_left()
        assert [each for each in alive if each() is not None] == []
    finally:
        gc.enable()
