"""`ppd-gateway profile`: the plan, the arrivals, what is counted, when it stops, what is on disk, what is refused."""

from __future__ import annotations

import argparse
import itertools
import json
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import msgspec
import pytest

from gateway.ops.cli import main
from gateway.ops.config import Config, load
from gateway.ops.profile import command, schedule
from gateway.ops.profile.book import Book, Identity
from gateway.ops.profile.campaign import carry_out
from gateway.ops.profile.errors import ProfileError
from gateway.ops.profile.measure import CellRun, Fate, Limits, Measured
from gateway.ops.profile.plan import Plan, Shape, Task, estimate_s, grid
from gateway.ops.profile.presets import PRESETS
from gateway.ops.profile.progress import Progress, clock
from gateway.ops.profile.words import CANDIDATES, Words, learn_words
from gateway.ops.serve import running
from loadtest.pod.simulated import SimulatedPod
from lut.raw import RawPoint, read_raw
from lut.table import TableSet

IDENTITY = Identity("1P_2D", "llama", 16, simulated=True)
SHAPE = Shape(512, 32, 64, 256)


def plan(**changes: object) -> Plan:
    """One workload at 1, 2 and 4 turns per second, once per arm."""
    fields = {"shapes": (SHAPE,), "rates": (1.0, 2.0, 4.0), "samples": 10, "window_s": 0.0, "repeats": 1, **changes}
    return Plan(**fields)  # type: ignore[arg-type]


def numbers(overloaded: str | None = None, good: int = 10, samples: int = 10) -> Measured:
    return Measured(samples, good, 0, 0.1, 0.2, 0.01, 0.02, 4.0, overloaded, 3.0)


class Desk:
    """A bench that measures nothing: it notes what it was asked, and is overloaded from some rate on."""

    def __init__(self, overloaded_from: float = 1e9, breaks_at: int = 1 << 30) -> None:
        self.asked: list[Task] = []
        self._overloaded_from = overloaded_from
        self._breaks_at = breaks_at

    async def measure(self, task: Task) -> Measured:
        if len(self.asked) == self._breaks_at:
            raise KeyboardInterrupt
        self.asked.append(task)
        return numbers("many turns", good=6) if task.rate >= self._overloaded_from else numbers()


class Silent:
    def begins(self, task: Task) -> None: ...

    def done(self, task: Task, measured: Measured, line: RawPoint) -> None: ...

    def skipped(self, task: Task, *, known: bool) -> None: ...


async def campaign(path: Path, desk: Desk, wanted: Plan) -> list[RawPoint]:
    with Book(path, IDENTITY) as book:
        await carry_out(wanted, desk, book, Silent(), lambda: None)
    return [located.point for located in read_raw(path).points]


class TestPlan:
    def test_every_cell_is_measured_once_per_arm_and_repeat_and_rates_rise_within_a_column(self) -> None:
        wanted = plan(repeats=2)
        tasks = list(wanted.tasks())
        assert len(tasks) == wanted.num_tasks == 3 * 2 * 2
        assert [(task.repeat, task.arm, task.rate) for task in tasks[:7]] == [
            (0, "pd", 1.0),
            (0, "pd", 2.0),
            (0, "pd", 4.0),
            (0, "local", 1.0),
            (0, "local", 2.0),
            (0, "local", 4.0),
            (1, "pd", 1.0),
        ]

    def test_the_paper_s_grid_has_18_workloads_and_counts_turns_not_conversations(self) -> None:
        preset = PRESETS["paper"]
        shapes = preset.shapes()
        assert len(shapes) == 18
        assert preset.rates == (1, 2, 4, 8, 12, 16, 20, 24, 32, 40)
        assert Shape(2048, 1024, 32, 1024) in shapes
        assert Shape(256, 16, 32, 128) in shapes

    @pytest.mark.parametrize("name", ["paper", "full"])
    def test_presets_that_make_tables_measure_often_enough_for_an_interval(self, name: str) -> None:
        assert PRESETS[name].repeats >= 3

    def test_quick_takes_minutes(self) -> None:
        preset = PRESETS["quick"]
        wanted = Plan(
            shapes=preset.shapes(),
            rates=preset.rates,
            samples=preset.samples,
            window_s=preset.window_s,
            repeats=preset.repeats,
        )
        assert 60 < sum(map(estimate_s, wanted.tasks())) < 20 * 60

    def test_a_cell_is_measured_for_a_while_at_high_rates(self) -> None:
        wanted = plan(samples=10, window_s=5.0, rates=(1.0, 8.0), arms=("pd",))
        assert [task.samples for task in wanted.tasks()] == [10, 40]

    def test_both_arms_see_the_same_arrivals_and_repeats_see_others(self) -> None:
        seeds = {(task.arm, task.repeat): task.seed for task in plan(rates=(1.0,), repeats=2).tasks()}
        assert seeds["pd", 0] == seeds["local", 0] != seeds["pd", 1]

    def test_what_no_pod_could_hold_is_left_out(self) -> None:
        wanted = plan(shapes=grid((512, 4096), (32,), (64,)))
        assert [shape.context_tokens for shape in wanted.up_to(4000).shapes] == [512]
        with pytest.raises(ProfileError, match="no cell fits"):
            wanted.up_to(100)

    def test_the_answer_of_turn_one_is_at_most_half_of_the_context(self) -> None:
        assert [shape.reply_tokens for shape in grid((64, 2048), (1,), (1,))] == [32, 256]


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


class TestBookAndCampaign:
    async def test_a_line_per_cell_arm_and_repeat(self, tmp_path: Path) -> None:
        lines = await campaign(tmp_path / "raw", Desk(), plan())
        assert [(line.arm, line.rate) for line in lines] == list(itertools.product(("pd", "local"), (1.0, 2.0, 4.0)))
        first = lines[0]
        assert (first.assignment, first.model, first.block_size, first.simulated) == ("1P_2D", "llama", 16, True)
        assert (first.context_tokens, first.new_tokens, first.output_tokens) == (512, 32, 64)
        assert (first.samples, first.success, first.ttft_mean_s, first.tpot_p99_s) == (10, 1.0, 0.1, 0.02)

    async def test_an_interrupted_run_goes_on_where_it_was_even_after_a_torn_line(self, tmp_path: Path) -> None:
        path, wanted = tmp_path / "raw", plan()
        with pytest.raises(KeyboardInterrupt):
            await campaign(path, Desk(breaks_at=4), wanted)
        whole = path.read_bytes()
        path.write_bytes(whole[:-20])
        desk = Desk()
        lines = await campaign(path, desk, wanted)
        assert [(task.arm, task.rate) for task in desk.asked] == [("local", 1.0), ("local", 2.0), ("local", 4.0)]
        assert len(lines) == wanted.num_tasks
        assert len({(line.arm, line.rate) for line in lines}) == wanted.num_tasks

    async def test_above_an_overloaded_cell_nothing_is_run_but_each_rate_gets_its_line(self, tmp_path: Path) -> None:
        desk = Desk(overloaded_from=2.0)
        lines = await campaign(tmp_path / "raw", desk, plan(arms=("pd",)))
        assert [task.rate for task in desk.asked] == [1.0, 2.0]
        assert [line.stopped for line in lines] == [None, "overloaded", "overloaded"]
        assert [line.success for line in lines] == [1.0, 0.6, 0.3]
        assert [line.duration_s for line in lines] == [3.0, 3.0, 0.0]

    async def test_what_was_overloaded_before_an_interruption_is_so_after_it(self, tmp_path: Path) -> None:
        path = tmp_path / "raw"
        await campaign(path, Desk(overloaded_from=2.0), plan(arms=("pd",)))
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
        desk = Desk()
        assert len(await campaign(path, desk, plan(arms=("pd",)))) == 3
        assert desk.asked == []

    @pytest.mark.parametrize(
        "other",
        [
            Identity("1P_3D", "llama", 16, simulated=True),
            Identity("1P_2D", "qwen", 16, simulated=True),
            Identity("1P_2D", "llama", 32, simulated=True),
            Identity("1P_2D", "llama", 16, simulated=False),
        ],
    )
    async def test_a_file_of_other_pods_is_refused(self, tmp_path: Path, other: Identity) -> None:
        path = tmp_path / "raw"
        await campaign(path, Desk(), plan())
        with pytest.raises(ProfileError, match=r"raw:1: .* choose another --out"):
            Book(path, other)


class TestProgress:
    def test_the_estimate_of_what_is_left_follows_what_was_taken(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now_s = iter([0.0, 100.0])
        monkeypatch.setattr("gateway.ops.profile.progress.time.monotonic", lambda: next(now_s))
        wanted = plan(rates=(1.0, 2.0), arms=("pd",))
        first, second = wanted.tasks()
        with open("/dev/null", "w", encoding="utf-8") as nowhere:  # noqa: PTH123
            progress = Progress(wanted, nowhere, None)
            progress.begins(first)
            progress.done(first, numbers(), None)  # type: ignore[arg-type]
        assert progress.eta_s == pytest.approx(100.0 * estimate_s(second) / estimate_s(first))

    def test_durations_are_read_at_a_glance(self) -> None:
        assert [clock(59.6), clock(125), clock(3 * 3600 + 240)] == ["1 min 00 s", "2 min 05 s", "3 h 04 min"]


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


PODS = ("--prefill", "http://127.0.0.1:1", "--decode", "http://127.0.0.1:2")


class TestCommand:
    def test_a_dry_run_prints_the_plan_and_its_duration_and_asks_no_pod(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["profile", "--preset", "paper", "--dry-run", *PODS]) == 0
        said = capsys.readouterr().out
        assert "18 workloads x 10 rates x 2 arms x 3 repeats: 1080 cells" in said
        assert " h " in said.splitlines()[-1]

    @pytest.mark.parametrize(
        ("arguments", "why"),
        [
            (("--rates", "4,2"), "--rates: not increasing: 4 before 2"),
            (("--rates", "0,1"), "--rates: every value must be above 0"),
            (("--contexts", "8"), "--contexts: 8 is too small"),
            (("--news", "32,32"), "--news: not increasing"),
            (("--reply-tokens", "0"), "--reply-tokens: must be 1 or more"),
            (("--samples", "1"), "--samples: at least 2"),
            (("--repeats", "0"), "--repeats: must be 1 or more"),
            (("--arms", "pd,pd"), "--arms: name each arm once"),
            (("--patience-s", "0"), "--patience-s: must be above 0"),
            ((), "--out: say which raw file"),
            (("--out", "/dev/null"), "pod http://127.0.0.1:"),
        ],
    )
    def test_bad_input_is_one_clear_line_and_exit_status_2(
        self, arguments: Sequence[str], why: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["profile", *PODS, *arguments]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.count("\n") == 1
        assert why in said.err

    def test_no_prefill_pod_is_nothing_to_compare(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["profile", "--out", "/dev/null", "--decode", "http://127.0.0.1:2"]) == 2
        assert "0 prefill and 1 decode pods" in capsys.readouterr().err

    @pytest.mark.parametrize("text", ["", "1,two", "pd;local"])
    def test_a_list_that_is_none_is_a_usage_error(self, text: str) -> None:
        with pytest.raises(SystemExit) as stopped:
            main(["profile", "--rates", text])
        assert stopped.value.code == 2


@pytest.fixture
async def pods() -> AsyncIterator[list[SimulatedPod]]:
    """One prefill and two decode pods that take no time."""
    async with AsyncExitStack() as stack:
        roles = ("prefill", "decode", "decode")
        yield [await stack.enter_async_context(SimulatedPod(role=role)) for role in roles]


def config_of(pods: list[SimulatedPod], **flags: object) -> Config:
    urls = {role: [pod.url for pod in pods if pod.options.role == role] for role in ("prefill", "decode")}
    return load(None, {}, {**urls, **flags})


def options_of(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_command(parser.add_subparsers())
    return parser.parse_args(["profile", *arguments])


async def test_from_pods_to_a_table_to_a_decision(
    pods: list[SimulatedPod], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw, table = tmp_path / "raw.jsonl", tmp_path / "table"
    grid_flags = ("--contexts", "64,128", "--news", "32", "--outputs", "8", "--rates", "20", "--samples", "4")
    options = options_of("--out", str(raw), *grid_flags, "--window-s", "0", "--repeats", "1")
    await command.profile(options, command.plan_of(options), config_of(pods))

    lines = [located.point for located in read_raw(raw).points]
    assert len(lines) == 2 * 2
    assert {line.simulated for line in lines} == {True}
    assert {line.assignment for line in lines} == {"1P_2D"}
    assert {(line.samples, line.success, line.stopped) for line in lines} == {(4, 1.0, None)}
    said = capsys.readouterr().out
    assert "1P_2D sim SIMULATED" in said
    assert "really" not in said
    assert "4 cells measured" in said
    _the_pods_saw_real_conversations(pods)

    assert main(["lut", "build", str(raw), "-o", str(table)]) == 0
    async with running(config_of(pods, policy="ppd", table=str(table), port=0, expose_decisions="true")) as gateway:
        reason = await _reason_of_a_second_turn(gateway.url)
    assert "S=" in reason
    assert "cell ctx=128 in=32 out=8 q=20 pi=1P_2D" in reason


async def test_readback_is_measured_as_a_third_arm(tmp_path: Path) -> None:
    raw, table = tmp_path / "raw.jsonl", tmp_path / "table"
    options = options_of(
        *("--out", str(raw), "--arms", "pd,local,readback", "--contexts", "512", "--news", "32", "--outputs", "8"),
        *("--rates", "20", "--samples", "4", "--window-s", "0", "--repeats", "1"),
    )
    async with AsyncExitStack() as stack:
        pods = [
            await stack.enter_async_context(SimulatedPod(role=role, bidirectional=role == "prefill"))
            for role in ("prefill", "decode")
        ]
        await command.profile(options, command.plan_of(options), config_of(pods))
    lines = [located.point for located in read_raw(raw).points]
    assert {(line.arm, line.samples, line.success) for line in lines} == {
        ("pd", 4, 1.0),
        ("local", 4, 1.0),
        ("readback", 4, 1.0),
    }
    assert main(["lut", "build", str(raw), "-o", str(table)]) == 0
    arms = TableSet.open(table).nearest_assignment("1P_1D")[0].nearest(512, 32, 8, 20.0)
    assert arms.readback is not None
    assert arms.readback.success == 1.0


async def test_pods_that_refuse_first_turns_are_said_so_and_nothing_is_written(
    pods: list[SimulatedPod], tmp_path: Path
) -> None:
    raw = tmp_path / "raw.jsonl"
    options = options_of("--out", str(raw), "--contexts", "64", "--news", "32", "--outputs", "8", "--rates", "20")
    pods[0].fault("refuse_5xx", status=503, times=1000)
    pods[1].fault("refuse_5xx", status=503, times=1000)
    pods[2].fault("refuse_5xx", status=503, times=1000)
    with pytest.raises(ProfileError, match="a turn on idle pods failed: status 50"):
        await command.profile(options, command.plan_of(options), config_of(pods))
    assert raw.read_bytes() == b""


def _the_pods_saw_real_conversations(pods: list[SimulatedPod]) -> None:
    """Every text is fresh: no two prompts that P was asked to prefill begin alike, but for the turns of one talk."""
    bodies = [json.loads(record.raw) for record in pods[0].requests]
    first_turns = [body["messages"][0]["content"] for body in bodies if len(body["messages"]) == 1]
    assert len(set(first_turns)) == len(first_turns) > 30
    measured = [body for body in bodies if len(body["messages"]) == 3]
    assert all(body["messages"][0]["content"] in first_turns for body in measured)


async def _reason_of_a_second_turn(url: str) -> str:
    messages = [{"role": "user", "content": "how are you " * 30}]
    async with aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"{url}/ready") as ready:
                if ready.status == 200:
                    break
        for _ in range(2):
            body = {"model": "sim", "messages": messages, "max_tokens": 8, "ignore_eos": True}
            async with session.post(f"{url}/v1/chat/completions", json=body) as response:
                answer = msgspec.json.decode(await response.read())
                reason = response.headers["X-PPD-Reason"]
            messages = [*messages, answer["choices"][0]["message"], {"role": "user", "content": "and how is he"}]
    return reason
