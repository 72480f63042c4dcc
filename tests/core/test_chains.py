"""Prompts as chains of hashes: an earlier prompt is found in a longer one, and only there."""

from __future__ import annotations

import itertools

import pytest
import xxhash

from gateway.core.chains import BLOCK_BYTES, TextChain, root_of
from tests.core.support import OTHER_TENANT, ROOT, chat, head, text

LETTERS = "".join(chr(ord("a") + n % 26) for n in range(5000))
BORDERS = (0, 1, 1023, 1024, 1025, 2047, 2048, 2049, 4096)


def remembered(*prompts: TextChain) -> dict[bytes, dict[int, int]]:
    """The lengths of earlier prompts, as the store keeps them."""
    lengths: dict[bytes, dict[int, int]] = {}
    for prompt in prompts:
        joint = prompt.joint()
        assert joint is not None
        block, offset = joint
        offsets = lengths.setdefault(block, {})
        offsets[offset] = offsets.get(offset, 0) + 1
    return lengths


# Roots


def test_parts_of_a_root_do_not_run_into_each_other() -> None:
    roots = [root_of(*parts) for parts in [("a", "bc"), ("ab", "c"), ("a", "b", "c"), ("a\0b", "c"), ("a", "b\0c")]]
    roots += [root_of("1:a"), root_of("1", ":a"), root_of("a", ""), root_of("", "a"), root_of("a")]
    assert len(set(roots)) == len(roots)


def test_a_root_is_the_same_in_every_process() -> None:
    assert root_of("tenant", "model", "") == xxhash.xxh3_128_digest(b"6:tenant\x005:model\x000:")


# Chats


def test_a_chat_that_goes_on_contains_what_it_was() -> None:
    before = chat("u:hi", "a:hello")
    after = chat("u:hi", "a:hello", "u:more")
    assert list(after.prefixes({})) == [(3, after.whole), (2, before.whole), (1, chat("u:hi").whole)]
    assert after.length == 3


def test_a_change_anywhere_changes_everything_behind_it_and_nothing_before() -> None:
    one = [hashed for _, hashed in chat("u:a", "a:b", "u:c", "a:d").prefixes({})]
    two = [hashed for _, hashed in chat("u:a", "a:B", "u:c", "a:d").prefixes({})]
    assert [left == right for left, right in zip(one, two, strict=True)] == [False, False, False, True]


def test_the_order_of_messages_matters() -> None:
    assert chat("u:a", "u:b").whole != chat("u:b", "u:a").whole


def test_equal_words_under_another_root_share_nothing() -> None:
    ours = {hashed for _, hashed in chat("u:a", "a:b").prefixes({})}
    theirs = {hashed for _, hashed in chat("u:a", "a:b", root=OTHER_TENANT).prefixes({})}
    assert ours.isdisjoint(theirs)


def test_only_an_assistants_message_shows_an_earlier_answer() -> None:
    assert not chat("s:be brief", "u:hi").has_replies
    assert chat("s:be brief", "u:hi", "a:hello", "u:more").has_replies


def test_the_reply_comes_right_behind_the_prompt_or_not_at_all() -> None:
    prompt = chat("u:hi", "a:hello", "u:more", "a:there")
    assert prompt.reply_follows(1, head("hello"))
    assert not prompt.reply_follows(1, head("there"))
    assert prompt.reply_follows(3, head("there"))
    assert not prompt.reply_follows(2, head("there"))
    assert not prompt.reply_follows(4, head("there"))


def test_a_chat_needs_no_memory_of_its_length() -> None:
    assert chat("u:hi").joint() is None


# Texts


@pytest.mark.parametrize("length", BORDERS)
def test_a_text_remembers_its_last_whole_block_and_the_offset_behind_it(length: int) -> None:
    prompt = text(LETTERS[:length])
    joint = prompt.joint()
    assert joint is not None
    block, offset = joint
    assert offset == length % 1024
    assert block == text(LETTERS[: length - offset]).whole
    assert prompt.length == length


@pytest.mark.parametrize(
    ("earlier", "later"), [(a, b) for a, b in itertools.product(BORDERS, BORDERS) if a <= b] + [(1500, 1501)]
)
def test_an_earlier_text_is_found_at_its_exact_length_in_a_longer_one(earlier: int, later: int) -> None:
    before, after = text(LETTERS[:earlier]), text(LETTERS[:later])
    assert list(after.prefixes(remembered(before))) == [(earlier, before.whole)]


@pytest.mark.parametrize(("earlier", "later"), [(a, b) for a, b in itertools.product(BORDERS, BORDERS) if a > b])
def test_a_longer_text_is_not_found_in_a_shorter_one(earlier: int, later: int) -> None:
    assert list(text(LETTERS[:later]).prefixes(remembered(text(LETTERS[:earlier])))) == []


@pytest.mark.parametrize("at", [0, 1022, 1023, 1024, 1499])
def test_a_text_that_differs_in_one_byte_is_not_found(at: int) -> None:
    before = text(LETTERS[:1500])
    changed = LETTERS[:at] + "#" + LETTERS[at + 1 : 3000]
    found = [hashed for _, hashed in text(changed).prefixes(remembered(before))]
    assert before.whole not in found


def test_several_earlier_texts_come_longest_first_each_once() -> None:
    earlier = [text(LETTERS[:length]) for length in (10, 1024, 1030, 1030, 2500)]
    found = list(text(LETTERS[:3000]).prefixes(remembered(*earlier)))
    assert [length for length, _ in found] == [2500, 1030, 1024, 10]
    assert found == [(one.length, one.whole) for one in (earlier[4], earlier[2], earlier[1], earlier[0])]


def test_nothing_remembered_means_nothing_to_look_at() -> None:
    assert list(text(LETTERS).prefixes({})) == []


def test_equal_texts_under_another_root_share_nothing() -> None:
    before = remembered(text(LETTERS[:1500], OTHER_TENANT))
    assert list(text(LETTERS[:3000]).prefixes(before)) == []


def test_the_empty_text_is_the_beginning_of_every_text() -> None:
    assert list(text("abc").prefixes(remembered(text("")))) == [(0, text("").whole)]


def test_a_reply_follows_where_the_text_says_so() -> None:
    prompt = text("Once upon a time")
    assert prompt.reply_follows(4, head(" upon"))
    assert not prompt.reply_follows(5, head(" upon"))
    assert prompt.reply_follows(16, head(""))


def test_a_prompt_may_end_inside_a_character_of_the_next_one() -> None:
    data = "caf\u00e9 noir".encode()
    assert text(data).reply_follows(4, head(" noir")), "the half character is left out"


def test_any_text_may_be_the_next_turn() -> None:
    assert text("hi").has_replies


# Token ids


def test_token_ids_have_no_words_to_compare_a_reply_with() -> None:
    prompt = TextChain(ROOT, b"[1,2,3,4,", None)
    assert prompt.reply_follows(5, head("anything"))


def test_an_earlier_list_of_token_ids_is_found_in_a_longer_one() -> None:
    many = b"[" + b"".join(b"%d," % token for token in range(2000))
    before = TextChain(ROOT, many[:1500], None)
    after = TextChain(ROOT, many, None)
    assert list(after.prefixes(remembered(before))) == [(1500, before.whole)]


def test_a_block_is_small_against_a_prompt_and_large_against_its_hash() -> None:
    assert BLOCK_BYTES == 1024


def test_many_remembered_lengths_in_one_block_are_all_found_the_longest_first() -> None:
    data = bytes(range(256)) * 12
    wanted = [1024 + offset for offset in range(0, 1000, 7)]
    lengths: dict[bytes, dict[int, int]] = {}
    for length in wanted:
        joint = TextChain(b"r" * 16, data[:length], None).joint()
        assert joint is not None
        lengths.setdefault(joint[0], {})[joint[1]] = 1
    found = list(TextChain(b"r" * 16, data, None).prefixes(lengths))
    assert [length for length, _ in found] == sorted(wanted, reverse=True)
    assert all(prompt_hash == TextChain(b"r" * 16, data[:length], None).whole for length, prompt_hash in found)
