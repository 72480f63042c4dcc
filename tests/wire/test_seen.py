"""What was read before is not read again, and nothing is kept for good."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from gateway.wire.fields import Fields, parse
from gateway.wire.notes import LONG_BYTES
from gateway.wire.prompts import MessagesPrompt, read_messages
from gateway.wire.prompts_anthropic import read_anthropic
from gateway.wire.prompts_responses import read_responses
from gateway.wire.seen import Seen


def raw(number: int) -> msgspec.Raw:
    return msgspec.Raw(b'{"n":%d}' % number)


def test_the_same_bytes_are_worked_out_once() -> None:
    asked: list[bytes] = []

    def work_out(message: msgspec.Raw) -> int:
        asked.append(bytes(message))
        return len(asked)

    seen: Seen[int] = Seen(4)
    assert [seen.read(raw(number), work_out) for number in (1, 2, 1, 1, 2)] == [1, 2, 1, 1, 2]
    assert len(asked) == 2


def test_it_is_bounded_and_what_is_used_stays() -> None:
    asked: list[bytes] = []

    def work_out(message: msgspec.Raw) -> bytes:
        asked.append(bytes(message))
        return bytes(message)

    seen: Seen[bytes] = Seen(4)
    for number in range(100):
        seen.read(raw(-1), work_out)
        seen.read(raw(number), work_out)
        assert len(seen) <= 8
    assert asked.count(b'{"n":-1}') == 1
    seen.read(raw(0), work_out)
    assert asked.count(b'{"n":0}') == 2


def test_a_long_history_reads_as_the_same_messages_in_a_short_one() -> None:
    messages = [
        {"role": role, "content": f"{role} {number} " + "word " * 100, **more}
        for number, (role, more) in enumerate(
            [("system", {}), ("user", {}), ("assistant", {"reasoning": "hm"}), ("tool", {"tool_call_id": "x"})] * 20
        )
    ]
    body = msgspec.json.encode({"messages": messages})
    assert len(body) > LONG_BYTES
    for _ in range(2):
        whole = read_messages(parse(body))
        assert whole is not None
        for index, message in enumerate(messages):
            alone = read_messages(parse(msgspec.json.encode({"messages": [message]})))
            assert alone is not None
            assert whole.digests[index] == alone.digests[0]
            assert whole.answers[index] == alone.answers[0]
            assert whole.reply_heads[index] == alone.reply_heads[0]
        assert whole.thoughts == {index for index in range(78, 80) if messages[index]["role"] == "assistant"}


def test_a_long_history_with_something_that_is_no_message_is_none() -> None:
    body = msgspec.json.encode({"messages": [{"role": "user", "content": "x" * LONG_BYTES}, 5]})
    assert read_messages(parse(body)) is None


_LOOK = {"type": "tool_use", "id": "t", "name": "look", "input": {"at": 1}}
_SEEN = {"type": "tool_result", "tool_use_id": "t", "content": "a line"}
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "look"},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, _LOOK]},
    {"role": "user", "content": [_SEEN]},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "done"}]},
]
ITEMS: list[dict[str, Any]] = [
    {"role": "user", "content": "look"},
    {"type": "reasoning", "id": "r", "summary": []},
    {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "a line"},
    {"type": "reasoning", "id": "s", "summary": []},
    {"role": "assistant", "content": "done"},
]


@pytest.mark.parametrize(
    ("read", "field", "turn", "instructions"),
    [(read_anthropic, "messages", MESSAGES, "system"), (read_responses, "input", ITEMS, "instructions")],
)
def test_a_long_history_of_another_api_reads_as_its_turns_do(
    read: Callable[[Fields], MessagesPrompt | None], field: str, turn: list[dict[str, Any]], instructions: str
) -> None:
    short = read(parse(msgspec.json.encode({field: turn})))
    body = msgspec.json.encode({instructions: "be brief", field: turn * 40})
    assert short is not None
    assert short.thoughts == {1, 3}
    assert len(body) > LONG_BYTES
    for _ in range(2):
        whole = read(parse(body))
        assert whole is not None
        assert whole.digests[1:] == short.digests * 40
        assert whole.answers[1:] == short.answers * 40
        assert list(whole.reply_heads[1:]) == list(short.reply_heads[:]) * 40
        assert whole.thoughts == {len(whole.digests) - 3, len(whole.digests) - 1}
