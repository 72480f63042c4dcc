"""The simulator's tokenizer, template and language."""

import random

import pytest

from loadtest.engine import tokens
from loadtest.pod import structured, template, tokenizer
from loadtest.pod.errors import ApiError
from loadtest.pod.language import WordLanguage


def say(state: int, count: int, previous: int) -> list[int]:
    language, said = WordLanguage(), []
    for index in range(count):
        previous = language.next_token(state, 0, index, previous, may_end=False)
        said.append(previous)
    return said


@pytest.mark.parametrize(
    "text", ["Hello, world!  12345 tokens", "naïve 日本語 🙂", "", "<|im_start|>user\n", "a" * 9, " \n "]
)
def test_text_comes_back_from_its_tokens(text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("before", ["<|im_start|>assistant\n", "Once upon a time", "Trailing space ", "x\n"])
def test_an_answer_sent_back_as_text_is_the_tokens_that_were_said(before):
    prompt = tokenizer.encode(before)
    said = say(1234, 200, prompt[-1])
    assert tokenizer.encode(before + tokenizer.decode(said)) == prompt + said


def test_every_token_id_stands_for_text_that_has_that_id():
    ids = random.Random(1).sample(range(16 + 256, tokenizer.VOCABULARY_SIZE), 2000)
    assert all(tokenizer.encode(tokenizer.token_text(token)) == [token] for token in ids)


def test_an_id_outside_the_vocabulary_is_refused():
    with pytest.raises(ValueError, match="out of vocabulary"):
        tokenizer.token_bytes(tokenizer.VOCABULARY_SIZE)


def test_the_language_ends_by_itself_within_its_bounds():
    language = WordLanguage()
    for state in range(200):
        length = next(i for i in range(1000) if language.next_token(state, 0, i, 0, may_end=True) == language.eos)
        assert 24 <= length <= 151


def test_another_state_or_branch_says_something_else():
    language = WordLanguage()
    said = {
        tuple(language.next_token(state, branch, i, 0, may_end=False) for i in range(8))
        for state in (1, 2, tokens.mix(1, 2))
        for branch in (0, 1)
    }
    assert len(said) == 6


def test_a_longer_history_renders_to_a_longer_text_with_the_same_beginning():
    history = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    shorter = template.render(history)
    longer = template.render([*history, {"role": "assistant", "content": "ho"}, {"role": "user", "content": "so"}])
    assert longer.startswith(shorter + "ho<|im_end|>\n")


def test_content_parts_are_joined_and_images_refused():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert "a\nb" in template.render([{"role": "user", "content": parts}])
    with pytest.raises(ApiError, match="image"):
        template.render([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])


def test_tools_and_tool_calls_are_part_of_the_prompt():
    tool = {"type": "function", "function": {"name": "weather"}}
    call = {"function": {"name": "weather", "arguments": "{}"}}
    text = template.render([{"role": "assistant", "content": None, "tool_calls": [call]}], tools=[tool])
    assert text.count("weather") == 2


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}}}, '{"a": 1, "b": true}'),
        ({"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 2}, '["x", "x"]'),
        ({"anyOf": [{"type": "null"}, {"type": "string"}]}, "null"),
        ({"$ref": "#/$defs/k", "$defs": {"k": {"const": 7}}}, "7"),
        ({}, "{}"),
    ],
)
def test_structured_output_is_one_valid_text_per_schema(schema, text):
    assert structured.text_for_schema(schema) == text
