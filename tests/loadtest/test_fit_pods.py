"""What a question costs on paper is what it costs on the engine model."""

import pytest

from loadtest.engine.profile import CacheSize, Profile, RequestCosts, SchedulerLimits, StepCosts, TransferCosts
from loadtest.fit import check
from loadtest.fit.pods import UNKNOWN, Limits, fit_pods, row
from loadtest.fit.sweeps import QUICK, Answer, Plan, Prompts, Question, medians
from loadtest.fit.world import World

LIMITS = Limits(
    max_model_len=8192,
    max_num_batched_tokens=512,
    max_num_seqs=32,
    block_size=32,
    num_blocks=400,
    bytes_per_token=4096,
)
KNOWN = Profile(
    name="known",
    max_model_len=8192,
    step=StepCosts(2e-3, 3e-5, 2e-6, 1e-4, 3e-7, attended_pair_s=2e-8),
    request=RequestCosts(9e-3, 1e-6),
    scheduler=SchedulerLimits(512, 32),
    cache=CacheSize(32, 400, 4096),
    transfer=TransferCosts(4e8, 0.0, 5e-3),
)
VALUES = [2e-3, 3e-5, 2e-6, 1e-4, 3e-7, 2e-8, 9e-3, 1e-6, 5e-3, 4096 / 4e8]


def on_the_model(question: Question) -> Answer:
    """Ask the engine model, idle, as the pods are asked."""
    world = World(KNOWN, ("p", "d"))
    prompt = ((1, question.context), (2, question.tokens)) if question.context else ((2, question.tokens),)
    if question.kind == "context":
        world.turn(None, "d", prompt[:1], 1, 3, lambda: None)
        world.run()
    turn = world.turn("p" if question.kind == "handover" else None, "d", prompt, 1, 4, lambda: None)
    world.run()
    return Answer(question, turn.ttft_s, turn.cached_tokens if question.kind == "context" else 0.0)


def decoded(question: Question) -> Answer:
    """A batch that decodes on the model: the time between two tokens half way."""
    world = World(KNOWN, ("d",))
    turns = [
        world.turn(None, "d", ((number, question.context),), question.tokens, 100 + number, lambda: None)
        for number in range(question.batch)
    ]
    world.run()
    first, last = max(turn.first_s for turn in turns), min(turn.ended_s for turn in turns)
    assert first == min(turn.first_s for turn in turns), "a batch that fits one step begins together"
    return Answer(question, (last - first) / (question.tokens - 1), question.context + (question.tokens - 2) / 2)


@pytest.mark.parametrize(
    "question",
    [
        Question("prefill", 100),
        Question("prefill", 512),
        Question("prefill", 1300),
        Question("context", 40, 640),
        Question("context", 700, 1000),
        Question("handover", 64),
        Question("handover", 1000),
    ],
)
def test_the_coefficients_of_a_question_are_what_the_engine_takes(question):
    answer = on_the_model(question)
    said = sum(coefficient * value for coefficient, value in zip(row(answer, LIMITS), VALUES, strict=True))
    assert said == pytest.approx(answer.seconds, rel=1e-9)


@pytest.mark.parametrize("batch", [1, 4])
def test_a_decode_step_costs_what_its_row_says(batch):
    answer = decoded(Question("decode", 40, 96, batch))
    said = sum(coefficient * value for coefficient, value in zip(row(answer, LIMITS), VALUES, strict=True))
    assert said == pytest.approx(answer.seconds, rel=1e-9)


def test_a_fit_to_the_models_own_answers_gives_the_profile_back():
    plan = Plan(batch_context=(64, 96), batch=(1, 4))
    answers = [
        decoded(question) if question.kind == "decode" else on_the_model(question) for question in plan.questions()
    ]
    fitted = fit_pods("again", answers, LIMITS)
    assert fitted.fitted.values == pytest.approx(VALUES, rel=1e-3)
    assert fitted.profile.transfer.bandwidth_bytes_per_s == pytest.approx(4e8, rel=1e-3)
    assert fitted.median_error("handover") < 1e-6


def test_the_middle_of_the_rounds_counts():
    question = Question("prefill", 64)
    rounds = [Answer(question, seconds, 0.0) for seconds in (0.9, 0.1, 0.2)]
    assert [answer.seconds for answer in medians(rounds)] == [0.2]
    assert [answer.seconds for answer in medians(rounds[:2])] == [0.1], "of two the quicker one"


def test_a_quick_plan_asks_of_every_kind_and_prompts_never_repeat():
    assert {question.kind for question in QUICK.questions()} == {"prefill", "context", "decode", "handover"}
    prompts = Prompts(5)
    seen = [tuple(prompts.fresh(8)) for _ in range(50)]
    assert len(set(seen)) == len(seen)
    assert len({prompts.salt() for _ in range(5)}) == 5


def test_the_check_predicts_both_turns_of_every_conversation():
    talks = check.script(6)
    turns = check.predict(KNOWN, talks)
    for talk, (first, second) in zip(talks, turns, strict=True):
        assert first.began_s == pytest.approx(talk.start_s)
        assert second.began_s == first.ended_s
        assert second.cached_tokens >= talk.first // 32 * 32, "the first prompt at least is still on D"
    assert {talk.local for talk in talks} == {True, False}


def test_errors_are_of_the_chosen_route():
    took = [
        check.Took("pd", 1, 1.0, 1.5, 0.1, 0.1),
        check.Took("local", 2, 1.0, 0.9, 0.1, 0.12),
        check.Took("local", 2, 2.0, 2.2, 0.1, 0.08),
    ]
    errors = check.errors(took, "local")
    assert errors.turns == 2
    assert errors.ttft == pytest.approx(0.1)
    assert errors.tpot == pytest.approx(0.2)
    assert errors.mean_ttft == pytest.approx(3.1 / 3 - 1)
    assert errors.mean_tpot == pytest.approx(0.0)
    assert check.errors(took).turns == 3


def test_the_unknown_numbers_are_fields_of_a_profile():
    for key in UNKNOWN:
        part, _, field = key.partition(".")
        assert field == "token_s" or hasattr(getattr(KNOWN, part), field)
