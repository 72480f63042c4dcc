"""Who is talking, and which turn it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypedDict, Unpack

import pytest

from gateway.core import conversations
from gateway.core.chains import Chain
from gateway.core.conversations import ConversationStore, Kind, Recognition
from tests.core.support import OTHER_TENANT, ROOT, chat, key, result, text


class Left(TypedDict, total=False):
    """What else a turn may leave behind."""

    prompt: int
    output: int
    prefill: str | None
    decode: str
    epoch: int
    route: str
    prompt_bytes: int


@dataclass
class Desk:
    """A store with its own running numbers for keys, and a clock that stands still until it is told."""

    store: ConversationStore = field(default_factory=lambda: ConversationStore(1000, 3600.0))
    now_s: float = 0.0
    keys: int = 0

    def ask(self, chain: Chain | None, name: str | None = None, root: bytes = ROOT) -> Recognition:
        """A request comes in and goes out."""
        self.keys += 1
        recognition = self.store.recognise(root, name, chain, key(self.keys), self.now_s)
        self.store.begin(recognition.conversation)
        return recognition

    def answer(
        self, recognition: Recognition, chain: Chain | None, reply: str | None = "hello", **more: Unpack[Left]
    ) -> None:
        self.store.finish(recognition, chain, result(reply, **more))

    def turn(self, chain: Chain | None, reply: str | None = "hello", name: str | None = None) -> Recognition:
        """A request and its answer."""
        recognition = self.ask(chain, name)
        self.answer(recognition, chain, reply)
        return recognition

    def assert_nothing_is_left(self) -> None:
        """Once everything is too old, every index is empty."""
        self.now_s += self.store.ttl_s + 1
        self.store.fail(self.ask(None).conversation)
        assert len(self.store) == 0
        assert (self.store._by_key, self.store._by_prompt, self.store._lengths) == ({}, {}, {})


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.assert_nothing_is_left()


HI = chat("u:hi")
HI_2 = chat("u:hi", "a:hello", "u:more")
HI_3 = chat("u:hi", "a:hello", "u:more", "a:there", "u:again")


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


# Repeats and branches


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


# Forgetting


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


def test_the_store_keeps_no_text() -> None:
    """What is kept of a prompt are hashes; grep a whole store for the words."""
    desk = Desk()
    desk.turn(chat("u:very secret words"))
    desk.turn(text("very secret words"))
    kept = repr([(c, c.traces) for c in desk.store._by_key.values()]) + repr(desk.store._lengths)
    assert "secret" not in kept
