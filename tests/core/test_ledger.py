"""The ledger of a pod without events."""

from __future__ import annotations

import random
from collections import OrderedDict

from gateway.core.ledger import GhostCache

A, B, C = b"a", b"b", b"c"


def test_what_was_used_is_expected_until_the_room_is_used_up_oldest_end_first() -> None:
    ghost = GhostCache(100)
    ghost.used(A, 40)
    ghost.used(B, 50)
    assert (ghost.expected(A), ghost.expected(B)) == (40, 50)
    ghost.used(C, 30)
    assert (ghost.expected(A), ghost.expected(B), ghost.expected(C)) == (20, 50, 30)
    ghost.used(B, 60)
    assert (ghost.expected(A), ghost.expected(B)) == (10, 60)
    ghost.used(C, 45)
    assert ghost.expected(A) == 0
    assert ghost.expected(B) == 55


def test_an_unknown_size_evicts_nothing_until_the_pod_contradicts() -> None:
    ghost = GhostCache()
    ghost.used(A, 1000)
    ghost.used(B, 1000)
    assert ghost.expected(A) == 1000
    ghost.saw(A, 1000, 0, 16)
    assert ghost.room_tokens == 1000
    assert ghost.expected(A) == 0


def test_the_room_is_learned_in_both_directions() -> None:
    ghost = GhostCache(1000)
    for name in (A, B, C):
        ghost.used(name, 300)
    ghost.saw(A, 300, 0, 16)
    assert ghost.room_tokens == 800, "half way from 1000 to the 600 used since"
    ghost.saw(A, 0, 300, 16)
    assert ghost.room_tokens == 850, "900 were held after all"
    ghost.used(A, 300)
    assert ghost.total_tokens <= 850


def test_the_room_is_never_more_than_the_pod_has() -> None:
    ghost = GhostCache(100)
    ghost.used(A, 90)
    ghost.used(B, 90)
    ghost.saw(A, 10, 90, 16)
    assert ghost.room_tokens == 100


def test_a_block_more_or_less_teaches_nothing() -> None:
    ghost = GhostCache(100)
    ghost.used(A, 90)
    ghost.saw(A, 90, 75, 16)
    assert ghost.room_tokens == 100
    assert ghost.expected(A) == 90


def test_the_size_of_the_pod_may_come_later_and_change() -> None:
    ghost = GhostCache()
    ghost.used(A, 90)
    ghost.used(B, 90)
    ghost.resize(100)
    assert (ghost.expected(A), ghost.expected(B)) == (10, 90)
    ghost.clear()
    assert ghost.total_tokens == 0
    assert len(ghost) == 0


def test_a_forgotten_conversation_makes_room() -> None:
    ghost = GhostCache(100)
    ghost.used(A, 60)
    ghost.forget(A)
    ghost.forget(B)
    assert ghost.total_tokens == 0


def test_against_a_true_lru_of_unknown_size_it_comes_to_predict_well() -> None:
    """A pod with 60 % of the size it states (running requests and strangers hold the rest)."""
    rng = random.Random(5)
    ghost, truth, size = GhostCache(10_000), OrderedDict[bytes, int](), 6_000
    late_errors = []
    for step in range(2_000):
        name = rng.randrange(30).to_bytes(1, "big")
        cached = truth.pop(name, 0)
        expected = ghost.expected(name)
        tokens = rng.randrange(200, 500)
        cached = min(cached, tokens)
        if step > 500:
            late_errors.append(abs(min(expected, tokens) - cached))
        ghost.saw(name, min(expected, tokens), cached, 16)
        ghost.used(name, tokens)
        truth[name] = tokens
        while sum(truth.values()) > size:
            oldest = next(iter(truth))
            over = sum(truth.values()) - size
            if truth[oldest] > over:
                truth[oldest] -= over
            else:
                del truth[oldest]
    assert ghost.room_tokens is not None
    assert 5_400 < ghost.room_tokens < 6_600
    assert sum(late_errors) / len(late_errors) < 30
