"""What is said."""

import json
from pathlib import Path

import pytest

from loadtest.live.errors import LoadtestError
from loadtest.live.scripts import Said, named
from loadtest.live.talks import STREAMED, Dialogue, Synthetic, Talk, Turn, from_demo, from_file


def synthetic(**changes: object) -> Synthetic:
    given: dict[str, object] = {"turns": 3, "first_tokens": 260, "next_tokens": 26, "output_tokens": 16, "think_s": 2.0}
    return Synthetic(**(given | {"seed": 1} | changes))  # type: ignore[arg-type]


def test_the_same_number_says_the_same_and_another_does_not() -> None:
    assert synthetic().talk(7) == synthetic().talk(7)
    assert len({synthetic().talk(number).turns[0].text for number in range(50)}) == 50
    assert synthetic().talk(7) != synthetic(seed=2).talk(7)


def test_fixed_lengths_are_exact() -> None:
    talk = synthetic(fixed=True).talk(0)
    assert [len(turn.text.split()) for turn in talk.turns] == [200, 20, 20]
    assert [turn.max_tokens for turn in talk.turns] == [16, 16, 16]
    assert [turn.think_s for turn in talk.turns] == [0.0, 2.0, 2.0]


def test_lengths_vary_around_their_mean_within_bounds() -> None:
    source = synthetic()
    words = [len(source.talk(number).turns[0].text.split()) for number in range(1000)]
    assert min(words) >= 50
    assert max(words) <= 800
    # E[min(4, max(1/4, X))] of an exponential is 1/4 + e^-1/4 - e^-4 = 1.0105
    assert sum(words) / len(words) == pytest.approx(200 * 1.0105, rel=0.1)


def test_a_chat_client_sends_the_whole_history() -> None:
    talk = Talk("Be kind.", (Turn("one", 5), Turn("two", 6)))
    dialogue = Dialogue("chat", "m", talk, "[x]", STREAMED | {"temperature": 0})
    assert json.loads(dialogue.say(talk.turns[0])) == {
        "model": "m",
        "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "[x] one"}],
        "max_tokens": 5,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
    }
    dialogue.hear("first")
    assert json.loads(dialogue.say(talk.turns[1]))["messages"][1:] == [
        {"role": "user", "content": "[x] one"},
        {"role": "assistant", "content": "first"},
        {"role": "user", "content": "two"},
    ]


def test_a_completions_prompt_grows_at_its_end() -> None:
    talk = Talk("", (Turn("one", 5), Turn("two", 6)))
    dialogue = Dialogue("completions", "m", talk, "", {})
    first = json.loads(dialogue.say(talk.turns[0]))["prompt"]
    dialogue.hear(" first")
    second = json.loads(dialogue.say(talk.turns[1]))["prompt"]
    assert first == "User: one\nAssistant:"
    assert second == "User: one\nAssistant: first\nUser: two\nAssistant:"


def test_a_file_says_what_is_said(tmp_path: Path) -> None:
    path = tmp_path / "talks.jsonl"
    path.write_text(
        '{"system": "s", "turns": [{"text": "a", "max_tokens": 3, "think_s": 1}]}\n\n{"turns": [{"text": "b"}]}\n'
    )
    source = from_file(path, max_tokens=9, think_s=2.0)
    assert source.talk(0) == Talk("s", (Turn("a", 3, 1.0),))
    assert source.talk(3) == Talk("", (Turn("b", 9, 2.0),))
    assert "2 conversations" in source.words


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "line 2: "),
        ('{"turns": []}', "line 2: needs turns"),
        ('{"turns": [{"text": "a", "max_tokens": 0}]}', "line 2: needs turns"),
        ('{"turns": [{"text": "a", "think_s": -1}]}', "line 2: needs turns"),
        ('{"turns": [{"txt": "a"}]}', "line 2: .*txt"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, why: str) -> None:
    path = tmp_path / "talks.jsonl"
    path.write_text('{"turns": [{"text": "a"}]}\n' + line + "\n")
    with pytest.raises(LoadtestError, match=why):
        from_file(path, max_tokens=9, think_s=2.0)


def test_a_file_that_is_not_there_or_empty_is_named(tmp_path: Path) -> None:
    with pytest.raises(LoadtestError, match=r"--workload .*nowhere: No such file"):
        from_file(tmp_path / "nowhere", max_tokens=9, think_s=2.0)
    (tmp_path / "empty").touch()
    with pytest.raises(LoadtestError, match="holds no conversation"):
        from_file(tmp_path / "empty", max_tokens=9, think_s=2.0)


def test_the_demos_conversations_can_be_had() -> None:
    source = from_demo(3, max_tokens=9, think_s=2.0)
    assert source.num_turns(0) == 3
    assert [turn.think_s for turn in source.talk(0).turns] == [0.0, 2.0, 2.0]


def test_a_workload_of_the_experiments_is_said_with_its_numbers() -> None:
    """`large_big_paste` of the paper: 1024 tokens, 1024 answered, then 512, 64 answered."""
    source = Said(named("large_big_paste"), seed=1, tokens_per_word=2.0)
    talk = source.talk(3)
    assert [(len(turn.text.split()), turn.max_tokens) for turn in talk.turns] == [(512, 1024), (256, 64)]
    assert talk == source.talk(3)
    assert talk.turns[0].text != source.talk(4).turns[0].text
    assert source.num_turns(3) == 2
    assert source.words.startswith("large_big_paste (synthetic, as in the paper: ")


def test_a_trace_that_ends_begins_again(tmp_path: Path) -> None:
    path = tmp_path / "chats.json"
    chats = [
        {"id": str(n), "conversations": [{"from": who, "value": "word " * words} for who in ("human", "gpt") * 2]}
        for n, words in enumerate((5, 50))
    ]
    path.write_text(json.dumps(chats))
    source = Said(named(f"sharegpt:{path}"), seed=1, tokens_per_word=1.3)
    assert [source.num_turns(number) for number in (0, 1, 2)] == [2, 2, 2]
    answers = [source.talk(number).turns[0].max_tokens for number in range(4)]
    assert answers[0] == answers[2] < answers[1] == answers[3]


def test_a_workload_that_nobody_knows_is_refused() -> None:
    with pytest.raises(LoadtestError, match="--workload: unknown workload 'x'"):
        named("x")
