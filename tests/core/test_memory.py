"""Records of conversations: a store that was written down and put back answers as before."""

from __future__ import annotations

import random

import msgspec
import pytest

from gateway.core import conversations
from gateway.core.conversations import ConversationStore, Kind
from gateway.core.memory import LOST_EPOCH, ConversationRecord, Home, Memory
from gateway.core.pods import Fleet, PodFacts
from gateway.core.residency import Residency
from tests.core.support import OTHER_TENANT, ROOT, chat, fleet, key, pod, result
from tests.core.test_conversations_model import MAX_ALIKE, MAX_CONVERSATIONS, MAX_TRACES, TTL_S, World


def pods(**instances: str) -> Fleet:
    """p0, d0 and d1, as the processes named; unnamed ones do not tell."""
    made = fleet("p0", "d0", "d1")
    for url, instance in instances.items():
        pod(made, url).facts = PodFacts(instance=instance)
    return made


def memory(of: Fleet | None = None, store: ConversationStore | None = None) -> Memory:
    store = ConversationStore(100, 3600.0) if store is None else store
    return Memory(store, of or pods(p0="a", d0="b", d1="c"), Residency())


def written(of: Memory, now_s: float) -> list[ConversationRecord]:
    """Every conversation, through bytes and back."""
    keys = of.store.keys()
    found = [of.store.get(each) for each in keys]
    records = [of.record(known, now_s) for known in found if known is not None and known.turn]
    records.sort(key=lambda record: -record.age_s)
    return msgspec.msgpack.decode(msgspec.msgpack.encode(records), type=list[ConversationRecord])


@pytest.mark.parametrize("is_text", [False, True], ids=["chat", "text"])
@pytest.mark.parametrize("seed", range(4))
def test_a_store_put_back_recognises_as_the_one_before(
    seed: int, is_text: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversations, "MAX_TRACES", MAX_TRACES)
    monkeypatch.setattr(conversations, "MAX_ALIKE", MAX_ALIKE)
    world = World(random.Random(seed), is_text)
    for _ in range(600):
        world.step()
    for user in world.users:
        if user.waiting is not None:
            world.answer(user)
    before = world.store
    after = ConversationStore(MAX_CONVERSATIONS, TTL_S)
    restored = memory(store=after)
    for record in written(memory(store=before), world.now_s):
        restored.put_back(record, world.now_s)
    after.sort_alike()
    assert list(after._by_key) == list(before._by_key)
    kinds: set[Kind] = set()
    for number in range(400):
        user = world.dice.choice(world.users)
        prompt = (user.tenant, *world.typed(user))
        root, chain = ROOT if user.tenant == "one" else OTHER_TENANT, world.chain(prompt)
        reply = world.reply()
        answers = []
        for store in (before, after):
            found = store.recognise(root, None, chain, key(10**9 + number), world.now_s)
            store.begin(found.conversation)
            known = found.conversation
            answers.append((found.kind, found.turn, found.shared_tokens, found.parent, known.key, known.recent_outputs))
            store.finish(found, chain, result(reply if is_text else reply[2:]))
        assert answers[0] == answers[1]
        kinds.add(answers[0][0])
        user.screen = (*prompt[1:], reply)
        world.now_s += 0.1
    assert kinds == set(Kind)


def one_turn(of: Memory, *, decode: str = "d0", now_s: float = 0.0) -> bytes:
    """A conversation of one turn on that pod; its key."""
    store = of.store
    found = store.recognise(ROOT, None, chat("one"), key(1), now_s)
    store.begin(found.conversation)
    store.finish(found, chat("one"), result(decode=decode, epoch=pod(of._fleet, decode).epoch))
    of._residency.used(pod(of._fleet, decode), key(1), 120)
    of._residency.used(pod(of._fleet, "p0"), key(1), 100)
    return key(1)


def test_what_lies_in_a_pod_s_cache_is_remembered_with_the_pod_s_process() -> None:
    before = memory()
    one_turn(before)
    (record,) = written(before, 5.0)
    assert (record.prefill, record.homes) == (Home("p0", "a", 100), (Home("d0", "b", 120),))
    assert record.age_s == 5.0
    after = memory()
    after.put_back(record, 1000.0)
    found = after.store.recognise(ROOT, None, chat("one", "a:hello", "two"), key(2), 1001.0)
    assert (found.kind, found.turn, found.shared_tokens) == (Kind.NEXT, 2, 120)
    assert (found.conversation.decode, found.conversation.epoch) == ("d0", 0)
    assert after._residency.of(pod(after._fleet, "d0"), key(1)).tokens == 120
    assert after._residency.of(pod(after._fleet, "p0"), key(1)).tokens == 100


@pytest.mark.parametrize(
    ("then", "now"),
    [("b", "another"), ("b", ""), ("", "b"), ("", "")],
    ids=["restarted", "tells nothing now", "told nothing then", "never tells"],
)
def test_nothing_is_resident_where_the_pod_s_process_is_not_surely_the_same(then: str, now: str) -> None:
    before = memory(pods(p0="a", d0=then))
    one_turn(before)
    (record,) = written(before, 0.0)
    after = memory(pods(p0="a", d0=now))
    after.put_back(record, 0.0)
    found = after.store.recognise(ROOT, None, chat("one", "a:hello", "two"), key(2), 1.0)
    assert (found.turn, found.conversation.decode, found.conversation.epoch) == (2, "d0", LOST_EPOCH)
    assert after._residency.of(pod(after._fleet, "d0"), key(1)).tokens == 0


def test_a_pod_that_was_restarted_before_the_record_was_made_holds_nothing_after_it() -> None:
    before = memory()
    one_turn(before)
    pod(before._fleet, "d0").replaced()
    pod(before._fleet, "d0").facts = PodFacts(instance="b2")
    (record,) = written(before, 0.0)
    assert record.homes == (Home("d0", "", 0),)


def test_a_pod_that_is_not_configured_any_more_is_no_harm() -> None:
    before = memory()
    one_turn(before, decode="d1")
    (record,) = written(before, 0.0)
    after = memory(fleet("p0", "d0"))
    after.put_back(record, 0.0)
    assert after.store.recognise(ROOT, None, chat("one", "a:hello", "two"), key(2), 0.0).turn == 2


def test_answers_can_still_be_gone_on_from_by_their_id() -> None:
    before = memory()
    known = before.store.get(one_turn(before))
    assert known is not None
    before.store.link(known, ROOT, "resp_1")
    after = memory()
    for record in written(before, 0.0):
        after.put_back(record, 0.0)
    found = after.store.recognise(ROOT, None, None, key(2), 1.0, "resp_1")
    assert (found.kind, found.turn, found.conversation.key) == (Kind.NEXT, 2, key(1))


def test_turns_with_the_same_prompt_keep_their_order_whichever_conversation_was_used_last() -> None:
    before = memory()
    for number, reply in ((1, "first"), (2, "second")):
        found = before.store.recognise(ROOT, None, chat("hi"), key(number), float(number))
        before.store.begin(found.conversation)
        before.store.finish(found, chat("hi"), result(reply))
    on = before.store.recognise(ROOT, None, chat("hi", "a:first", "more"), key(3), 3.0)
    assert on.conversation.key == key(1)
    after = memory()
    for record in written(before, 4.0):
        after.put_back(record, 4.0)
    after.store.sort_alike()
    for kept in (before, after):
        found = kept.store.recognise(ROOT, None, chat("hi", "a:something else", "more"), key(4), 4.0)
        assert (found.kind, found.parent) == (Kind.BRANCH, key(2)), "off the one that came last"


def test_a_record_without_pods_is_put_back_too() -> None:
    after = memory()
    after.put_back(ConversationRecord(key(1), 0.0, 1, Home("p0", "a", 10), (), 10, None, (), 0, 0), 0.0)
    known = after.store.get(key(1))
    assert known is not None
    assert (known.decode, known.epoch) == (None, LOST_EPOCH)
