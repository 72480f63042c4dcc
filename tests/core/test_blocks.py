"""The block tree against a naive model of a pod's prefix cache, and its corner cases one by one."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from gateway.core.blocks import BlockTree

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16


def test_a_conversation_is_resident_to_its_last_block() -> None:
    tree = BlockTree()
    tree.stored(A, None, [1, 2, 3])
    tree.stored(A, 3, [4])
    assert tree.resident_blocks(A) == 4
    assert tree.resident_blocks(B) is None


def test_a_hole_ends_it_however_much_lies_behind() -> None:
    tree = BlockTree()
    tree.stored(A, None, [1, 2, 3, 4])
    tree.removed([2])
    assert tree.resident_blocks(A) == 1
    tree.stored(A, 1, [2, 3])
    assert tree.resident_blocks(A) == 3, "as far as its last request went; 3 has two copies now"
    tree.removed([3])
    assert tree.resident_blocks(A) == 3
    tree.removed([3])
    assert tree.resident_blocks(A) == 2


def test_a_shared_prefix_counts_for_each_and_is_stored_once() -> None:
    tree = BlockTree()
    tree.stored(A, None, [1, 2, 3])
    tree.stored(B, 2, [30, 40])
    assert (tree.resident_blocks(A), tree.resident_blocks(B)) == (3, 4)
    assert len(tree) == 5
    tree.removed([2])
    assert (tree.resident_blocks(A), tree.resident_blocks(B)) == (1, 1)


def test_an_evicted_end_that_another_session_goes_on_from_is_not_the_first_ones() -> None:
    tree = BlockTree()
    tree.stored(A, None, [1, 2, 3, 4])
    tree.removed([4])
    tree.removed([3])
    tree.stored(B, 2, [33, 44])
    assert tree.resident_blocks(A) == 2
    assert tree.resident_blocks(B) == 4


def test_a_prefix_that_came_back_through_another_session_counts_again() -> None:
    tree = BlockTree()
    tree.stored(A, None, [1, 2])
    tree.stored(B, 2, [3])
    tree.removed([2])
    tree.removed([1])
    assert tree.resident_blocks(B) == 0
    tree.stored(C, None, [1, 2, 9])
    assert tree.resident_blocks(B) == 3
    tree.removed([2])
    assert (tree.resident_blocks(A), tree.resident_blocks(B), tree.resident_blocks(C)) == (1, 1, 1)


def test_blocks_behind_an_unknown_parent_do_not_count() -> None:
    tree = BlockTree()
    tree.stored(A, 77, [78, 79])
    assert tree.resident_blocks(A) == 0


def test_a_report_adds_no_copies() -> None:
    tree = BlockTree()
    tree.stored(A, None, [1, 2])
    tree.expect_report(B)
    tree.stored(B, None, [1, 2, 3])
    tree.removed([2])
    assert (tree.resident_blocks(A), tree.resident_blocks(B)) == (1, 1)
    tree.stored(B, None, [1])
    tree.removed([1])
    assert tree.resident_blocks(B) == 1, "only the first such event is a report"


def test_an_edited_turn_stands_on_its_own_blocks() -> None:
    tree = BlockTree()
    tree.stored(A, None, [1, 2, 3])
    tree.stored(A, 1, [20, 30, 40])
    assert tree.resident_blocks(A) == 4
    tree.removed([3])
    assert tree.resident_blocks(A) == 4


def test_a_branch_reaches_as_far_as_what_it_branched_off() -> None:
    tree = BlockTree()
    tree.stored(A, None, [1, 2])
    tree.join(B, A)
    assert tree.resident_blocks(B) == 2
    tree.stored(A, 2, [3])
    assert tree.resident_blocks(B) == 2


def test_sessions_are_bounded() -> None:
    tree = BlockTree(max_sessions=2)
    for number, session in enumerate((A, B, C)):
        tree.stored(session, None, [number])
    assert tree.resident_blocks(A) is None
    assert tree.sessions == 2
    tree.forget(C)
    assert tree.sessions == 1


def test_nothing_is_left_after_clear() -> None:
    tree = BlockTree()
    tree.stored(A, None, [1])
    tree.clear()
    assert len(tree) == 0
    assert tree.resident_blocks(A) is None
    tree.removed([1])
    assert len(tree) == 0


def test_the_chain_of_a_session_newest_first() -> None:
    tree = BlockTree()
    tree.stored(A, None, [1, 2, 3])
    tree.stored(B, 2, [30, 40])
    assert tree.chain(B, 4) == [40, 30, 2, 1]
    assert tree.chain(B, 3) == [30, 2, 1]
    assert tree.chain(C, 3) == []


class NaiveCache:
    """Hashes with their physical copies; sessions as the plain list of their hashes."""

    def __init__(self) -> None:
        self.copies: dict[int, int] = {}
        self.sessions: dict[bytes, list[int]] = {}

    def resident(self, session: bytes) -> int:
        chain = self.sessions[session]
        return next((index for index, block in enumerate(chain) if not self.copies.get(block)), len(chain))


@pytest.mark.parametrize("seed", range(60))
def test_the_tree_says_what_the_naive_cache_says(seed: int) -> None:
    """Random prompts from a small tree of texts, random evictions (with duplicates), random resets."""
    rng = random.Random(seed)
    tree, naive = BlockTree(), NaiveCache()
    sessions = [bytes([number]) * 16 for number in range(6)]
    for _ in range(300):
        roll = rng.random()
        if roll < 0.01:
            tree.clear()
            naive = NaiveCache()
        elif roll < 0.45 and naive.copies:
            chains = [c for c in naive.sessions.values() if any(naive.copies.get(b) for b in c)]
            if chains and rng.random() < 0.7:
                chain = rng.choice(chains)
                block = next(b for b in reversed(chain) if naive.copies.get(b))
            else:
                block = rng.choice([b for b, count in naive.copies.items() if count] or [0])
            if naive.copies.get(block):
                naive.copies[block] -= 1
            tree.removed([block])
        else:
            session = rng.choice(sessions)
            text = tuple(rng.randrange(2) for _ in range(rng.randrange(1, 7)))
            chain = [hash(text[: length + 1]) & ((1 << 60) - 1) for length in range(len(text))]
            hit = next((i for i, block in enumerate(chain) if not naive.copies.get(block)), len(chain))
            hit = rng.choice([hit, hit, 0])  # now and then computed anew although it was there: second copies
            naive.sessions[session] = chain
            for block in chain[hit:]:
                naive.copies[block] = naive.copies.get(block, 0) + 1
            parent = chain[hit - 1] if hit else None
            tree.stored(session, parent, chain[hit:])
            if hit == len(chain):
                naive.sessions.pop(session)
                tree.forget(session)
        assert len(tree) == sum(1 for count in naive.copies.values() if count)
        for session in naive.sessions:
            assert tree.resident_blocks(session) == naive.resident(session), (seed, session)


def test_a_block_costs_at_most_120_bytes() -> None:
    rng = random.Random(1)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tree = BlockTree()
        for number in range(1_000):
            session, parent = number.to_bytes(16, "big"), None
            for length in (90, *([1] * 30)):
                blocks = [rng.getrandbits(60) for _ in range(length)]
                tree.stored(session, parent, blocks)
                parent = blocks[-1]
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(tree) == 120_000
    assert (after - before) / len(tree) <= 120
