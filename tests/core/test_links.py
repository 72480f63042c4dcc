"""Going on from an answer by its id, without sending the history."""

from __future__ import annotations

import msgspec
import pytest

from gateway.core import links
from gateway.core.conversations import ConversationStore, Kind, Recognition
from tests.core.support import OTHER_TENANT, ROOT, chat, key, result


class Desk:
    """A store and its running numbers."""

    def __init__(self, most: int = 1000) -> None:
        self.store = ConversationStore(most, 3600.0)
        self.keys = 0
        self.now_s = 0.0

    def ask(self, previous: str | None, root: bytes = ROOT) -> Recognition:
        self.keys += 1
        recognition = self.store.recognise(root, None, None, key(self.keys), self.now_s, previous)
        self.store.begin(recognition.conversation)
        return recognition

    def answer(
        self, recognition: Recognition, response_id: str, prompt: int = 100, root: bytes = ROOT, reasoned: bool = False
    ) -> None:
        self.store.finish(recognition, None, result(prompt=prompt, output=20, reasoned=reasoned))
        self.store.link(recognition.conversation, root, response_id)

    def turn(self, previous: str | None, response_id: str, prompt: int = 100) -> Recognition:
        recognition = self.ask(previous)
        self.answer(recognition, response_id, prompt)
        return recognition


def short(recognition: Recognition, first: Recognition) -> tuple[Kind, int, int, bool]:
    same = recognition.conversation is first.conversation
    return recognition.kind, recognition.turn, recognition.shared_tokens, same


def test_a_request_goes_on_from_the_answer_it_names() -> None:
    desk = Desk()
    first = desk.turn(None, "resp_1")
    assert short(desk.turn("resp_1", "resp_2", 200), first) == (Kind.NEXT, 2, 120, True)
    assert short(desk.turn("resp_2", "resp_3", 300), first) == (Kind.NEXT, 3, 220, True)


def test_going_on_from_an_earlier_answer_is_a_branch() -> None:
    desk = Desk()
    first = desk.turn(None, "resp_1")
    desk.turn("resp_1", "resp_2", 200)
    branch = desk.turn("resp_1", "resp_2b", 250)
    assert short(branch, first) == (Kind.BRANCH, 2, 120, False)
    assert branch.parent == first.conversation.key
    assert short(desk.turn("resp_2b", "resp_3b"), branch) == (Kind.NEXT, 3, 270, True)
    assert short(desk.turn("resp_2", "resp_3"), first) == (Kind.NEXT, 3, 220, True)


def test_two_at_once_from_one_answer_are_two_conversations() -> None:
    desk = Desk()
    first = desk.turn(None, "resp_1")
    one, two = desk.ask("resp_1"), desk.ask("resp_1")
    assert short(one, first) == (Kind.NEXT, 2, 120, True)
    assert short(two, first) == (Kind.BRANCH, 2, 120, False)


def test_reasoning_of_the_answer_is_not_shared() -> None:
    desk = Desk()
    first = desk.ask(None)
    desk.answer(first, "resp_1", reasoned=True)
    assert short(desk.ask("resp_1"), first) == (Kind.NEXT, 2, 100, True)


def test_an_answer_nobody_knows_begins_a_new_conversation() -> None:
    desk = Desk()
    first = desk.turn(None, "resp_1")
    assert short(desk.ask("resp_7"), first) == (Kind.NEW, 1, 0, False)


def test_an_id_of_another_tenant_is_unknown() -> None:
    desk = Desk()
    first = desk.turn(None, "resp_1")
    theirs = desk.ask("resp_1", OTHER_TENANT)
    assert short(theirs, first) == (Kind.NEW, 1, 0, False)
    desk.answer(theirs, "resp_1", root=OTHER_TENANT)
    assert short(desk.ask("resp_1"), first) == (Kind.NEXT, 2, 120, True)
    assert short(desk.ask("resp_1", OTHER_TENANT), theirs) == (Kind.NEXT, 2, 120, True)


def test_an_explicit_id_wins_over_the_answer() -> None:
    desk = Desk()
    desk.turn(None, "resp_1")
    assert desk.store.recognise(ROOT, "c", None, key(9), 0.0, "resp_1").kind is Kind.NEW


def test_with_an_answer_named_the_chain_is_not_looked_up() -> None:
    """The input alone is no prompt: other conversations may begin with the same words."""
    desk = Desk()
    whole = chat("u:hi")
    recognition = desk.store.recognise(ROOT, None, whole, key(1), 0.0)
    desk.store.begin(recognition.conversation)
    desk.store.finish(recognition, whole, result())
    longer = chat("u:hi", "a:hello", "u:more")
    assert desk.store.recognise(ROOT, None, longer, key(2), 0.0, "resp_lost").kind is Kind.NEW


def test_links_go_with_their_conversation() -> None:
    desk = Desk(most=1)
    desk.turn(None, "resp_1")
    other = desk.turn(None, "resp_2")
    assert len(desk.store._links) == 1
    assert short(desk.ask("resp_2"), other) == (Kind.NEXT, 2, 120, True)
    assert desk.ask("resp_1").kind is Kind.NEW
    desk.now_s = 4000.0
    desk.ask(None)
    assert len(desk.store._links) == 0


def test_an_answer_of_a_conversation_that_is_gone_is_not_remembered() -> None:
    desk = Desk(most=1)
    slow = desk.ask(None)
    desk.turn(None, "resp_2")
    desk.answer(slow, "resp_1")
    assert len(desk.store._links) == 1


def test_the_last_64_answers_of_a_conversation_are_known() -> None:
    assert links.MAX_LINKS == 64
    desk = Desk()
    first = desk.turn(None, "resp_1")
    for number in range(1, 100):
        desk.turn(f"resp_{number}", f"resp_{number + 1}")
    assert (len(desk.store._links), len(first.conversation.responses)) == (64, 64)
    assert desk.ask("resp_36").kind is Kind.NEW
    assert desk.ask("resp_37").kind is Kind.BRANCH
    assert short(desk.ask("resp_100"), first) == (Kind.NEXT, 101, 120, True)


@pytest.mark.parametrize("same_conversation", [True, False])
def test_an_id_that_is_given_twice_means_the_last_answer(same_conversation: bool) -> None:
    desk = Desk()
    first = desk.turn(None, "resp")
    second = desk.turn("resp" if same_conversation else None, "resp", 200)
    assert short(desk.ask("resp"), second) == (Kind.NEXT, second.turn + 1, 220, True)
    assert len(desk.store._links) == 1
    assert len(first.conversation.responses) == (1 if same_conversation else 0)


def test_a_link_knows_the_pod_that_gave_the_answer_though_the_conversation_moves_on() -> None:
    desk = Desk()
    first = desk.turn(None, "r1")
    decode = first.conversation.decode
    desk.store.bind(first.conversation, None, "elsewhere")
    second = desk.ask("r1")
    desk.store.finish(second, None, msgspec.structs.replace(result(prompt=140, output=20), decode="elsewhere"))
    desk.store.link(second.conversation, ROOT, "r2")
    found = [desk.store.links.find(ROOT, name) for name in ("r1", "r2")]
    assert [link.pod for link in found if link is not None] == [decode, "elsewhere"]
