"""Expected output lengths."""

from __future__ import annotations

import random

from gateway.core.outputs import PRIOR_TOKENS, OutputLengths, RunningMedian, add_recent


def test_before_anything_was_seen_the_prior_counts_and_max_tokens_is_only_a_ceiling() -> None:
    outputs = OutputLengths()
    assert outputs.expect((), b"t", None) == PRIOR_TOKENS
    assert outputs.expect((), b"t", 4096) == PRIOR_TOKENS
    assert outputs.expect((), b"t", 10) == 10


def test_the_conversation_speaks_before_the_tenant_and_the_tenant_before_everyone() -> None:
    outputs = OutputLengths()
    for tokens in (400, 400, 400):
        outputs.learn(b"other", tokens)
    assert outputs.expect((), b"mine", None) == 400
    outputs.learn(b"mine", 30)
    assert outputs.expect((), b"mine", None) == 30
    assert outputs.expect((5, 7, 9), b"mine", None) == 7


def test_ignore_eos_makes_max_tokens_the_length_and_min_tokens_is_a_floor() -> None:
    outputs = OutputLengths()
    assert outputs.expect((5,), b"t", 512, exact=True) == 512
    assert outputs.expect((5,), b"t", None, exact=True) == 5
    assert outputs.expect((5,), b"t", 100, min_tokens=50) == 50


def test_a_conversation_keeps_its_last_five_answers() -> None:
    recent: tuple[int, ...] = ()
    for tokens in range(8):
        recent = add_recent(recent, tokens)
    assert recent == (3, 4, 5, 6, 7)


def test_the_running_median_is_the_median_of_the_window() -> None:
    draw = random.Random(3)
    median, seen = RunningMedian(11), []
    assert median.median is None
    for _ in range(500):
        value = draw.randrange(50)
        seen.append(value)
        median.add(value)
        window = sorted(seen[-11:])
        assert median.median == window[(len(window) - 1) // 2]


def test_tenants_are_bounded(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("gateway.core.outputs._MAX_TENANTS", 3)
    outputs = OutputLengths()
    for tenant in (b"a", b"b", b"c", b"a", b"d"):
        outputs.learn(tenant, 10)
    assert set(outputs._tenants) == {b"c", b"a", b"d"}
