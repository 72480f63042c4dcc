"""What is only known afterwards: prompt tokens, output tokens, the request rate; and what the operator wants."""

from __future__ import annotations

import random
import statistics

import pytest

from gateway.core.conversations import Conversation, Kind, Recognition
from gateway.core.estimates import START_BYTES_PER_TOKEN, BytesPerToken, prompt_tokens
from gateway.core.outputs import PRIOR_TOKENS, OutputLengths, RunningMedian, add_recent
from gateway.core.rates import RequestRate
from gateway.core.weights import PRESETS, Weights, parse_weights

# Bytes per token


def test_a_prompt_of_an_unknown_model_has_a_token_per_four_bytes() -> None:
    assert START_BYTES_PER_TOKEN == 4.0
    estimate = BytesPerToken()
    assert [estimate.tokens("m", size) for size in (0, 1, 4, 6, 4000)] == [1, 1, 1, 2, 1000]


def test_a_count_moves_the_estimate_by_a_twentieth_of_the_way() -> None:
    """Seen: 3000 bytes for 500 tokens, 6 a token. 4 + 0.05 · (6 − 4) = 4.1 bytes a token; 4100 / 4.1 = 1000."""
    estimate = BytesPerToken()
    estimate.learn("m", 3000, 500)
    assert estimate.tokens("m", 4100) == 1000


def test_after_many_counts_the_estimate_is_what_was_seen() -> None:
    estimate = BytesPerToken()
    for _ in range(200):
        estimate.learn("m", 2000, 1000)
    assert estimate.tokens("m", 2000) == 1000


def test_models_do_not_teach_each_other() -> None:
    estimate = BytesPerToken()
    for _ in range(200):
        estimate.learn("m", 2000, 1000)
    assert estimate.tokens("other", 4000) == 1000


@pytest.mark.parametrize("tokens", [0, -1])
def test_a_count_of_nothing_teaches_nothing(tokens: int) -> None:
    estimate = BytesPerToken()
    estimate.learn("m", 3000, tokens)
    assert estimate.tokens("m", 4000) == 1000


def test_made_up_model_names_do_not_fill_the_memory() -> None:
    estimate = BytesPerToken(max_models=2)
    for name in ("a", "b", "c"):
        for _ in range(200):
            estimate.learn(name, 2000, 1000)
    assert [estimate.tokens(name, 4000) for name in ("a", "b", "c")] == [2000, 2000, 1000]
    assert len(estimate._ratio) == 2


# Output tokens


def test_the_running_median_is_the_lower_median_of_the_last_values() -> None:
    dice, seen = random.Random(1), []
    running = RunningMedian(5)
    assert running.median is None
    for _ in range(300):
        seen.append(dice.randrange(10))
        running.add(seen[-1])
        assert running.median == statistics.median_low(seen[-5:])


def test_before_anything_was_seen_256_tokens_are_expected() -> None:
    assert PRIOR_TOKENS == 256
    assert OutputLengths().expect((), b"t", None) == 256


def test_the_conversations_own_answers_count_first_then_the_tenants_then_everyones() -> None:
    lengths = OutputLengths()
    for tokens in (10, 20, 30):
        lengths.learn(b"ours", tokens)
    for _ in range(5):
        lengths.learn(b"theirs", 500)
    assert lengths.expect((7, 90, 8), b"ours", None) == 8
    assert lengths.expect((), b"ours", None) == 20
    assert lengths.expect((), b"unknown", None) == 500


@pytest.mark.parametrize(
    ("max_tokens", "min_tokens", "exact", "expected"),
    [
        (None, 0, False, 100),
        (50, 0, False, 50),
        (500, 0, False, 100),
        (500, 200, False, 200),
        (500, 0, True, 500),
        (None, 0, True, 100),
        (0, 0, False, 1),
        (0, 0, True, 1),
    ],
)
def test_max_tokens_is_a_ceiling_and_with_ignore_eos_the_length(
    max_tokens: int | None, min_tokens: int, exact: bool, expected: int
) -> None:
    assert OutputLengths().expect((100,), b"t", max_tokens, min_tokens=min_tokens, exact=exact) == expected


def test_tenants_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.core.outputs._MAX_TENANTS", 2)
    lengths = OutputLengths()
    lengths.learn(b"a", 10)
    lengths.learn(b"b", 20)
    lengths.learn(b"a", 10)
    lengths.learn(b"c", 30)
    # b was the least recently used; the median of all (10, 20, 10, 30) is 10.
    assert [lengths.expect((), tenant, None) for tenant in (b"a", b"b", b"c")] == [10, 10, 30]


def test_a_conversation_carries_its_last_five_answers() -> None:
    recent: tuple[int, ...] = ()
    for tokens in range(1, 8):
        recent = add_recent(recent, tokens)
    assert recent == (3, 4, 5, 6, 7)


# Rate


def test_ten_turns_in_two_seconds_are_five_a_second() -> None:
    rate = RequestRate(100.0)
    for _ in range(10):
        rate.count(101.0)
    assert rate.per_second(102.0) == 5.0


def test_the_first_second_counts_as_one() -> None:
    rate = RequestRate(100.0)
    rate.count(100.0)
    assert rate.per_second(100.0) == 1.0
    assert rate.per_second(100.5) == 1.0


def test_after_five_seconds_a_turn_is_forgotten() -> None:
    rate = RequestRate(0.0)
    for _ in range(10):
        rate.count(0.1)
    assert rate.per_second(4.9) == pytest.approx(10 / 4.9)
    assert rate.per_second(5.0) == 0.0
    rate.count(7.0)
    assert rate.per_second(7.0) == pytest.approx(1 / 5)


def test_a_steady_stream_has_its_rate_and_forgets_a_burst() -> None:
    rate = RequestRate(0.0)
    for _ in range(1000):
        rate.count(0.0)
    for tick in range(200):
        rate.count(tick / 10)
    assert rate.per_second(20.0) == pytest.approx(10, rel=0.06)


def test_a_long_silence_forgets_everything() -> None:
    rate = RequestRate(0.0)
    rate.count(1.0)
    assert rate.per_second(1e7) == 0.0
    rate.count(1e7)
    assert rate.per_second(1e7) == pytest.approx(0.2)


def test_a_clock_that_steps_back_does_no_harm() -> None:
    rate = RequestRate(10.0)
    rate.count(12.0)
    rate.count(11.0)
    assert rate.per_second(12.0) == 1.0


# Weights


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("interactive", Weights(2, 1)),
        ("balanced", Weights(1, 1)),
        (" Throughput ", Weights(1, 4)),
        ("ttft=2,tpot=1", Weights(2, 1)),
        ("tpot=0.5", Weights(1, 0.5)),
        (" TTFT = 3 , tpot = 0 ", Weights(3, 0)),
        ("ttft=0", Weights(0, 1)),
    ],
)
def test_weights_are_read_from_words_or_numbers(text: str, expected: Weights) -> None:
    assert parse_weights(text) == expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "weights are written ttft=2,tpot=1 or as one of interactive, balanced, throughput"),
        ("fast", "weights are written"),
        ("ttft=2;tpot=1", "the weight ttft must be a number"),
        ("ttft", "weights are written"),
        ("speed=1", "weights are written"),
        ("ttft=", "the weight ttft must be a number"),
        ("ttft=-1", "the weight ttft must be a number of 0 or more, not -1.0"),
        ("tpot=nan", "the weight tpot must be a number of 0 or more, not nan"),
        ("tpot=inf", "the weight tpot must be a number of 0 or more, not inf"),
        ("ttft=0,tpot=0", "the weights must not both be 0"),
    ],
)
def test_bad_weights_are_refused_with_a_reason(text: str, complaint: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_weights(text)
    assert str(caught.value).startswith(complaint)


def test_the_presets_say_what_their_names_promise() -> None:
    """More weight on the first token for people who wait for it, on the stream where throughput counts."""
    interactive, balanced, throughput = (PRESETS[name] for name in ("interactive", "balanced", "throughput"))
    assert interactive.w_ttft / interactive.w_tpot > balanced.w_ttft / balanced.w_tpot == 1
    assert throughput.w_ttft / throughput.w_tpot < 1


# Prompt tokens of a recognised turn


def recognised(kind: Kind, shared: int, *, last_bytes: int = 12_000, last_tokens: int = 2_000) -> Recognition:
    """A second turn after a prompt of that size."""
    conversation = Conversation(b"k" * 16, 0.0, turn=1, prompt_bytes=last_bytes, prompt_tokens=last_tokens)
    return Recognition(conversation, kind, 2, shared)


def test_of_a_next_turn_only_what_was_added_is_estimated() -> None:
    """2000 tokens of prompt, 100 of answer, 25 new; a token has 4 bytes."""
    grown = 12_000 + 4 * 100 + 4 * 25
    assert prompt_tokens(recognised(Kind.NEXT, 2_100), "m", grown, BytesPerToken()) == 2_125


def test_of_an_answer_whose_reasoning_was_left_out_only_what_is_there_counts() -> None:
    """Of 500 tokens of answer 100 came back: they are new, as no pod computed them behind this prompt."""
    grown = 12_000 + 4 * 100 + 4 * 25
    assert prompt_tokens(recognised(Kind.NEXT, 2_000), "m", grown, BytesPerToken()) == 2_125


def test_a_repeated_prompt_has_the_tokens_it_had() -> None:
    assert prompt_tokens(recognised(Kind.REPEAT, 2_000), "m", 12_000, BytesPerToken()) == 2_000


@pytest.mark.parametrize(
    ("recognition", "size", "expected"),
    [
        (recognised(Kind.NEXT, 700), 8_000, 2_000),
        (recognised(Kind.NEXT, 700), 16_000, 4_000),
        (recognised(Kind.NEXT, 0), 16_000, 4_000),
        (recognised(Kind.NEXT, 0, last_bytes=0, last_tokens=0), 8_000, 2_000),
        (recognised(Kind.BRANCH, 700, last_bytes=0, last_tokens=0), 8_000, 2_000),
        (recognised(Kind.NEW, 0, last_bytes=0, last_tokens=0), 8_000, 2_000),
    ],
    ids=["shorter", "longer, but from an earlier turn", "rewritten", "pod did not say", "branch", "new"],
)
def test_a_prompt_that_does_not_go_on_from_the_last_is_estimated_as_a_whole(
    recognition: Recognition, size: int, expected: int
) -> None:
    assert prompt_tokens(recognition, "m", size, BytesPerToken()) == expected


@pytest.mark.parametrize("kind", [Kind.NEXT, Kind.BRANCH])
def test_beyond_what_is_shared_there_is_at_least_one_new_token(kind: Kind) -> None:
    """Also where an average of bytes says less: the pod counted the shared tokens."""
    assert prompt_tokens(recognised(kind, 2_500), "m", 12_040, BytesPerToken()) == 2_501
    assert prompt_tokens(recognised(kind, 5_000), "m", 11_000, BytesPerToken()) == 5_001
