"""`ppd-gateway profile`: one cell: when its turns come, what is counted of them, of which words they are made."""

from __future__ import annotations

import itertools
import random

import pytest

from gateway.ops.profile import schedule
from gateway.ops.profile.measure import CellRun, Fate, Limits
from gateway.ops.profile.words import CANDIDATES, Words, learn_words


class TestArrivals:
    def times(self, rate: float, seed: str, ramp: int = 4, samples: int = 20) -> list[float]:
        return list(itertools.islice(schedule.arrivals(rate, seed, ramp, samples), ramp + 2 * samples))

    def test_the_seed_fixes_them(self) -> None:
        assert self.times(2.0, "a") == self.times(2.0, "a") != self.times(2.0, "b")

    def test_the_measured_turns_come_at_exactly_the_wanted_rate_behind_the_ramp(self) -> None:
        times = self.times(2.0, "a")
        assert times == sorted(times)
        assert 0 < times[0] <= times[3] < 2.0 <= times[4] <= times[23] < 12.0 <= times[24]

    def test_gaps_are_those_of_a_poisson_process(self) -> None:
        times = self.times(1.0, "a", ramp=0, samples=4000)
        gaps = [after - before for before, after in itertools.pairwise(times)]
        mean = sum(gaps) / len(gaps)
        assert mean == pytest.approx(1.0, rel=0.01)
        assert sum((gap - mean) ** 2 for gap in gaps) / len(gaps) == pytest.approx(1.0, rel=0.1)
        assert sum(gap > 1.0 for gap in gaps) / len(gaps) == pytest.approx(0.3679, abs=0.02)

    def test_the_ramp_is_long_enough_to_fill_the_system(self) -> None:
        assert schedule.ramp_turns(8.0, idle_turn_s=2.0) == 20
        assert schedule.ramp_turns(8.0, idle_turn_s=0.1) == 8

    def test_no_more_conversations_than_the_caches_hold(self) -> None:
        assert schedule.conversations_that_fit(40_000, 1_000) == 30
        assert schedule.conversations_that_fit(40_000, 100_000) == 1
        assert schedule.conversations_that_fit(None, 1_000) > 1_000_000


class TestCellRun:
    def run(self, ramp: int = 1, samples: int = 4, **limits: float) -> CellRun:
        return CellRun(ramp, samples, Limits(**{"max_in_flight": 10, **limits}))  # type: ignore[arg-type]

    def play(self, run: CellRun, sent_s: float, ttft_s: float, tpot_s: float = 0.01, tokens: int = 11) -> None:
        number = run.sent(sent_s)
        run.first(number, sent_s + ttft_s)
        run.ended(number, sent_s + ttft_s + tpot_s * (tokens - 1), Fate.GOOD, tokens)

    def test_the_numbers_are_those_of_the_measured_turns(self) -> None:
        run = self.run()
        self.play(run, 0.0, 9.0)  # the ramp
        for sent_s, ttft_s in ((10.0, 0.1), (11.0, 0.2), (12.0, 0.3), (13.0, 0.4)):
            assert not run.over
            self.play(run, sent_s, ttft_s)
        assert run.over
        measured = run.result(14.0)
        assert (measured.samples, measured.success, measured.overloaded) == (4, 1.0, None)
        assert measured.ttft_mean_s == pytest.approx(0.25)
        assert measured.ttft_p99_s == pytest.approx(0.4)
        assert measured.tpot_mean_s == pytest.approx(0.01)
        assert measured.rate_achieved == pytest.approx(1.0)
        assert measured.duration_s == 14.0

    def test_an_answer_of_one_token_has_no_time_per_token(self) -> None:
        run = self.run(ramp=0, samples=1)
        self.play(run, 0.0, 0.1, tokens=1)
        measured = run.result(1.0)
        assert measured.ttft_mean_s == pytest.approx(0.1)
        assert measured.tpot_mean_s is None

    def test_a_turn_whose_context_was_gone_counts_nowhere(self) -> None:
        run = self.run(ramp=0, samples=2)
        run.ended(run.sent(0.0), 1.0, Fate.COLD, 11)
        self.play(run, 2.0, 0.1)
        measured = run.result(3.0)
        assert (measured.samples, measured.good, measured.cold, measured.success) == (1, 1, 1, 1.0)

    def test_too_many_in_flight_is_overloaded_and_what_had_not_ended_has_not_succeeded(self) -> None:
        run = self.run(ramp=0, samples=100, max_in_flight=3)
        self.play(run, 0.0, 0.1)
        for _ in range(4):
            assert not run.over
            run.sent(1.0)
        assert run.over
        measured = run.result(2.0)
        assert measured.overloaded == "4 turns in flight"
        assert (measured.samples, measured.success) == (5, 0.2)

    def test_overloaded_on_the_ramp_the_ramp_is_what_was_measured(self) -> None:
        run = self.run(ramp=50, samples=4, max_in_flight=1)
        run.sent(0.0)
        run.sent(0.0)
        measured = run.result(1.0)
        assert (measured.samples, measured.success, measured.ttft_mean_s) == (2, 0.0, None)

    def test_when_95_percent_can_no_longer_succeed_it_is_overloaded(self) -> None:
        run = self.run(ramp=0, samples=20)
        run.ended(run.sent(0.0), 1.0, Fate.FAILED)
        assert not run.over
        run.ended(run.sent(0.0), 1.0, Fate.FAILED)
        assert run.over

    def test_first_tokens_that_come_later_and_later_are_overloaded(self) -> None:
        run = self.run(ramp=0, samples=1000)
        for number in range(100):
            if run.over:
                break
            self.play(run, float(number), 0.1 * (number + 1))
        assert run.overloaded is not None
        assert number <= 32

    def test_first_tokens_that_are_slow_but_steady_are_not(self) -> None:
        run = self.run(ramp=0, samples=1000)
        for number in range(100):
            self.play(run, float(number), 0.5 + (number % 7))
        assert run.overloaded is None


class TestWords:
    async def test_only_words_of_one_token_each_are_used_where_there_are_enough(self) -> None:
        async def count(text: str) -> int | None:
            return sum(2 if "w" in word else 1 for word in text.split())

        words = await learn_words(count)
        assert words is not None
        assert not any("w" in word for word in words.words)
        text = words.text(100, random.Random(1))
        assert await count(text) == 100

    async def test_else_all_are_at_their_mean_number_of_tokens(self) -> None:
        async def count(text: str) -> int | None:
            return 2 * len(text.split())

        words = await learn_words(count)
        assert words == Words(CANDIDATES, 2.0)
        assert len(words.text(100, random.Random(1)).split()) == 50

    async def test_a_model_that_cannot_be_asked_has_no_words_of_its_own(self) -> None:
        async def count(text: str) -> int | None:
            return None

        assert await learn_words(count) is None
