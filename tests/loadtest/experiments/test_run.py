"""Whole experiments: the shipped core decides, the same seed gives the same turns, policies meet the same traffic."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from gateway.core.policies import POLICIES
from loadtest.experiments.client import Patience
from loadtest.experiments.errors import ExperimentError
from loadtest.experiments.gate import Knobs
from loadtest.experiments.outcomes import Fate, later_turns
from loadtest.experiments.rows import read_jsonl, row_of, write_jsonl
from loadtest.experiments.run import Hardware, play, run, set_up
from loadtest.experiments.scenario import ChangeRate, Kill, Restart, Slow
from loadtest.experiments.sweep import run_all
from loadtest.experiments.traffic import Extent, Stream
from loadtest.experiments.workloads import LongTurns, Recorded, Script, TurnScript, synthetic
from tests.loadtest.experiments.small import spec

TABLES = Path(__file__).parents[3] / "lut" / "simulated-h100-llama3.1-8b"


def test_the_same_seed_gives_the_same_turns() -> None:
    assert repr(run(spec()).turns) == repr(run(spec()).turns)
    assert repr(run(spec()).turns) != repr(run(spec(seed="2")).turns)


def test_policies_meet_the_same_conversations_at_the_same_times() -> None:
    begins = []
    for policy in POLICIES:
        turns = run(spec(policy, tables=TABLES, workload=synthetic("chat"))).turns
        begins.append(sorted((t.conversation, t.turn, t.new_tokens, t.output_tokens) for t in turns))
        firsts = sorted(t.at_s for t in turns if t.turn == 1)
        assert firsts == sorted(t.at_s for t in run(spec("pd", workload=synthetic("chat"))).turns if t.turn == 1)
    assert all(each == begins[0] for each in begins)


@pytest.mark.parametrize(
    ("policy", "later"), [("pd", {"pd"}), ("local", {"local"}), ("threshold", {"local"}), ("readback", {"readback"})]
)
def test_later_turns_take_the_route_of_the_policy(policy: str, later: set[str]) -> None:
    turns = run(spec(policy)).turns
    assert {turn.route for turn in turns if turn.turn == 1} == {"pd"}
    assert {turn.route for turn in later_turns(turns)} == later
    assert {turn.fate for turn in turns} == {Fate.GOOD}


def test_replicas_serve_conversations_whole_and_move_nothing() -> None:
    result = run(spec("pd", assignment="3R"))
    assert {turn.route for turn in result.turns} == {"replica"}
    assert (result.link_bytes, result.link_transfers) == (0, 0)


def test_strict_pods_send_later_turns_through_p_and_the_others_keep_them() -> None:
    turns = run(spec("local", assignment="1P_1D_1pD", extent=Extent(conversations=30))).turns
    routes = [turn.route for turn in later_turns(turns)]
    assert {"pd", "local"} == set(routes)


def test_local_turns_find_their_history_in_the_cache_and_through_p_it_moves() -> None:
    local, through = run(spec("local")), run(spec("pd"))
    for turn in later_turns(local.turns):
        assert turn.prompt_tokens - turn.cached_tokens <= turn.new_tokens + 16
    assert local.link_transfers == 8
    assert through.link_transfers == 24
    assert through.link_bytes > local.link_bytes


def test_a_connector_that_holds_the_engine_makes_first_tokens_later() -> None:
    quick, held = (run(spec("pd", hardware=Hardware(handover_s=seconds))).turns for seconds in (0.0, 0.1))
    assert held[0].ttft_s == pytest.approx(quick[0].ttft_s + 0.1)


def test_every_block_of_a_first_turn_crosses_the_link_once() -> None:
    hardware = Hardware()
    workload = LongTurns("one", 1, 512, 1, 8)
    result = run(spec("pd", workload=workload))
    # A prompt of 32 whole blocks: D reads all of them and computes the last token again.
    assert result.link_bytes == 8 * 512 * hardware.load().cache.bytes_per_token


def test_answers_are_as_long_as_the_script_says_but_nobody_knew() -> None:
    """The gateway's estimate of the first answer is its prior, whatever the script."""
    stage = set_up(spec(workload=LongTurns("long", 1, 64, 1, 700), extent=Extent(conversations=1)))
    seen = []
    choose = stage.gate.outputs.expect
    stage.gate.outputs.expect = lambda *args, **kw: seen.append(choose(*args, **kw)) or seen[-1]  # type: ignore[method-assign, func-returns-value]
    result = play(stage)
    assert seen == [256]
    assert result.turns[0].output_tokens == 700


def test_a_client_of_one_slot_makes_conversations_wait_and_the_wait_counts() -> None:
    script = Script((TurnScript(64, 100),), at_s=0.0)
    workload = Recorded("two", "", [script, script])
    patience = Patience(slots=1)
    first, second = run(spec(workload=workload, rate=None, extent=Extent(conversations=2), patience=patience)).turns
    assert second.sent_s == pytest.approx(first.e2e_s)
    assert second.ttft_s == pytest.approx(first.e2e_s + first.ttft_s, rel=0.05)


def test_who_never_gets_a_slot_has_timed_out_and_the_rest_is_lost() -> None:
    talk = Script((TurnScript(64, 5000), TurnScript(8, 8)), at_s=0.0)
    workload = Recorded("two", "", [talk, talk])
    patience = Patience(slots=1, first_token_s=5.0, turn_s=5.0)
    turns = run(spec(workload=workload, rate=None, extent=Extent(conversations=2), patience=patience)).turns
    fates = {(turn.conversation, turn.turn): turn.fate for turn in turns}
    assert fates == {(0, 1): Fate.TIMED_OUT, (0, 2): Fate.LOST, (1, 1): Fate.TIMED_OUT, (1, 2): Fate.LOST}


def test_a_client_that_gives_up_leaves_nothing_behind() -> None:
    stage = set_up(spec("pd", workload=LongTurns("x", 2, 4000, 64, 400), patience=Patience(first_token_s=0.15)))
    turns = play(stage).turns
    assert Fate.TIMED_OUT in {turn.fate for turn in turns}
    stage.gate.cluster.run()
    assert all(pod.in_flight == 0 and pod.load_tokens == 0 for pod in stage.gate.fleet)
    loads = [stage.gate.cluster.load(pod) for pod in stage.pods]
    assert all((load.running, load.waiting, load.leased_blocks) == (0, 0, 0) for load in loads)


def test_conversations_of_a_dead_pod_go_on_elsewhere() -> None:
    workload = LongTurns("x", 6, 256, 64, 32, think_s=2.0)
    events = (Kill(4.0, "d0"), Restart(9.0, "d0"))
    result = run(spec(workload=workload, events=events, extent=Extent(conversations=20)))
    failed = [turn for turn in result.turns if turn.fate is Fate.FAILED]
    assert all(turn.at_s < 4.0 for turn in failed), "only what was in the middle of an answer is lost"
    later = [turn for turn in later_turns(result.turns) if turn.at_s > 4.5 and turn.fate is Fate.GOOD]
    assert "pd" in {turn.route for turn in later}, "what lay on d0 is computed again"
    assert len(later) > 50


def test_a_slow_pod_is_slow_from_then_on() -> None:
    talks = [Script((TurnScript(64, 50),), at_s=3.0 * number) for number in range(10)]
    workload = Recorded("x", "", talks)
    made = spec("pd", workload=workload, rate=None, extent=Extent(conversations=10), assignment="1R")
    plain = run(made).turns
    slow = run(
        spec(
            "pd",
            workload=workload,
            rate=None,
            extent=Extent(conversations=10),
            assignment="1R",
            events=(Slow(14.0, "r0", 3.0),),
        )
    ).turns
    assert [turn.tpot_s for turn in slow[:5]] == [turn.tpot_s for turn in plain[:5]]
    for before, after in zip(plain[5:], slow[5:], strict=True):
        assert after.tpot_s == pytest.approx(3 * before.tpot_s)


def test_a_change_of_the_rate_is_seen_in_the_traffic() -> None:
    result = run(spec(extent=Extent(until_s=20.0), events=(ChangeRate(10.0, 8.0),)))
    begins = [turn.at_s for turn in result.turns if turn.turn == 1]
    assert sum(at_s >= 10 for at_s in begins) > 2 * sum(at_s < 10 for at_s in begins)


def test_the_warm_up_is_played_and_not_counted() -> None:
    whole = run(spec(extent=Extent(until_s=10.0)))
    counted = run(spec(extent=Extent(until_s=10.0), warm_up_s=5.0))
    assert counted.all_turns == whole.all_turns
    assert 0 < len(counted.turns) < len(whole.turns)
    assert all(turn.at_s >= 5.0 for turn in counted.turns if turn.turn == 1)


def test_tenants_have_numbers_of_their_own() -> None:
    streams = (Stream(synthetic("small_tiny"), 2.0, "a"), Stream(synthetic("large_tiny"), 1.0, "b"))
    row = row_of(run(spec(streams=streams)))
    assert set(row.tenants) == {"a", "b"}
    assert row.tenants["a"].turns + row.tenants["b"].turns == row.all.turns
    assert row.rate == 3.0


def test_rows_are_written_and_read_again_and_do_not_depend_on_the_processes(tmp_path: Path) -> None:
    specs = [spec(policy, seed=seed) for policy in ("pd", "local") for seed in ("1", "2")]
    one, two = run_all(specs, 1), run_all(specs, 2)
    write_jsonl(one, tmp_path / "rows.jsonl")
    assert read_jsonl(tmp_path / "rows.jsonl") == one
    strip = [(row.policy, row.seed, row.all, row.routes, row.moved_bytes) for row in two]
    assert strip == [(row.policy, row.seed, row.all, row.routes, row.moved_bytes) for row in one]


def test_an_endless_percentile_survives_json(tmp_path: Path) -> None:
    row = row_of(run(spec(patience=Patience(first_token_s=0.001))))
    assert row.all.success == 0.0
    assert row.all.ttft_p50_ms is None
    write_jsonl([row], tmp_path / "rows.jsonl")
    assert read_jsonl(tmp_path / "rows.jsonl") == [row]


def test_a_full_decode_pod_hands_over_where_the_operator_says_so() -> None:
    knobs = Knobs(decode_max_in_flight=1)
    turns = run(spec("local", knobs=knobs, rate=20.0, extent=Extent(conversations=30))).turns
    assert "pd" in {turn.route for turn in later_turns(turns)}
    assert not any(math.isnan(turn.ttft_s) for turn in turns)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policy": "magic"}, "unknown policy 'magic'"),
        ({"policy": "ppd"}, "policy ppd: policy ppd needs a table set"),
        ({"hardware": Hardware("abacus")}, "profile 'abacus'"),
        ({"events": (Kill(1.0, "d9"),)}, "no pod 'd9'"),
    ],
)
def test_a_spec_that_cannot_be_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        run(spec(**{"policy": "pd", **changes}))  # type: ignore[arg-type]
