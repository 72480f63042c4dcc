"""Three requests through one engine, worked out on paper and pinned step by step.

Blocks of 4 tokens, 8 of them; 8 tokens a step; 2 requests at once. A step takes 10 ms, 1 per prompt token, 1/2 per
token that a prefilling request finds computed, 2 per decoding request, 1/4 per token in a decoding request's context.

- A: 10 prompt tokens, 3 of answer, at 0 ms.
- B: 6 prompt tokens, 2 of answer, at 0 ms.
- C: 11 prompt tokens, the first 8 as A's, 1 of answer, at 15 ms.

| step | begins | A | B | C | cost | ends | tokens of | free blocks |
|---|---|---|---|---|---|---|---|---|
| 1 | 0 | 8 of 10 | no budget left | | 10 + 8 | 18 | | 6: A has 2 |
| 2 | 18 | 2, after 8 | 6 | 2 run already | 10 + 8 + 8/2 | 40 | A, B | 3: A 3, B 2 |
| 3 | 40 | 1, over 10 | 1, over 6 | 2 run already | 10 + 2·2 + 16/4 | 58 | A, B: B ends | 5: A 3 |
| 4 | 58 | 1, over 11 | | 8 cached, 3 | 10 + 3 + 8/2 + 2 + 11/4 | 79.75 | A, C: both end | 8 |

C finds A's first two blocks, so it takes one new block in step 4. The last token of an answer is only sampled: 12
tokens of A, 7 of B and 11 of C have been computed in the end, which is 3, 1 and 2 whole blocks; A and C share two, so
there are 4 names.
"""

import dataclasses
from itertools import pairwise

import pytest

from loadtest.engine import profile
from loadtest.engine.core import Engine
from loadtest.engine.profile import Profile, StepCosts
from loadtest.engine.request import EngineRequest, Finish
from loadtest.engine.segments import Segments
from loadtest.engine.virtual import VirtualCluster

A_BEGIN = (7, 8)
PROMPTS = {"A": [A_BEGIN, (1, 2)], "B": [(2, 6)], "C": [A_BEGIN, (3, 3)]}
ANSWERS = {"A": 3, "B": 2, "C": 1}
STEPS = [
    # begins, ends, prompt tokens, decoding, outputs, free blocks
    (0.0, 18.0, 8, 0, [], 6),
    (18.0, 40.0, 8, 0, ["A", "B"], 3),
    (40.0, 58.0, 0, 2, ["A", "B"], 5),
    (58.0, 79.75, 3, 1, ["A", "C"], 8),
]


@pytest.fixture
def used() -> Profile:
    sized = profile.load("instant").with_cache(block_size=4, num_blocks=8)
    sized = sized.with_limits(max_num_batched_tokens=8, max_num_seqs=2)
    return dataclasses.replace(sized, step=StepCosts(10e-3, 1e-3, 0.5e-3, 2e-3, 0.25e-3))


def asked(name: str, *, named: bool) -> EngineRequest:
    parts = PROMPTS[name]
    tokens = [1000 * part + index for part, length in parts for index in range(1, length + 1)]
    prompt = Segments(parts) if named else tokens
    return EngineRequest(name, prompt, ANSWERS[name], answer=10 + len(name), ignore_eos=True)


def test_each_step_of_tokens_is_as_on_paper(used):
    engine = Engine(used)
    for name in "AB":
        engine.submit(asked(name, named=False), 0.0)
    now = 0.0
    for begins_ms, ends_ms, prefill, decoding, names, free in STEPS:
        assert now * 1e3 == pytest.approx(begins_ms)
        result = engine.step(now)
        if begins_ms == 0.0:
            engine.submit(asked("C", named=False), 15e-3)
        assert result.duration_s is not None
        now += result.duration_s
        assert now * 1e3 == pytest.approx(ends_ms)
        assert (result.prefill_tokens, result.decode_sequences) == (prefill, decoding)
        assert [output.request_id for output in result.outputs] == names
        assert engine.pool.num_free == free
        if "C" in names:
            (output,) = (o for o in result.outputs if o.request_id == "C")
            assert output.prefill is not None
            assert output.prefill.cached_tokens == 8
    assert engine.step(now).duration_s is None
    assert engine.pool.num_cached == 4


@pytest.mark.parametrize("leaps", [True, False])
@pytest.mark.parametrize("named", [True, False])
def test_first_tokens_and_ends_come_when_the_paper_says(used, named, leaps):
    cluster = VirtualCluster(leaps=leaps)
    cluster.add("pod", Engine(used))
    got: list[tuple[str, str, float]] = []

    def ask(name: str) -> None:
        def heard(now: float, output) -> None:
            if output.prefill:
                got.append((name, "first", now * 1e3))
            if output.finish:
                assert (output.finish, output.num_tokens) == (Finish.LENGTH, ANSWERS[name])
                got.append((name, "end", now * 1e3))

        cluster.submit("pod", asked(name, named=named), heard)

    for when, name in ((0.0, "A"), (0.0, "B"), (15e-3, "C")):
        cluster.call_at(when, lambda name=name: ask(name))
    cluster.run()
    assert [(name, what) for name, what, _ in got] == [
        ("A", "first"),
        ("B", "first"),
        ("B", "end"),
        ("A", "end"),
        ("C", "first"),
        ("C", "end"),
    ]
    assert [ms for _, _, ms in got] == pytest.approx([40.0, 40.0, 58.0, 79.75, 79.75, 79.75])
    assert cluster.engine("pod").pool.num_cached == 4


def test_the_table_is_whole():
    assert all(one[1] == other[0] for one, other in pairwise(STEPS))
