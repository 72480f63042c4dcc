"""Prompts of the Anthropic Messages and the Responses API as digests, and a client that writes at random."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from gateway.wire.fields import parse
from gateway.wire.prompts import MessagesPrompt, message_head, read_messages, reply_head
from gateway.wire.prompts_anthropic import read_anthropic
from gateway.wire.prompts_responses import conversation_of, previous_response, read_responses


def anthropic(*messages: dict[str, Any], system: Any = None) -> MessagesPrompt:
    prompt = read_anthropic(parse(json.dumps({"system": system, "messages": messages}).encode()))
    assert prompt is not None
    return prompt


def responses(given: Any, instructions: Any = None) -> MessagesPrompt:
    prompt = read_responses(parse(json.dumps({"instructions": instructions, "input": given}).encode()))
    assert prompt is not None
    return prompt


USER = {"role": "user", "content": "hi"}
MARK = {"cache_control": {"type": "ephemeral"}}
TEXT = {"type": "text", "text": "hi"}


# Anthropic


def test_a_system_prompt_is_the_first_message_however_it_is_written() -> None:
    plain = anthropic(USER, system="be brief. be kind.")
    assert len(plain.digests) == 2
    assert plain.answers == (False, False)
    blocks = [{"type": "text", "text": "be brief. "}, {"type": "text", "text": "be kind.", **MARK}]
    assert anthropic(USER, system=blocks).digests == plain.digests
    billing = {"type": "text", "text": "x-anthropic-billing-header: cch=1;"}
    assert anthropic(USER, system=[billing, *blocks]).digests == plain.digests
    assert anthropic(USER, system="be kind.").digests != plain.digests
    assert anthropic(USER, system="").digests == anthropic(USER).digests == plain_user()


def plain_user() -> tuple[bytes, ...]:
    return anthropic({"role": "user", "content": [{**TEXT, **MARK}]}).digests


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("hi", [TEXT]),
        ([TEXT], [{**TEXT, **MARK}]),
        ([TEXT], [{"type": "thinking", "thinking": "hm", "signature": "x"}, TEXT]),
        ([TEXT], [{"type": "redacted_thinking", "data": "x"}, TEXT]),
        (
            [{"type": "tool_result", "tool_use_id": "t", "content": "hi"}],
            [{"type": "tool_result", "tool_use_id": "t", "content": [TEXT], "is_error": False, **MARK}],
        ),
        (
            [{"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1, "b": 2}}],
            [{"type": "tool_use", "id": "t", "name": "f", "input": {"b": 2, "a": 1}, "caller": {"type": "direct"}}],
        ),
    ],
)
def test_two_ways_to_write_blocks_are_one(one: Any, other: Any) -> None:
    assert anthropic({"role": "user", "content": one}).digests == anthropic({"role": "user", "content": other}).digests


def test_what_blocks_say_matters() -> None:
    contents: list[Any] = [
        "hi",
        [TEXT, TEXT],
        [{"type": "tool_use", "id": "t", "name": "f", "input": {}}],
        [{"type": "tool_use", "id": "u", "name": "f", "input": {}}],
        [{"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}],
        [{"type": "tool_result", "tool_use_id": "t", "content": "hi"}],
        [{"type": "tool_result", "tool_use_id": "t", "content": "hi", "is_error": True}],
        [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 9999}}],
        [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "B" * 9999}}],
    ]
    assert len({anthropic({"role": "user", "content": content}).digests for content in contents}) == len(contents)


def test_heads_of_anthropic_answers() -> None:
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {"a": "\u00e9"}}
    prompt = anthropic(
        USER,
        {"role": "assistant", "content": "Hello"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Hello"}]},
        {"role": "assistant", "content": [call]},
        system="be brief",
    )
    assert list(prompt.reply_heads) == [
        None,
        None,
        reply_head("Hello"),
        reply_head("Hello"),
        message_head("", 'f{"a": "\\u00e9"}'),
    ]


def test_thinking_is_kept_until_a_user_speaks() -> None:
    thought = {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, TEXT]}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "x"}]}
    both = {"role": "user", "content": [*result["content"], TEXT]}
    assert anthropic(USER, thought, result, thought, result).thoughts == {1, 3}
    assert anthropic(USER, thought, result, thought, result, system="s").thoughts == {2, 4}
    assert anthropic(USER, thought, both, thought).thoughts == {3}
    assert anthropic(USER, thought, USER).thoughts == frozenset()


# Responses


def item(role: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def test_input_as_text_is_what_a_user_says() -> None:
    digests = responses("hi").digests
    assert digests == responses([{"role": "user", "content": "hi"}]).digests == responses([item("user", "hi")]).digests
    assert responses("hi", "be brief").digests[1:] == digests
    assert responses("hi", "be brief").digests == responses([item("developer", "be brief"), item("user", "hi")]).digests


CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a":1}'}
RESULT = {"type": "function_call_output", "call_id": "c", "output": "x"}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": []}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (CALL, {**CALL, "id": "fc_1", "status": "completed", "arguments": '{ "a": 1 }'}),
        (RESULT, {**RESULT, "id": "o_1", "output": [{"type": "input_text", "text": "x"}]}),
        (item("assistant", "hi"), {**item("assistant", "hi"), "id": "msg_1", "status": "completed"}),
        (
            {"type": "web_search_call", "id": "ws_1", "action": {"query": "x"}, "status": "completed"},
            {"type": "web_search_call", "action": {"query": "x"}},
        ),
    ],
)
def test_ids_and_states_of_items_do_not_matter(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert responses([one]).digests == responses([other]).digests
    assert responses([REASONING, one]).digests == responses([other]).digests


def test_what_items_say_matters() -> None:
    items = [CALL, {**CALL, "name": "g"}, {**CALL, "call_id": "d"}, {**CALL, "arguments": "{}"}, RESULT]
    items += [{**RESULT, "call_id": "d"}, {**RESULT, "output": "y"}, item("user", "x"), {**CALL, "namespace": "n"}]
    assert len({responses([each]).digests for each in items}) == len(items)


def test_heads_and_thoughts_of_items() -> None:
    prompt = responses([item("user", "hi"), REASONING, CALL, RESULT, REASONING, item("assistant", "Hello")], "be brief")
    assert list(prompt.reply_heads) == [None, None, message_head("", 'f{"a": 1}'), None, reply_head("Hello")]
    assert prompt.answers == (False, False, True, False, True)
    assert prompt.thoughts == {2, 4}
    assert responses([item("user", "hi"), REASONING, CALL, RESULT, item("user", "so?")]).thoughts == frozenset()
    assert responses([REASONING, item("user", "so?"), item("assistant", "Hello")]).thoughts == frozenset()


def test_history_on_the_server_is_no_prompt_but_an_id() -> None:
    fields = parse(b'{"input":"hi","previous_response_id":"resp_1"}')
    assert (read_responses(fields), previous_response(fields), conversation_of(fields)) == (None, "resp_1", None)
    for written in (b'"conv_1"', b'{"id":"conv_1"}'):
        fields = parse(b'{"input":"hi","conversation":' + written + b"}")
        assert (read_responses(fields), previous_response(fields), conversation_of(fields)) == (None, None, "conv_1")
    for nothing in (b"null", b'""', b"{}", b"7", b'{"id":7}'):
        fields = parse(b'{"input":"hi","conversation":' + nothing + b',"previous_response_id":null}')
        assert read_responses(fields) is not None
        assert (previous_response(fields), conversation_of(fields)) == (None, None)


JUNK: list[Any] = [
    None,
    7,
    [],
    {},
    "x",
    [[]],
    [None],
    [7],
    [{"type": []}],
    [{"type": {}, "role": []}],
    {"type": "text"},
]


@pytest.mark.parametrize("junk", JUNK, ids=str)
def test_nonsense_is_the_pods_to_judge(junk: Any) -> None:
    for prompt in (
        read_anthropic(parse(json.dumps({"messages": junk, "system": junk}).encode())),
        read_anthropic(parse(json.dumps({"messages": [{"role": "assistant", "content": junk}]}).encode())),
        read_responses(parse(json.dumps({"input": junk, "instructions": junk}).encode())),
        read_responses(parse(json.dumps({"input": [{"type": junk, "content": junk, "arguments": junk}]}).encode())),
        read_responses(parse(json.dumps({"input": [{"role": "assistant", "content": junk}]}).encode())),
    ):
        if prompt is not None:
            assert len(list(prompt.reply_heads)) == len(prompt.digests) == len(prompt.answers)
    assert read_anthropic(parse(b"{}")) is None
    assert read_responses(parse(b"{}")) is None


# A client that writes the same prompt differently each time


class Writer:
    """Writes messages down at random, in all the ways that must not matter."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)

    def body(self, messages: list[dict[str, Any]]) -> bytes:
        written = [self.message(dict(message)) for message in messages]
        return json.dumps(
            {"messages": written},
            ensure_ascii=self.dice.random() < 0.5,
            indent=self.dice.choice([None, 1]),
            separators=self.dice.choice([None, (",", ":")]),
        ).encode()

    def message(self, message: dict[str, Any]) -> dict[str, Any]:
        content = message.get("content")
        if isinstance(content, str):
            message["content"] = self.dice.choice([content, [{"type": "text", "text": content}]])
            if message["content"] != content and self.dice.random() < 0.5:
                message["content"][0]["cache_control"] = {"type": "ephemeral"}
        elif content is None and self.dice.random() < 0.5:
            message["content"] = self.dice.choice(["", None, []])
        if message["role"] == "system":
            message["role"] = self.dice.choice(["system", "developer"])
        for name in ("refusal", "annotations", "audio", "function_call", "name", "tool_calls", "reasoning"):
            if name not in message and self.dice.random() < 0.3:
                message[name] = [] if name in ("annotations", "tool_calls") and self.dice.random() < 0.5 else None
        if message.get("tool_calls"):
            message["tool_calls"] = [self.call(call) for call in message["tool_calls"]]
        return self.shuffled(message)

    def call(self, call: dict[str, Any]) -> dict[str, Any]:
        said = json.loads(call["function"]["arguments"])
        arguments = json.dumps(
            self.shuffled(said), ensure_ascii=self.dice.random() < 0.5, indent=self.dice.choice([None, 2])
        )
        return self.shuffled({**call, "function": self.shuffled({**call["function"], "arguments": arguments})})

    def shuffled(self, value: dict[str, Any]) -> dict[str, Any]:
        items = list(value.items())
        self.dice.shuffle(items)
        return dict(items)


WORDS = ["caf\u00e9", "\U0001f600", "a/b", 'say "x"', "line\nline", "\\u00e9", ""]


def made_up(dice: random.Random) -> list[dict[str, Any]]:
    def text() -> str:
        return " ".join(dice.choices(WORDS, k=dice.randrange(1, 9))).strip()

    messages: list[dict[str, Any]] = [{"role": "system", "content": text()}]
    for number in range(dice.randrange(1, 8)):
        messages.append({"role": "user", "content": text()})
        if dice.random() < 0.5:
            arguments = json.dumps({"x": text(), "y": dice.randrange(9), "z": [1.5, None]})
            call = {"id": f"call_{number}", "type": "function", "function": {"name": "f", "arguments": arguments}}
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
            messages.append({"role": "tool", "tool_call_id": f"call_{number}", "content": text()})
        messages.append({"role": "assistant", "content": text()})
    return messages


@pytest.mark.parametrize("seed", range(200))
def test_however_a_prompt_is_written_it_is_the_same_prompt(seed: int) -> None:
    writer = Writer(seed)
    messages = made_up(writer.dice)
    one, two = (read_messages(parse(writer.body(messages))) for _ in range(2))
    assert one is not None
    assert two is not None
    assert one.digests == two.digests
    assert one.answers == two.answers
    without_calls = [index for index, message in enumerate(messages) if "tool_calls" not in message]
    assert [one.reply_heads[index] for index in without_calls] == [two.reply_heads[index] for index in without_calls]


@pytest.mark.parametrize("seed", range(50))
def test_a_prompt_with_one_more_letter_is_another_prompt(seed: int) -> None:
    writer = Writer(seed)
    messages = made_up(writer.dice)
    index = writer.dice.choice([i for i, message in enumerate(messages) if message["content"] is not None])
    changed = [dict(message) for message in messages]
    changed[index]["content"] += "!"
    one, two = (read_messages(parse(writer.body(each))) for each in (messages, changed))
    assert one is not None
    assert two is not None
    differ = [i for i, (a, b) in enumerate(zip(one.digests, two.digests, strict=True)) if a != b]
    assert differ == [index]
