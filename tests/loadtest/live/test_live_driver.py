"""Carrying out a plan, under a clock that is turned by hand."""

import json

import pytest

from loadtest.live.book import Book
from loadtest.live.driver import Driver, Manner
from loadtest.live.schedule import Arrivals, Casting, Window, plan
from loadtest.live.talks import Listed, Talk, Turn
from tests.loadtest.live.live_support import Server, VirtualClock

ONE, THREE = (Talk("", tuple(Turn(f"words {k}", 4, 1.0 if k else 0.0) for k in range(n))) for n in (1, 3))
SECOND = Arrivals(1.0, poisson=False)


class Held:
    """A run of one talk over and over against a server that takes so long."""

    def __init__(self, takes_s, talk: Talk = ONE, end_s: float = 5.5, arrivals: Arrivals = SECOND, **manner: object):
        self.clock = VirtualClock()
        self.server = Server(self.clock, takes_s)
        window = Window(0.0, end_s)
        source = Listed("x", [talk])
        planned = plan(source, arrivals, Casting(1, [("m", 1.0)]), window, seed=1)
        self.book = Book(1, window)
        self._driver = Driver(planned, source, [self.server], Manner(**manner), self.book, self.clock)

    async def run(self) -> "Held":
        await self.clock.run(self._driver.run())
        return self

    def by_due(self, value: str) -> list[float]:
        return [getattr(turn, value) for turn in sorted(self.book.records, key=lambda turn: (turn.due_s, turn.turn))]


async def test_a_stalled_server_delays_no_send() -> None:
    """Every answer takes 100 s; still all five go out on time."""
    run = await Held(lambda _: 100.0).run()
    assert [moment for moment, _, _ in run.server.asked] == pytest.approx([1.0, 2.0, 3.0, 4.0, 5.0])
    assert run.server.most_open == run.book.most_in_flight == 5
    assert run.by_due("e2e_s") == pytest.approx([100.0] * 5)
    assert run.book.in_flight == 0


async def test_waiting_for_room_counts_in_the_latency() -> None:
    """One at a time, 2 s each: due at 1, 2, 3, 4, 5, they end at 3, 5, 7, 9, 11. From sending, each took 2 s; a closed
    loop would have called all of them equally fast."""
    run = await Held(lambda _: 2.0, max_in_flight=1).run()
    assert run.by_due("e2e_s") == pytest.approx([2.0, 3.0, 4.0, 5.0, 6.0])
    assert run.by_due("ttft_s") == pytest.approx([1.0, 2.0, 3.0, 4.0, 5.0])
    assert run.by_due("service_e2e_s") == pytest.approx([2.0] * 5)
    assert run.by_due("held_back") == [False, True, True, True, True]
    assert list(run.book.late_s) == [0.0], "what waited for room was not late by our fault"


async def test_later_turns_follow_the_answer_by_the_thinking_time() -> None:
    """One conversation: turn 1 at 1 s, ends at 1.5; turn 2 at 2.5, ends at 3; turn 3 at 4."""
    run = await Held(lambda _: 0.5, THREE, end_s=1.9, arrivals=SECOND).run()
    assert [moment for moment, _, _ in run.server.asked] == [1.0]
    run = await Held(lambda _: 0.5, THREE, end_s=4.5, arrivals=Arrivals(1.0, poisson=False)).run()
    assert [(m, t) for m, name, t in run.server.asked if name == "loadtest-0"] == [(1.0, 1), (2.5, 2), (4.0, 3)]
    assert [turn.due_s for turn in run.book.records if turn.conversation == 0] == [1.0, 2.5, 4.0]


async def test_turns_at_fixed_moments_wait_for_their_own_answer_and_the_wait_counts() -> None:
    """One conversation at a time: turns due at 1, 2, 3; each answer takes 1.5 s: 1 → 2.5, 2.5 → 4, 4 → 5.5."""
    arrivals = Arrivals(1.0, poisson=False, by_turn=True, lanes=1)
    run = await Held(lambda _: 1.5, THREE, end_s=3.5, arrivals=arrivals).run()
    assert [moment for moment, _, _ in run.server.asked] == pytest.approx([1.0, 2.5, 4.0])
    assert run.by_due("e2e_s") == pytest.approx([1.5, 2.0, 2.5])
    assert run.book.behind == 2
    assert list(run.book.late_s) == [0.0]


async def test_the_server_hears_its_own_replies() -> None:
    run = await Held(lambda _: 0.5, THREE, end_s=4.5, arrivals=Arrivals(0.9, poisson=False), mark="r").run()
    third = next(
        json.loads(body) for (_, name, t), body in zip(run.server.asked, run.server.bodies, strict=True) if t == 3
    )
    assert [message["content"] for message in third["messages"]] == [
        "[r-0] words 0",
        "reply 1",
        "words 1",
        "reply 2",
        "words 2",
    ]


async def test_what_a_failure_leaves_unsaid_is_counted_as_failed() -> None:
    """Turn 1 fails at 2 s; turns 2 and 3 would have been due at 3 and 4 s."""
    run = await Held(lambda n: None if n == 0 else 0.5, THREE, end_s=4.5, arrivals=Arrivals(0.9, poisson=False)).run()
    first = [turn for turn in run.book.records if turn.conversation == 0]
    start_s = 1 / 0.9
    assert [turn.fault for turn in first] == ["http_500", "not_sent", "not_sent"]
    assert [turn.due_s for turn in first] == pytest.approx([start_s, start_s + 2.0, start_s + 3.0])
    assert all(turn.ttft_s == float("inf") for turn in first)
    assert run.book.arms[0].failed == {"http_500": 1, "not_sent": 2}


async def test_no_turn_is_made_up_beyond_the_end_of_the_run() -> None:
    run = await Held(lambda n: None, THREE, end_s=1.5).run()
    assert [turn.fault for turn in run.book.records] == ["http_500"]


async def test_a_prompt_that_would_not_fit_is_not_sent() -> None:
    """The server counts 102 tokens so far; with the next turn that is more than 150."""
    run = await Held(lambda _: 0.5, THREE, end_s=4.0, arrivals=Arrivals(0.5, poisson=False), max_model_len=150).run()
    assert [t for _, _, t in run.server.asked] == [1]
    assert run.book.too_long == 1
    assert all(turn.ok for turn in run.book.records)


async def test_the_warm_up_is_sent_and_not_counted() -> None:
    run = Held(lambda _: 0.5)
    run.book.window = Window(2.5, 5.5)
    await run.run()
    assert len(run.server.asked) == 5
    assert run.by_due("due_s") == pytest.approx([3.0, 4.0, 5.0])
