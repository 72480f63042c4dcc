"""The scheduler, step by step, with values worked out by hand."""

import dataclasses

import pytest

from loadtest.engine import profile
from loadtest.engine.core import Engine
from loadtest.engine.kv_connector import KvConfig
from loadtest.engine.language import NumberLanguage
from loadtest.engine.profile import RequestCosts, StepCosts
from loadtest.engine.request import EngineRequest, Finish, KvIntent, KvSource, StepResult
from loadtest.engine.tokens import salt

INSTANT = profile.load("instant")


def engine(*, blocks: int = 64, block_size: int = 4, budget: int = 8192, seqs: int = 256, **more) -> Engine:
    sized = INSTANT.with_cache(block_size=block_size, num_blocks=blocks)
    sized = sized.with_limits(max_num_batched_tokens=budget, max_num_seqs=seqs)
    return Engine(dataclasses.replace(sized, **more), NumberLanguage())


def request(name: str, prompt: int | list[int], max_tokens: int = 1, **more) -> EngineRequest:
    ids = list(range(1, prompt + 1)) if isinstance(prompt, int) else prompt
    return EngineRequest(name, ids, max_tokens, ignore_eos=True, **more)


def names(result: StepResult) -> list[str]:
    return [output.request_id for output in result.outputs]


def run_out(pod: Engine) -> list:
    outputs = []
    while pod.num_requests:
        outputs += pod.step(0.0).outputs
    return outputs


def test_a_prompt_longer_than_the_budget_is_computed_in_chunks():
    pod = engine(budget=8)
    pod.submit(request("a", 20), 0.0)
    steps = [pod.step(0.0) for _ in range(3)]
    assert [step.prefill_tokens for step in steps] == [8, 8, 4]
    assert [names(step) for step in steps] == [[], [], ["a"]]


def test_running_requests_take_their_share_of_the_budget_first():
    pod = engine(budget=8)
    pod.submit(request("a", 4, max_tokens=9), 0.0)
    pod.step(0.0)
    pod.submit(request("b", [50] * 10, max_tokens=9), 0.0)
    step = pod.step(0.0)
    assert (step.decode_sequences, step.prefill_tokens) == (1, 7)
    step = pod.step(0.0)
    assert (step.decode_sequences, step.prefill_tokens) == (1, 3)
    assert names(step) == ["a", "b"]


def test_no_more_requests_run_than_max_num_seqs():
    pod = engine(seqs=2)
    for name in "abc":
        pod.submit(request(name, 4, max_tokens=2), 0.0)
    assert names(pod.step(0.0)) == ["a", "b"]
    assert (pod.num_running, pod.num_waiting) == (2, 1)
    assert names(pod.step(0.0)) == ["a", "b"]
    assert names(pod.step(0.0)) == ["c"]


def test_a_second_equal_prompt_hits_whole_blocks_but_never_the_whole_prompt():
    pod = engine(block_size=4)
    for name, hit in (("a", 0), ("b", 4)):
        pod.submit(request(name, 8), 0.0)
        (output,) = run_out(pod)
        assert output.prefill is not None
        assert output.prefill.cached_tokens == hit, "of 8 tokens in blocks of 4 the last block is always computed"


def test_the_next_turn_finds_the_answer_of_the_last_one_too():
    pod = engine(block_size=4)
    pod.submit(request("a", 6, max_tokens=7), 0.0)
    answer = [token for output in run_out(pod) for token in output.token_ids]
    pod.submit(request("b", [1, 2, 3, 4, 5, 6, *answer, 99]), 0.0)
    (output,) = run_out(pod)
    assert output.prefill is not None
    assert output.prefill.cached_tokens == 12, "6 + 6 computed tokens (the 7th was sampled, not computed)"


def test_another_salt_is_another_cache():
    pod = engine(block_size=4)
    hits = []
    for name, space in (("a", None), ("b", "x"), ("c", "x"), ("d", None)):
        pod.submit(request(name, 9, salt=salt(space)), 0.0)
        (output,) = run_out(pod)
        assert output.prefill is not None
        hits.append(output.prefill.cached_tokens)
    assert hits == [0, 0, 8, 8]


def test_the_salt_does_not_change_the_answer():
    pod = engine()
    pod.submit(request("a", 9, max_tokens=5), 0.0)
    pod.submit(request("b", 9, max_tokens=5, salt=salt("x")), 0.0)
    outputs = run_out(pod)
    answers = [[o.token_ids for o in outputs if o.request_id == name] for name in "ab"]
    assert answers[0] == answers[1]


def test_when_blocks_run_out_the_youngest_request_is_recomputed_later():
    """Six blocks of 4. `a` and `b` need 2 blocks each for 7 tokens, 3 each from token 9 on, 4 from token 13 on."""
    pod = engine(blocks=6, block_size=4)
    pod.submit(request("a", [1] * 7, max_tokens=8), 0.0)
    pod.submit(request("b", [2] * 7, max_tokens=8), 0.0)
    for _ in range(6):
        assert names(pod.step(0.0)) == ["a", "b"]
    step = pod.step(0.0)
    assert names(step) == ["a"], "token 13 of `a` needs a seventh block"
    assert (pod.num_running, pod.num_waiting, pod.stats.preemptions) == (1, 1, 1)
    outputs = run_out(pod)
    assert [o.finish for o in outputs if o.finish] == [Finish.LENGTH, Finish.LENGTH]


def test_preemption_does_not_change_the_answer():
    roomy, tight = engine(blocks=64), engine(blocks=6)
    answers = []
    for pod in (roomy, tight):
        pod.submit(request("a", [1] * 7, max_tokens=8), 0.0)
        pod.submit(request("b", [2] * 7, max_tokens=8), 0.0)
        outputs = run_out(pod)
        answers.append({name: [o.token_ids for o in outputs if o.request_id == name] for name in "ab"})
    assert tight.stats.preemptions
    assert answers[0] == answers[1]


def test_an_abort_gives_the_blocks_back_and_lets_the_next_one_in():
    pod = engine(blocks=4, block_size=4)
    pod.submit(request("a", [1] * 12, max_tokens=4), 0.0)
    pod.submit(request("b", [2] * 12, max_tokens=1), 0.0)
    assert names(pod.step(0.0)) == ["a"]
    assert pod.abort("a", 0.0)
    assert pod.pool.num_free == 4
    assert names(pod.step(0.0)) == ["b"]
    assert not pod.abort("a", 0.0)


def test_the_same_id_twice_is_refused():
    pod = engine()
    pod.submit(request("a", 4), 0.0)
    with pytest.raises(ValueError, match="already"):
        pod.submit(request("a", 4), 0.0)


def test_a_stop_token_ends_the_answer_and_is_named():
    pod = engine()
    pod.submit(request("a", 4, max_tokens=5), 0.0)
    third = run_out(pod)[2].token_ids[0]
    pod.submit(request("b", 4, max_tokens=5, stop_token_ids=frozenset({third})), 0.0)
    last = run_out(pod)[-1]
    assert (last.finish, last.stop_token) == (Finish.STOP, third)


def test_an_answer_ends_by_itself_but_not_before_min_tokens():
    pod = Engine(INSTANT, NumberLanguage(length=3))
    counts = []
    for name, minimum in (("a", 0), ("b", 6)):
        pod.submit(EngineRequest(name, [1, 2, 3], 100, min_tokens=minimum), 0.0)
        outputs = run_out(pod)
        counts.append(len(outputs))
        assert outputs[-1].finish is Finish.STOP
        assert outputs[-1].token_ids == (pod.language.eos,)
    assert counts == [4, 7]


def test_the_context_length_ends_an_answer():
    pod = engine(max_model_len=10)
    pod.submit(request("a", 7, max_tokens=100), 0.0)
    outputs = run_out(pod)
    assert len(outputs) == 3
    assert outputs[-1].finish is Finish.LENGTH


def test_a_step_costs_the_sum_of_its_parts():
    """One decode over 6 tokens of context, 4 prompt tokens over 4 cached ones: 1 + 10*4 + 100*4 + 1000 + 0.5*6."""
    costs = StepCosts(1.0, 10.0, 100.0, 1000.0, 0.5)
    pod = engine(block_size=4, step=costs)
    pod.submit(request("warm", [9, 9, 9, 9, 1]), 0.0)
    run_out(pod)
    pod.submit(request("a", 6, max_tokens=5), 0.0)
    pod.step(0.0)
    pod.submit(request("b", [9, 9, 9, 9, 5, 6, 7, 8]), 0.0)
    assert pod.step(0.0).duration_s == 1 + 40 + 400 + 1000 + 3


def test_an_idle_engine_says_when_to_look_again():
    used = dataclasses.replace(INSTANT, request=RequestCosts(fixed_s=0.02, prompt_token_s=1e-5))
    pod = Engine(used, NumberLanguage())
    assert pod.step(0.0).duration_s is None
    pod.submit(request("a", 100), 5.0)
    idle = pod.step(5.0)
    assert idle.duration_s is None
    assert idle.wake_s == pytest.approx(5.0 + 0.02 + 100 * 1e-5), "the host's share of the work comes first"
    assert names(pod.step(idle.wake_s)) == ["a"]


def reading(name: str, prompt: int, tokens: int, *, back: bool = False) -> EngineRequest:
    """A request that reads its first `tokens` from somewhere, in blocks of 4."""
    source = KvSource("elsewhere", "r", "host", 1, tuple(range(-(-tokens // 4))), num_tokens=tokens)
    kv = KvIntent(do_remote_decode=back, do_remote_prefill=not back, source=source)
    return request(name, [int(name[-1])] * prompt, kv=kv)


def reader(*, bidirectional: bool, **more) -> Engine:
    made = engine(**more)
    config = KvConfig("here", bidirectional=bidirectional, recompute_threshold_tokens=1)
    return Engine(made.profile, NumberLanguage(), kv=config)


def test_when_the_last_one_that_ran_has_to_go_another_runs_in_the_same_step():
    """6 blocks of 4, one seat: `h1` holds 2, `b` needs a fifth for its token 17."""
    pod = reader(bidirectional=False, blocks=6, block_size=4, seqs=1)
    pod.submit(reading("h1", 8, 8), 0.0)
    assert len(pod.step(0.0).pulls) == 1
    pod.submit(request("b", [9] * 12, max_tokens=8), 0.0)
    assert [names(pod.step(0.0)) for _ in range(2)] == [["b"], ["b"]]
    pod.pull_done("h1", (1, 2))
    assert [names(pod.step(0.0)) for _ in range(3)] == [["b"], ["b"], ["b"]], "the seat is taken"
    step = pod.step(0.0)
    assert (names(step), pod.stats.preemptions) == (["h1"], 1)
    assert names(pod.step(0.0)) == ["b"]


def test_a_read_begins_only_beside_what_prompts_under_way_will_need():
    """10 blocks of 4: `h1` reads 2 and will need 6 more, so of 8 free ones 2 are left, and `h2` wants 3."""
    pod = reader(bidirectional=True, blocks=10, block_size=4)
    pod.submit(reading("h1", 32, 8, back=True), 0.0)
    pod.submit(reading("h2", 12, 12), 0.0)
    assert [order.request_id for order in pod.step(0.0).pulls] == ["h1"]
    assert (pod.num_waiting, pod.pool.num_free) == (2, 8)
    pod.abort("h1", 0.0)
    assert [order.request_id for order in pod.step(0.0).pulls] == ["h2"]


def test_a_request_starts_only_if_all_of_it_has_room_now():
    """`scheduler_reserve_full_isl`: a chunk of `b` would fit, its 7 blocks do not."""
    pod = engine(blocks=10, block_size=4, budget=8)
    pod.submit(request("a", [1] * 16, max_tokens=4), 0.0)
    for _ in range(2):
        pod.step(0.0)
    pod.submit(request("b", [2] * 28, max_tokens=1), 0.0)
    assert names(pod.step(0.0)) == ["a"]
    assert (pod.num_running, pod.num_waiting, pod.pool.num_free) == (1, 1, 5)
