"""`ppd-gateway profile`: the plan, how it is carried out, when it stops, what is on disk."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from gateway.ops.profile.book import Book, Identity
from gateway.ops.profile.campaign import carry_out
from gateway.ops.profile.errors import ProfileError
from gateway.ops.profile.measure import Measured
from gateway.ops.profile.plan import Plan, Shape, Task, estimate_s, grid
from gateway.ops.profile.presets import PRESETS
from gateway.ops.profile.progress import Progress, clock
from lut.raw import RawPoint, read_raw

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
