"""What real clients send over several turns, and what it falls on.

`clients/*.json` are conversations in the shapes of these clients (the words are ours). A turn says what it must be
recognised as: which conversation (A, B … as they appear), kind, turn, and how many tokens it could reuse. The
prompts go through the readers of `wire`, the answers through the code that learns from a pod's answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.core.chains import MessageChain
from gateway.core.conversations import ConversationStore, Kind, Recognition
from gateway.wire.answers import rewrite_answer
from gateway.wire.fields import Fields, parse
from gateway.wire.prompts import MessagesPrompt, read_messages
from gateway.wire.prompts_anthropic import read_anthropic
from gateway.wire.prompts_responses import read_responses
from tests.core.support import OTHER_TENANT, ROOT, key, result

CLIENTS = Path(__file__).parent / "clients"
READERS: dict[str, Callable[[Fields], MessagesPrompt | None]] = {
    "chat": read_messages,
    "anthropic": read_anthropic,
    "responses": read_responses,
}


@dataclass
class Front:
    """The part of the gateway that recognises: bodies in, recognitions out."""

    api: str = "chat"
    store: ConversationStore = field(default_factory=lambda: ConversationStore(1000, 3600.0))
    keys: int = 0

    def chain(self, body: dict[str, Any], root: bytes = ROOT) -> MessageChain:
        prompt = READERS[self.api](parse(json.dumps(body).encode()))
        assert prompt is not None
        return MessageChain(root, prompt.digests, prompt.reply_heads, prompt.answers, prompt.thoughts)

    def ask(self, body: dict[str, Any], name: str | None = None, root: bytes = ROOT) -> Recognition:
        self.keys += 1
        recognition = self.store.recognise(root, name, self.chain(body, root), key(self.keys), 0.0)
        self.store.begin(recognition.conversation)
        return recognition

    def answer(
        self, recognition: Recognition, body: dict[str, Any], answer: dict[str, Any], root: bytes = ROOT
    ) -> None:
        """The pod says what the file has it say, in the shape of a chat completion."""
        calls = [answer["call"]] if "call" in answer else []
        message = {"role": "assistant", "content": answer.get("text"), "tool_calls": calls}
        message["reasoning"] = answer.get("reasoning")
        whole = rewrite_answer(msgspec.json.encode({"choices": [{"index": 0, "message": message}]}), None)
        left = result(prompt=answer["prompt_tokens"], output=answer["output_tokens"], reasoned=whole.reasoned)
        left = msgspec.structs.replace(left, reply_head=whole.reply_head)
        self.store.finish(recognition, self.chain(body, root), left)

    def turn(self, *messages: dict[str, Any], said: str = "", name: str | None = None, **tokens: int) -> Recognition:
        """A chat request and its answer: 100 tokens of prompt and 20 of reply, if not said otherwise."""
        body = {"messages": messages}
        recognition = self.ask(body, name)
        self.answer(recognition, body, {"text": said, "prompt_tokens": 100, "output_tokens": 20, **tokens})
        return recognition


@pytest.mark.parametrize("file", sorted(CLIENTS.glob("*.json")), ids=lambda file: file.stem)
def test_the_turns_of_a_client_fall_where_they_belong(file: Path) -> None:
    talk = json.loads(file.read_text())
    front = Front(talk["api"])
    names: dict[bytes, str] = {}
    for number, turn in enumerate(talk["turns"], 1):
        got = front.ask(turn["request"])
        name = names.setdefault(got.conversation.key, "ABCD"[len(names)])
        assert turn["expect"] == {
            "conversation": name,
            "kind": got.kind,
            "turn": got.turn,
            "shared_tokens": got.shared_tokens,
        }, f"turn {number}"
        front.answer(got, turn["request"], turn["answer"])


@pytest.mark.parametrize("file", sorted(CLIENTS.glob("*.json")), ids=lambda file: file.stem)
def test_another_tenant_with_the_very_same_words_never_meets_it(file: Path) -> None:
    talk = json.loads(file.read_text())
    front = Front(talk["api"])
    ours: set[bytes] = set()
    theirs: set[bytes] = set()
    for turn in talk["turns"]:
        for root, keys in ((ROOT, ours), (OTHER_TENANT, theirs)):
            got = front.ask(turn["request"], root=root)
            keys.add(got.conversation.key)
            front.answer(got, turn["request"], turn["answer"], root)
    assert not ours & theirs
    assert len(ours) == len(theirs)


# One conversation, and what its user does to it


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def short(recognition: Recognition, first: Recognition) -> tuple[Kind, int, int, bool]:
    """(kind, turn, shared tokens, whether it is the first one's conversation)."""
    same = recognition.conversation is first.conversation
    return recognition.kind, recognition.turn, recognition.shared_tokens, same


@pytest.fixture
def front() -> Front:
    return Front()


Q1, Q2, Q3, R1, R2 = user("one"), user("two"), user("three"), said("first"), said("second")


def three_turns(front: Front, name: str | None = None) -> Recognition:
    """100 + 20 tokens, then 200 + 20, then 300 + 20."""
    first = front.turn(Q1, said="first", name=name)
    front.turn(Q1, R1, Q2, said="second", name=name, prompt_tokens=200)
    front.turn(Q1, R1, Q2, R2, Q3, said="third", name=name, prompt_tokens=300)
    return first


def test_history_trimmed_from_the_front_is_a_new_conversation(front: Front) -> None:
    first = three_turns(front)
    trimmed = front.turn(Q2, R2, Q3, said("third"), user("four"), said="fourth")
    assert short(trimmed, first) == (Kind.NEW, 1, 0, False)
    assert front.turn(Q2, R2, Q3, said("third"), user("four"), said("fourth"), user("five")).turn == 2


def test_under_an_id_trimmed_history_is_the_same_conversation_but_nothing_of_it_can_be_reused(front: Front) -> None:
    first = three_turns(front, "c")
    got = front.turn(Q2, R2, Q3, said("third"), user("four"), said="fourth", name="c")
    assert short(got, first) == (Kind.NEXT, 4, 0, True)
    after = front.turn(Q2, R2, Q3, said("third"), user("four"), said("fourth"), user("five"), name="c")
    assert short(after, first) == (Kind.NEXT, 5, 120, True)


def test_a_system_prompt_that_changes_each_turn_leaves_nothing_to_reuse(front: Front) -> None:
    first = front.turn(system("It is 8:00."), Q1, said="first")
    assert short(front.turn(system("It is 8:01."), Q1, R1, Q2), first) == (Kind.NEW, 1, 0, False)
    first = front.turn(system("It is 8:00."), Q1, said="first", name="c")
    assert short(front.turn(system("It is 8:01."), Q1, R1, Q2, name="c"), first) == (Kind.NEXT, 2, 0, True)


def test_an_edited_reply_shares_the_prompt_before_it(front: Front) -> None:
    first = three_turns(front)
    edited = front.turn(Q1, R1, Q2, said("better"), Q3)
    assert short(edited, first) == (Kind.BRANCH, 3, 200, False)


def test_under_an_id_an_edited_reply_is_the_next_turn(front: Front) -> None:
    first = three_turns(front, "c")
    assert short(front.turn(Q1, R1, Q2, R2, Q3, said("better"), Q1, name="c"), first) == (Kind.NEXT, 4, 300, True)
    first = three_turns(front, "d")
    assert short(front.turn(Q1, R1, Q2, said("better"), Q3, name="d"), first) == (Kind.NEXT, 4, 200, True)


def test_a_regenerated_reply_repeats_the_turn_and_both_replies_can_be_gone_on_from(front: Front) -> None:
    first = three_turns(front)
    again = front.turn(Q1, R1, Q2, R2, Q3, said="3rd", prompt_tokens=300)
    assert short(again, first) == (Kind.REPEAT, 3, 300, True)
    assert short(front.turn(Q1, R1, Q2, R2, Q3, said="iii", prompt_tokens=300), first) == (Kind.REPEAT, 3, 300, True)
    older = front.ask({"messages": [Q1, R1, Q2, R2, Q3, said("third"), user("four")]})
    assert short(older, first) == (Kind.BRANCH, 4, 320, False)
    newest = front.ask({"messages": [Q1, R1, Q2, R2, Q3, said("iii"), user("four")]})
    assert short(newest, first) == (Kind.NEXT, 4, 320, True)


def test_a_message_edited_in_the_middle_shares_what_came_before_it(front: Front) -> None:
    first = three_turns(front)
    assert short(front.turn(Q1, R1, user("TWO")), first) == (Kind.BRANCH, 2, 120, False)
    assert front.turn(user("ONE"), R1, Q2).kind is Kind.NEW
    assert short(front.turn(Q1, R1, Q2, R2, user("THREE")), first) == (Kind.BRANCH, 3, 220, False)


def test_under_an_id_a_message_edited_in_the_middle_shares_what_came_before_it(front: Front) -> None:
    first = three_turns(front, "c")
    assert short(front.turn(Q1, R1, user("TWO"), name="c"), first) == (Kind.NEXT, 4, 120, True)


def test_branches_in_parallel_are_conversations_of_their_own(front: Front) -> None:
    first = three_turns(front)
    bodies = [{"messages": [Q1, R1, Q2, R2, Q3, said("third"), user(text)]} for text in ("a", "b", "c")]
    asked = [front.ask(body) for body in bodies]
    assert [short(each, first) for each in asked] == [
        (Kind.NEXT, 4, 320, True),
        (Kind.BRANCH, 4, 320, False),
        (Kind.BRANCH, 4, 320, False),
    ]
    for recognition, body in zip(asked, bodies, strict=True):
        front.answer(recognition, body, {"text": "fourth", "prompt_tokens": 400, "output_tokens": 20})
    for recognition, body in zip(asked, bodies, strict=True):
        after = front.ask({"messages": [*body["messages"], said("fourth"), Q1]})
        assert short(after, recognition) == (Kind.NEXT, 5, 420, True)


def test_the_same_turn_from_two_devices_then_one_goes_on(front: Front) -> None:
    first = three_turns(front)
    body = {"messages": [Q1, R1, Q2, R2, Q3, said("third"), user("four")]}
    phone, desk = front.ask(body), front.ask(body)
    assert short(phone, first) == (Kind.NEXT, 4, 320, True)
    assert short(desk, first) == (Kind.BRANCH, 4, 320, False)
    front.answer(phone, body, {"text": "on the phone", "prompt_tokens": 400, "output_tokens": 20})
    front.answer(desk, body, {"text": "on the desk", "prompt_tokens": 400, "output_tokens": 20})
    assert short(front.turn(*body["messages"], said("on the desk"), Q1), desk) == (Kind.NEXT, 5, 420, True)
    assert short(front.turn(*body["messages"], said("on the phone"), Q1), first) == (Kind.NEXT, 5, 420, True)


def test_the_same_turn_from_two_devices_one_after_the_other(front: Front) -> None:
    """The second device repeats the turn; the first goes on from its own answer, which was not lost."""
    first = three_turns(front)
    body = [Q1, R1, Q2, R2, Q3]
    assert front.turn(*body, said="on the desk", prompt_tokens=300).kind is Kind.REPEAT
    assert short(front.turn(*body, said("third"), Q1), first) == (Kind.BRANCH, 4, 320, False)
    assert short(front.turn(*body, said("on the desk"), Q1), first) == (Kind.NEXT, 4, 320, True)


@pytest.mark.parametrize("shown", [[], [said("sec")]], ids=["reply left out", "reply cut off"])
def test_a_turn_sent_before_the_last_one_finished_goes_on_from_the_one_before(
    front: Front, shown: list[dict[str, Any]]
) -> None:
    first = front.turn(Q1, said="first")
    body = {"messages": [Q1, R1, Q2]}
    running = front.ask(body)
    hasty = front.ask({"messages": [Q1, R1, Q2, *shown, Q3]})
    assert short(hasty, first) == (Kind.BRANCH, 2, 120, False)
    front.answer(running, body, {"text": "second", "prompt_tokens": 200, "output_tokens": 20})
    assert short(front.turn(Q1, R1, Q2, R2, Q3), first) == (Kind.NEXT, 3, 220, True)


# What a client may write differently


SAME = {
    "nulls": ({"refusal": None, "annotations": [], "audio": None, "function_call": None, "tool_calls": None}, {}),
    "no tool calls": ({"tool_calls": []}, {}),
    "text part": ({"content": [{"type": "text", "text": "first"}]}, {}),
    "marker": ({"content": [{"type": "text", "text": "first", "cache_control": {"type": "ephemeral"}}]}, {}),
    "reasoning": ({"reasoning": "hm"}, {}),
    "old reasoning": ({"reasoning_content": "hm"}, {"reasoning": ""}),
    "order of call": (
        {"tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1,"b":2}'}}]},
        {"tool_calls": [{"function": {"arguments": '{ "b": 2, "a": 1 }', "name": "f"}, "type": "function", "id": "c"}]},
    ),
    "index of call": (
        {"tool_calls": [{"id": "c", "type": "function", "index": 0, "function": {"name": "f", "arguments": "{}"}}]},
        {"tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
    ),
}


@pytest.mark.parametrize(("one", "other"), SAME.values(), ids=SAME)
def test_two_ways_to_write_an_answer_are_one(front: Front, one: dict[str, Any], other: dict[str, Any]) -> None:
    front.turn(Q1, said="first")
    second = front.turn(Q1, {**R1, **one}, Q2, said="second", prompt_tokens=200)
    third = front.turn(Q1, {**R1, **other}, Q2, R2, Q3)
    assert short(third, second) == (Kind.NEXT, 3, 220, True)


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}, {"content": []}], ids=str)
def test_an_answer_that_only_called_a_tool_has_no_content_however_that_is_written(
    front: Front, content: dict[str, Any]
) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    body = {"messages": [Q1]}
    first = front.ask(body)
    front.answer(first, body, {"call": call, "prompt_tokens": 100, "output_tokens": 20})
    tool = {"role": "tool", "tool_call_id": "c", "content": "x"}
    second = front.turn(Q1, {"role": "assistant", "content": None, "tool_calls": [call]}, tool, said="second")
    assert short(second, first) == (Kind.NEXT, 2, 120, True)
    third = front.turn(Q1, {"role": "assistant", **content, "tool_calls": [call]}, tool, R2, Q3)
    assert short(third, first) == (Kind.NEXT, 3, 120, True)


def test_two_agents_that_begin_alike_are_told_apart_by_the_ids_of_their_calls(front: Front) -> None:
    def call(number: int) -> dict[str, Any]:
        return {"id": f"call_{number}", "type": "function", "function": {"name": "f", "arguments": "{}"}}

    def history(number: int) -> list[dict[str, Any]]:
        tool = {"role": "tool", "tool_call_id": f"call_{number}", "content": "x"}
        return [Q1, {"role": "assistant", "content": None, "tool_calls": [call(number)]}, tool]

    for number in (1, 2):
        body = {"messages": [Q1]}
        front.answer(front.ask(body), body, {"call": call(number), "prompt_tokens": 100, "output_tokens": 20})
    second = [front.turn(*history(number), said="second") for number in (1, 2)]
    third = [front.turn(*history(number), R2, Q3) for number in (1, 2)]
    assert [short(after, before) for before, after in zip(second, third, strict=True)] == [
        (Kind.NEXT, 3, 120, True),
        (Kind.NEXT, 3, 120, True),
    ]
    assert second[0].conversation is not second[1].conversation
