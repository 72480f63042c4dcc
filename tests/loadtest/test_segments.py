"""Prompts by name: two prompts agree as far as their segments do."""

import pytest

from loadtest.engine.segments import Segments
from loadtest.engine.text import NamedText


def names(prompt: Segments, size: int = 4, salt: int = 0) -> list[int]:
    return list(NamedText(prompt, 99, 1000, size, salt).keys(0, len(prompt) // size))


def shared(left: Segments, right: Segments, size: int = 4, **salt: int) -> int:
    """Blocks at the beginning that have the same name."""
    count = 0
    for one, other in zip(names(left, size), names(right, size, **salt), strict=False):
        if one != other:
            break
        count += 1
    return count


BASE = Segments([(1, 10), (2, 7)])


def test_equal_segments_have_equal_names():
    assert names(BASE) == names(Segments([(1, 10)]).extended(2, 7))
    assert len(BASE) == 17


@pytest.mark.parametrize(
    ("other", "tokens"),
    [([(1, 10), (3, 7)], 10), ([(1, 10), (2, 6), (9, 9)], 16), ([(1, 9), (2, 7)], 9), ([(5, 10), (2, 7)], 0)],
)
@pytest.mark.parametrize("size", [1, 4, 16])
def test_prompts_share_the_blocks_that_end_before_they_part(other, tokens, size):
    assert shared(BASE, Segments(other), size) == tokens // size


def test_no_two_blocks_of_a_prompt_have_one_name():
    prompt = Segments([(number % 3, 1 + number % 5) for number in range(200)])
    assert len(set(names(prompt, size=1))) == len(prompt)


def test_an_answer_has_the_name_that_the_next_prompt_gives_it():
    answered = NamedText(Segments([(1, 10)]), 2, 500, 4, 0)
    asked = NamedText(Segments([(1, 10), (2, 30), (3, 10)]), 4, 500, 4, 0)
    assert list(answered.keys(0, 10)) == list(asked.keys(0, 10))
    assert list(answered.keys(0, 12)) != list(asked.keys(0, 12))
    assert list(answered.keys(5, 9)) == list(answered.keys(0, 10))[5:9]


def test_another_salt_is_another_name_space():
    assert shared(BASE, BASE, salt=7) == 0
    assert names(BASE, salt=7) == names(BASE, salt=7)


def test_a_segment_of_nothing_is_refused():
    with pytest.raises(ValueError, match="segment 4: 0 tokens"):
        BASE.extended(4, 0)
