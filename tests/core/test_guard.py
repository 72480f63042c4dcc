"""What the guard takes for evidence, and what it does not."""

from __future__ import annotations

import dataclasses
import random

import pytest

from gateway.core.guard import MAX_PER_STRATUM, Findings, Guard, GuardSettings, Sample, size_of

QUICK = GuardSettings(window_s=60.0, look_s=10.0, min_samples=50)


def talk(guard: Guard, count: int, now_s: float = 0.0, *, canary: bool, first: int = 0, **fields: object) -> None:
    """So many conversations of one request."""
    for number in range(first, first + count):
        sample = Sample(canary, f"{canary}{number}", 2, 500, False, ttft_s=0.1 + number % 7 / 1000, tpot_s=0.01)
        guard.add(dataclasses.replace(sample, **fields), now_s)  # type: ignore[arg-type]


def look(guard: Guard, now_s: float = 0.0) -> Findings:
    return guard.look(now_s)


def test_two_sides_alike_raise_no_alarm() -> None:
    guard = Guard(QUICK)
    talk(guard, 300, canary=True)
    talk(guard, 300, canary=False)
    assert look(guard).verdict is None


def test_a_slow_first_token_is_named_with_its_numbers() -> None:
    guard = Guard(QUICK)
    talk(guard, 100, canary=True, ttft_s=0.4)
    talk(guard, 300, canary=False)
    verdict = look(guard).verdict
    assert verdict is not None
    assert verdict.startswith("time to first token: 100 of 100 lie above 1.25 times the baseline's P99, 1.0 expected")


def test_slow_tokens_and_failures_are_named_too() -> None:
    guard = Guard(QUICK)
    talk(guard, 100, canary=True, failed=True, ttft_s=None, tpot_s=0.02)
    talk(guard, 300, canary=False)
    verdict = look(guard).verdict or ""
    assert "100 of 100 conversations met a failure, of the baseline's 0 of 300" in verdict
    assert "time per token: 100 of 100" in verdict


def test_too_few_conversations_say_nothing_however_bad_they_are() -> None:
    guard = Guard(QUICK)
    talk(guard, 49, canary=True, failed=True, ttft_s=9.0)
    talk(guard, 300, canary=False)
    assert look(guard).verdict is None


def test_a_conversation_counts_once_however_much_it_talks() -> None:
    guard = Guard(QUICK)
    for turn in range(2, 200):
        guard.add(Sample(True, "one", turn, 500, True, ttft_s=9.0), 0.0)
    talk(guard, 300, canary=False)
    found = look(guard)
    assert (found.failures.canary, found.failures.canary_failed, found.ttft.canary) == (1, 1, 1)
    assert found.verdict is None


def test_a_failure_is_not_made_good_by_the_retry_behind_it() -> None:
    guard = Guard(QUICK)
    guard.add(Sample(True, "one", 2, 500, True), 0.0)
    guard.add(Sample(True, "one", 2, 500, False, ttft_s=0.1), 1.0)
    assert look(guard, 1.0).failures.canary_failed == 1


def test_first_turns_are_not_held_against_later_ones_nor_long_prompts_against_short() -> None:
    guard = Guard(QUICK)
    talk(guard, 200, canary=True, turn=1, ttft_s=2.0)
    talk(guard, 200, canary=False, turn=2, ttft_s=0.1)
    talk(guard, 200, canary=True, prompt_tokens=20_000, ttft_s=2.0, first=200)
    talk(guard, 200, canary=False, prompt_tokens=100, ttft_s=0.1, first=200)
    found = look(guard)
    assert (found.ttft.above, found.verdict) == (0, None)
    assert [size_of(tokens) for tokens in (0, 1023, 1024, 4096, 16384, 10**6)] == [0, 0, 1, 2, 3, 3]


def test_what_is_older_than_the_window_is_forgotten() -> None:
    guard = Guard(QUICK)
    talk(guard, 200, 0.0, canary=True, ttft_s=9.0)
    talk(guard, 200, 0.0, canary=False)
    talk(guard, 200, 61.0, canary=True, first=200)
    talk(guard, 200, 61.0, canary=False, first=200)
    found = look(guard, 61.0)
    assert (found.ttft.canary, found.ttft.baseline, found.verdict) == (200, 200, None)


def test_both_sides_are_seen_over_the_same_time_when_one_is_too_many_to_keep() -> None:
    """The baseline fills its memory within the second half of the window: the canary's first half does not count."""
    guard = Guard(dataclasses.replace(QUICK, window_s=1000.0))
    talk(guard, 100, 1.0, canary=True, ttft_s=9.0)
    talk(guard, MAX_PER_STRATUM, 2.0, canary=False)
    talk(guard, 60, 3.0, canary=True, first=100)
    talk(guard, MAX_PER_STRATUM, 4.0, canary=False, first=MAX_PER_STRATUM)
    found = look(guard, 5.0)
    assert (found.ttft.canary, found.ttft.above) == (60, 0)


def test_after_a_change_of_sides_everything_before_is_forgotten() -> None:
    guard = Guard(QUICK)
    talk(guard, 100, canary=True, ttft_s=9.0)
    talk(guard, 300, canary=False)
    assert look(guard).verdict
    guard.clear()
    assert guard.findings is None
    assert look(guard).verdict is None


def test_more_looks_more_workers_and_fewer_false_alarms_each_ask_for_more_evidence() -> None:
    plain = look(Guard(QUICK)).alpha
    assert look(Guard(QUICK, workers=4)).alpha == pytest.approx(plain / 4)
    assert look(Guard(dataclasses.replace(QUICK, look_s=5.0))).alpha == pytest.approx(plain / 2)
    assert plain == pytest.approx(QUICK.false_alarms / (3 * 86_400 / QUICK.look_s))


def test_a_look_is_cut_into_pieces_that_give_the_same() -> None:
    draw, guard = random.Random(1), Guard(QUICK)
    for number in range(2000):
        tokens = draw.choice([100, 2000, 9000])
        guard.add(Sample(number % 2 == 0, str(number), draw.choice([1, 2]), tokens, False, draw.random()), 0.0)
    pieces = sum(1 for _ in guard.steps(0.0))
    assert pieces >= 6
    first = guard.findings
    assert first is not None
    assert look(guard) == first
