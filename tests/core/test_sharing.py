"""What gateways ask each other, and what they do with the answers."""

from __future__ import annotations

import msgspec
import pytest

from gateway.core import sharing
from gateway.core.chains import Chain
from gateway.core.conversations import ConversationStore, Kind, key_of_id
from gateway.core.links import link_key
from gateway.core.memory import Memory
from gateway.core.residency import Residency
from gateway.core.sharing import (
    MAX_BLOCKS,
    MAX_CANDIDATES,
    adopt,
    answer_key,
    candidates,
    decode,
    encode,
    ends_key,
    entry_of,
    id_key,
    offsets_of,
    question,
    trace_key,
)
from gateway.core.turns import Recognition
from tests.core.support import ROOT, chat, head, key, result, text
from tests.core.test_memory import pods


class Gateway:
    """A store that talks to a shared dictionary as a gateway talks to the server."""

    def __init__(self, server: dict[bytes, bytes]) -> None:
        self.store = ConversationStore(100, 3600.0)
        self.memory = Memory(self.store, pods(p0="a", d0="b", d1="c"), Residency())
        self.server = server
        self.asked = 0

    def turn(
        self, chain: Chain, reply: str, *, name: str | None = None, fresh: int = 0, decode_pod: str = "d0"
    ) -> Recognition:
        """One request from its beginning to its end."""
        found = self.begin(chain, name=name, fresh=fresh)
        self.end(found, chain, reply, named=name is not None, decode_pod=decode_pod)
        return found

    def begin(self, chain: Chain, *, name: str | None = None, fresh: int = 0) -> Recognition:
        named = None if name is None else key_of_id(ROOT, name)
        asked = question(self.store, named, chain)
        if asked is not None:
            self.asked += 1
            keys: list[tuple[bytes, bytes | None]] = []
            if asked.by_id is not None:
                keys = [(asked.by_id, None)]
            else:
                ends = {b: offsets_of(self.server.get(ends_key(b), b"")) for b in asked.blocks}
                keys = [(k, c.prompt_hash) for c in candidates(asked, chain, ends) for k in c.keys]
            for asked_key, prompt_hash in keys:
                record = decode(self.server.get(asked_key, b""))
                if record is not None:
                    adopt(self.memory, record, prompt_hash, 0.0)
                    break
        found = self.store.recognise(ROOT, name, chain, key(fresh), 0.0)
        self.store.begin(found.conversation)
        return found

    def end(self, found: Recognition, chain: Chain, reply: str, *, named: bool = False, decode_pod: str = "d0") -> None:
        self.store.finish(found, chain, result(reply, decode=decode_pod))
        entry = entry_of(self.memory, found, 0.0, 1.0, named=named)
        for entry_key, value in entry.values.items():
            if self.server.get(entry_key, b"")[: sharing.VERSION_BYTES] <= value[: sharing.VERSION_BYTES]:
                self.server[entry_key] = value
        if entry.ends is not None:
            block, offset = entry.ends
            bits = bytearray(self.server.get(block, b"").ljust(128, b"\0"))
            bits[offset // 8] |= 0x80 >> offset % 8
            self.server[block] = bytes(bits)


@pytest.fixture
def pair() -> tuple[Gateway, Gateway]:
    server: dict[bytes, bytes] = {}
    return Gateway(server), Gateway(server)


Pair = tuple[Gateway, Gateway]


def test_the_next_turn_of_a_chat_is_found_at_the_other_gateway(pair: Pair) -> None:
    one, other = pair
    one.turn(chat("q1"), "r1", fresh=1, decode_pod="d1")
    found = other.turn(chat("q1", "a:r1", "q2"), "r2", fresh=2)
    assert (found.kind, found.turn, found.conversation.key, found.shared_tokens) == (Kind.NEXT, 2, key(1), 120)
    back = one.turn(chat("q1", "a:r1", "q2", "a:r2", "q3"), "r3", fresh=3)
    assert (back.kind, back.turn, back.conversation.key) == (Kind.NEXT, 3, key(1))
    assert (one.asked, other.asked) == (1, 1)


def test_where_the_kv_lies_comes_along(pair: Pair) -> None:
    one, other = pair
    one.turn(chat("q1"), "r1", fresh=1, decode_pod="d1")
    found = other.begin(chat("q1", "a:r1", "q2"))
    d1 = other.memory._fleet.get("d1")
    assert (found.conversation.decode, found.conversation.homes) == ("d1", ("d1",))
    assert d1 is not None
    assert other.memory._residency.of(d1, key(1)).tokens == 120


def test_first_turns_and_turns_this_gateway_served_itself_are_not_asked_for(pair: Pair) -> None:
    one, _ = pair
    one.turn(chat("s", "q1"), "r1", fresh=1)
    one.turn(chat("s", "q1", "a:r1", "q2"), "r2")
    one.turn(chat("s", "q1", "a:r1", "q2", "a:r2", "tool", "q3"), "r3")
    one.turn(chat("s", "q1", "a:r1", "q2", "a:r2", "tool", "q3"), "r3 again")
    one.turn(chat("named"), "n1", name="id")
    one.turn(chat("named", "a:n1", "more"), "n2", name="id")
    assert one.asked == 0


def test_a_reply_of_somebody_else_to_the_same_words_is_no_reason_not_to_ask(pair: Pair) -> None:
    one, other = pair
    one.turn(chat("hi"), "hello you", fresh=1)
    other.turn(chat("hi"), "hello there", fresh=2)
    found = other.turn(chat("hi", "a:hello you", "q"), "r")
    assert (found.kind, found.conversation.key, other.asked) == (Kind.NEXT, key(1), 1)
    found = one.turn(chat("hi", "a:hello there", "q"), "r")
    assert (found.kind, found.conversation.key) == (Kind.NEXT, key(2))


def test_turns_that_another_gateway_went_on_from_are_branched_off(pair: Pair) -> None:
    one, other = pair
    one.turn(chat("q1"), "r1", fresh=1)
    one.turn(chat("q1", "a:r1", "q2"), "r2")
    found = other.turn(chat("q1", "a:r1", "other"), "x", fresh=2)
    assert (found.kind, found.turn, found.parent, found.shared_tokens) == (Kind.BRANCH, 2, key(1), 120)
    found = other.turn(chat("q1", "a:r1", "q2", "a:r2", "q3"), "r3", fresh=3)
    assert (found.kind, found.turn, found.conversation.key) == (Kind.NEXT, 3, key(1))


def test_an_early_turn_is_branched_off_at_a_gateway_that_came_in_later(pair: Pair) -> None:
    one, other = pair
    one.turn(chat("q1"), "r1", fresh=1)
    one.turn(chat("q1", "a:r1", "q2"), "r2")
    other.turn(chat("q1", "a:r1", "q2", "a:r2", "q3"), "r3")
    found = other.turn(chat("q1", "a:r1", "instead"), "x", fresh=2)
    assert (found.kind, found.turn, found.parent) == (Kind.BRANCH, 2, key(1))
    on = other.turn(chat("q1", "a:r1", "q2", "a:r2", "q3", "a:r3", "q4"), "r4", fresh=3)
    assert (on.kind, on.turn, on.conversation.key) == (Kind.NEXT, 4, key(1))


def test_only_turns_newer_than_those_known_here_are_asked_for(pair: Pair) -> None:
    one, other = pair
    one.turn(chat("q1"), "r1", fresh=1)
    other.turn(chat("q1", "a:r1", "q2"), "r2")
    chain = chat("q1", "a:r1", "q2", "a:r2", "q3")
    asked = question(one.store, None, chain)
    assert asked is not None
    prompts = [candidate.prompt_hash for candidate in candidates(asked, chain, {})]
    assert prompts == [chain.whole, chat("q1", "a:r1", "q2").whole]


def test_two_gateways_that_finish_one_turn_differently_make_two_conversations_of_it(pair: Pair) -> None:
    one, other = pair
    one.turn(chat("q1"), "r1", fresh=1)
    mine, yours = chat("q1", "a:r1", "mine"), chat("q1", "a:r1", "yours")
    a, b = one.begin(mine), other.begin(yours)
    assert a.conversation.key == b.conversation.key == key(1)
    one.end(a, mine, "m2")
    other.end(b, yours, "y2")
    crossed = one.turn(chat("q1", "a:r1", "yours", "a:y2", "q3"), "y3")
    assert (crossed.kind, crossed.turn) == (Kind.NEXT, 3)
    assert crossed.conversation.key != key(1)
    straight = one.turn(chat("q1", "a:r1", "mine", "a:m2", "q3"), "m3")
    assert (straight.kind, straight.turn, straight.conversation.key) == (Kind.NEXT, 3, key(1))


def test_a_repeated_turn_is_known_at_the_other_gateway(pair: Pair) -> None:
    one, other = pair
    one.turn(chat("q1"), "r1", fresh=1)
    one.turn(chat("q1", "a:r1", "q2"), "r2")
    found = other.turn(chat("q1", "a:r1", "q2"), "r2 again", fresh=2)
    assert (found.kind, found.turn, found.conversation.key) == (Kind.REPEAT, 2, key(1))


def test_a_conversation_with_an_id_goes_on_at_the_other_gateway_with_or_without_its_history(pair: Pair) -> None:
    one, other = pair
    for turn, (gateway, words) in enumerate(
        [
            (one, ("q1",)),
            (other, ("q1", "a:r", "q2")),
            (one, ("q1", "a:r", "q2", "a:r", "q3")),
            (other, ("cut short", "a:r", "q4")),
        ],
        start=1,
    ):
        assert gateway.turn(chat(*words), "r", name="mine").turn == turn
    assert len({each.get(key_of_id(ROOT, "mine")).key for each in (one.store, other.store) if len(each)}) == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("size", [10, 700, 1024, 5000])
def test_the_next_turn_of_a_completions_prompt_is_found_by_where_the_last_one_ended(pair: Pair, size: int) -> None:
    one, other = pair
    prompt = "x" * size + "."
    for turn in range(1, 5):
        found = pair[turn % 2].turn(text(prompt), f"reply {turn}", fresh=turn)
        assert (found.turn, found.conversation.key) == (turn, key(1))
        prompt += f"reply {turn} and then" + "y" * (size // 3)
    assert one.asked + other.asked == 4


def test_an_answer_named_by_its_id_is_found_at_the_other_gateway(pair: Pair) -> None:
    one, other = pair
    found = one.begin(chat("q1"), fresh=1)
    one.store.finish(found, chat("q1"), result("r1"))
    one.store.link(found.conversation, ROOT, "resp_1")
    link = link_key(ROOT, "resp_1")
    value = entry_of(one.memory, found, 0.0, 1.0, named=False).values[answer_key(link)]
    asked = question(other.store, None, None, link)
    assert asked is not None
    assert asked.by_id == answer_key(link)
    record = decode(value)
    assert record is not None
    adopt(other.memory, record, None, 0.0)
    again = other.store.recognise(ROOT, None, None, key(2), 0.0, "resp_1")
    assert (again.kind, again.turn, again.conversation.key) == (Kind.NEXT, 2, key(1))
    assert question(other.store, None, None, link) is None


def test_what_is_stored_stays_small_and_questions_too(pair: Pair) -> None:
    one, other = pair
    words: list[str] = []
    for n in range(100):
        words.append(f"question {n}")
        one.turn(chat(*words), f"r{n}", name="mine")
        words.append(f"a:r{n}")
    assert max(map(len, one.server.values())) < 400
    chain = chat(*words, "next")
    asked = question(other.store, None, chain)
    assert asked is not None
    found = candidates(asked, chain, {})
    assert len(found) == MAX_CANDIDATES
    assert trace_key(chat(*words[:-1]).whole, head("r99")) in found[1].keys, "the newest come first"
    long = text("x" * 1_000_000)
    asked = question(other.store, None, long)
    assert asked is not None
    assert len(asked.blocks) == MAX_BLOCKS


@pytest.mark.parametrize("value", [b"", b"0" * 22, b"0" * 22 + b"\xc1", b"0" * 22 + msgspec.msgpack.encode([b"k"])])
def test_a_value_that_is_not_ours_is_no_answer(value: bytes) -> None:
    assert decode(value) is None


def test_the_newer_turn_is_the_greater_value(pair: Pair) -> None:
    one, _ = pair
    known = one.turn(chat("q"), "r", fresh=1).conversation
    earlier = encode(one.memory.record(known, 0.0), 1000.0)
    later = encode(one.memory.record(known, 0.0), 1000.001)
    known.turn = 2
    next_turn = encode(one.memory.record(known, 0.0), 1.0)
    assert earlier[:22] < later[:22] < next_turn[:22]
    assert earlier[:22].isdigit()
    assert len({id_key(b"k"), ends_key(b"k"), answer_key(b"k"), trace_key(b"k", None)}) == 4


def test_offsets_are_read_as_setbit_writes_them() -> None:
    assert offsets_of(b"") == []
    assert sorted(offsets_of(b"\x80\x01\x00\x40")) == [0, 15, 25]
